"""Locks of the local store: between threads and between processes alike.

A writer holds the lock of its path's shard while it compares and renames. Writers that replace or move names of a
directory share a lock on the directory. A scan of the directory holds that lock exclusively, because it may miss a name
that is moved or (on some filesystems) replaced while it runs.

Locks are ``flock``: the kernel releases them when a process dies. A lock belongs to an open file, so every use opens
its own: threads exclude one another too, and a fork shares none. The number of shards and the choice of a shard are
part of the layout: processes that disagree would not exclude each other.

Order: a path, then a directory. A thread never holds two of one kind, so there is no deadlock.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Collection
from functools import lru_cache

from holdfast.objects.local.files import Descriptor, Directory
from holdfast.objects.local.names import Names

OPENING = "opening-é"
"""Name of the lock that is held while a process decides on the layout. Directories that fold case or normalise letters
show this file under other names too."""

_FILE = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_NOFOLLOW
# Only network filesystems cannot lock a directory, and those are refused unless the user has accepted the risk.
_NO_DIRECTORY_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class _Lock:
    """Held by one thread of one process while its block runs. Not a generator, because every write takes one."""

    __slots__ = ("_file", "_how", "_ignored")

    def __init__(self, file: Descriptor, how: int, ignored: Collection[int] = ()) -> None:
        """It closes ``file`` at its end. With an error of ``ignored`` nothing is locked."""
        self._file = file
        self._how = how
        self._ignored = ignored

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._file.descriptor, self._how)
        except OSError as error:
            self._file.close()
            if error.errno not in self._ignored:
                raise

    def __exit__(self, *_: object) -> None:
        if self._file.descriptor >= 0:
            # Closing alone does not unlock while a forked child has a copy of the descriptor.
            fcntl.flock(self._file.descriptor, fcntl.LOCK_UN)
            self._file.close()


class Locks:
    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    def writing(self, names: Names) -> _Lock:
        """Excludes other changes of the object on this path."""
        return self._locked(_shard(names))

    def opening(self) -> _Lock:
        """Excludes other decisions on the layout."""
        return self._locked(OPENING.encode())

    def _locked(self, name: bytes) -> _Lock:
        return _Lock(Descriptor(os.open(name, _FILE, 0o666, dir_fd=self.directory.descriptor)), fcntl.LOCK_EX)


@lru_cache(maxsize=256)
def _shard(names: Names) -> bytes:
    return hashlib.blake2b(b"/".join(names), digest_size=1).hexdigest().encode()


def renaming(directory: Directory) -> _Lock:
    """Excludes scans of this directory."""
    return _Lock(directory.reopen(), fcntl.LOCK_SH, _NO_DIRECTORY_LOCKS)


def scanning(directory: Directory) -> _Lock:
    """Excludes replacing and moving names in this directory."""
    return _Lock(directory.reopen(), fcntl.LOCK_EX, _NO_DIRECTORY_LOCKS)
