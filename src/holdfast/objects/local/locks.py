"""Locks of the local store: between threads and between processes alike.

A writer has its path's shard to itself while it compares and renames. A folder is shared by those who replace or move
names in it, and whoever scans it has it alone: a moving name could slip past the scan, and so could, where filesystems
give it a new position, a name that is replaced.

The kernel takes a lock from a process that dies. A lock belongs to an open file, so every use opens its own: threads
exclude one another too, and nothing is kept that a fork could share. The number of shards and the choice of a shard are
part of the layout: processes that disagree would not exclude each other.

Order: a path, then a folder. Nobody holds two of a kind, so nobody waits in a circle.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from holdfast.objects.local.paths import Names

_FILE = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT
_FOLDER = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY

# Only network filesystems cannot lock a folder, and those are refused unless somebody has accepted the risk.
_NO_FOLDER_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Locks:
    def __init__(self, folder: bytes) -> None:
        self._folder = folder

    def writing(self, names: Names) -> AbstractContextManager[None]:
        """Nobody else changes the object on this path."""
        shard = hashlib.blake2b(b"/".join(names), digest_size=1).hexdigest()
        return self._held(shard.encode())

    def opening(self) -> AbstractContextManager[None]:
        """Nobody else decides on the layout."""
        return self._held(b"opening")

    def _held(self, name: bytes) -> AbstractContextManager[None]:
        return _locked(b"%s/%s" % (self._folder, name), _FILE, fcntl.LOCK_EX)


def renaming(folder: bytes) -> AbstractContextManager[None]:
    """Nobody scans this folder."""
    return _locked(folder, _FOLDER, fcntl.LOCK_SH)


def scanning(folder: bytes) -> AbstractContextManager[None]:
    """Nobody replaces or moves names in this folder."""
    return _locked(folder, _FOLDER, fcntl.LOCK_EX)


@contextmanager
def _locked(path: bytes, flags: int, how: int) -> Iterator[None]:
    lock = os.open(path, flags, 0o666)
    try:
        held = _flock(lock, how, needed=flags != _FOLDER)
        try:
            yield
        finally:
            if held:  # closing alone does not unlock while a forked child has a copy of the descriptor
                fcntl.flock(lock, fcntl.LOCK_UN)
    finally:
        os.close(lock)


def _flock(lock: int, how: int, *, needed: bool) -> bool:
    try:
        fcntl.flock(lock, how)
    except OSError as error:
        if needed or error.errno not in _NO_FOLDER_LOCKS:
            raise
        return False
    return True
