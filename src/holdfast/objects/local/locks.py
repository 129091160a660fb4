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
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import lru_cache

from holdfast.objects.local.files import Directory
from holdfast.objects.local.names import Names

OPENING = "opening-é"
"""Name of the lock that is held while a process decides on the layout. Directories that fold case or normalise letters
show this file under other names too."""

_FILE = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_NOFOLLOW
# Only network filesystems cannot lock a directory, and those are refused unless the user has accepted the risk.
_NO_DIRECTORY_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Locks:
    def __init__(self, directory: Directory) -> None:
        self.directory = directory

    def writing(self, names: Names) -> "Lock":
        """Excludes other changes of the object on this path."""
        return Lock(self.directory, _shard(names))

    def opening(self) -> "Lock":
        """Excludes other decisions on the layout."""
        return Lock(self.directory, OPENING.encode())


@lru_cache(maxsize=256)
def _shard(names: Names) -> bytes:
    return hashlib.blake2b(b"/".join(names), digest_size=1).hexdigest().encode()


class Lock:
    """Held by one thread of one process. Not a generator, because every write takes one."""

    __slots__ = ("_descriptor", "_directory", "_name")

    def __init__(self, directory: Directory, name: bytes) -> None:
        self._directory = directory
        self._name = name

    def __enter__(self) -> None:
        self._descriptor = os.open(self._name, _FILE, 0o666, dir_fd=self._directory.descriptor)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __exit__(self, *_: object) -> None:
        # Closing alone does not unlock while a forked child has a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def renaming(directory: Directory) -> AbstractContextManager[None]:
    """Excludes scans of this directory."""
    return _locked(directory, fcntl.LOCK_SH)


def scanning(directory: Directory) -> AbstractContextManager[None]:
    """Excludes replacing and moving names in this directory."""
    return _locked(directory, fcntl.LOCK_EX)


@contextmanager
def _locked(directory: Directory, how: int) -> Iterator[None]:
    with directory.reopen() as own:
        try:
            fcntl.flock(own.descriptor, how)
        except OSError as error:
            if error.errno not in _NO_DIRECTORY_LOCKS:
                raise
            yield
            return
        try:
            yield
        finally:
            # Closing alone does not unlock while a forked child has a copy of the descriptor.
            fcntl.flock(own.descriptor, fcntl.LOCK_UN)
