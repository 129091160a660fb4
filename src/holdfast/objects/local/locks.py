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
from contextlib import contextmanager
from functools import lru_cache
from types import TracebackType

from holdfast.objects.local.files import OpenFolder
from holdfast.objects.local.paths import Names

_FILE = os.O_RDWR | os.O_CLOEXEC | os.O_CREAT

# Only network filesystems cannot lock a folder, and those are refused unless somebody has accepted the risk.
_NO_FOLDER_LOCKS = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class Locks:
    def __init__(self, folder: bytes) -> None:
        self._folder = folder

    def writing(self, names: Names, *, waits: bool = True) -> "Lock":
        """Nobody else changes the object on this path."""
        return Lock(b"%s/%s" % (self._folder, _shard(names)), waits=waits)

    def opening(self) -> "Lock":
        """Nobody else decides on the layout."""
        return Lock(b"%s/opening" % self._folder)


@lru_cache(maxsize=256)
def _shard(names: Names) -> bytes:
    return hashlib.blake2b(b"/".join(names), digest_size=1).hexdigest().encode()


class Lock:
    """Held by one thread of one process. Cheaper than a generator on the hot path. Where nobody is to wait for it,
    entering raises ``BlockingIOError`` while somebody else holds it."""

    __slots__ = ("_descriptor", "_how", "_path")

    def __init__(self, path: bytes, *, waits: bool = True) -> None:
        self._path = path
        self._how = fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, _FILE, 0o666)
        try:
            fcntl.flock(self._descriptor, self._how)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone does not unlock while a forked child has a copy of the descriptor.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


@contextmanager
def renaming(folder: bytes) -> Iterator[None]:
    """Nobody scans this folder."""
    with OpenFolder(folder) as opened, sharing(opened):
        yield


@contextmanager
def scanning(folder: bytes) -> Iterator[None]:
    """Nobody replaces or moves names in this folder."""
    with OpenFolder(folder) as opened, _Held(opened.descriptor, fcntl.LOCK_EX):
        yield


def sharing(folder: OpenFolder) -> "_Held":
    """Nobody scans this open folder."""
    return _Held(folder.descriptor, fcntl.LOCK_SH)


class _Held:
    """A lock on an open folder."""

    __slots__ = ("_descriptor", "_held", "_how")

    def __init__(self, descriptor: int, how: int) -> None:
        self._descriptor = descriptor
        self._how = how

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._descriptor, self._how)
            self._held = True
        except OSError as error:
            if error.errno not in _NO_FOLDER_LOCKS:
                raise
            self._held = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
