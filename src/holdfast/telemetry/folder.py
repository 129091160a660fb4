"""A directory on disk with the few operations that a queue needs, each durable when it returns.

Names are flat. ``append`` and ``replace`` fsync before they return. A process that dies during an append may leave any
part of the bytes; a process that dies during a replace leaves the old or the new content. A full disk is
``Unavailable`` and has no effect. Any other error of the disk is ``Unavailable`` too; until a retry succeeds, its
outcome is unknown.

Files are private to the user of the process (mode 0600) and are never opened through a link, so that a user who can
write to the directory cannot make this process read or overwrite files elsewhere.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from holdfast.base.aio import blocking, finishing
from holdfast.base.errors import Denied, HoldfastError, Invalid, Refused, Unavailable

LOCK = "queue.lock"
TEMPORARY = ".new"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


class Folder(Protocol):
    async def names(self) -> list[str]:
        """All names, sorted."""
        ...

    async def size(self, name: str) -> int | None:
        """None if there is no such file."""
        ...

    async def read(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        """Bytes from ``start``, fewer at the end of the file; None if there is no such file."""
        ...

    async def append(self, name: str, at: int, data: bytes) -> None:
        """Write at ``at``, the end of the valid bytes, and fsync. Bytes after ``at`` are cut off."""
        ...

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the content atomically. If not ``durable``, a power failure may bring back the old content, or
        none."""
        ...

    async def fsync(self, name: str) -> None:
        """Fsync a file that an earlier process may have written without doing so."""
        ...

    async def remove(self, name: str) -> None:
        """Does nothing if there is no such file."""
        ...


class DiskFolder:
    """The directory at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def names(self) -> list[str]:
        return await blocking(self._names)

    async def size(self, name: str) -> int | None:
        return await blocking(self._size, name)

    async def read(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await blocking(self._read, name, start, length)

    async def append(self, name: str, at: int, data: bytes) -> None:
        await finishing(self._append, name, at, data)

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        await finishing(self._replace, name, data, durable)

    async def fsync(self, name: str) -> None:
        await blocking(self._fsync, name)

    async def remove(self, name: str) -> None:
        await finishing(self._remove, name)

    def _names(self) -> list[str]:
        with _explained(self.path):
            return sorted(name for name in os.listdir(self.path) if not name.endswith(TEMPORARY))

    def _size(self, name: str) -> int | None:
        with _explained(self.path / name):
            try:
                return (self.path / name).lstat().st_size
            except FileNotFoundError:
                return None

    def _read(self, name: str, start: int, length: int | None) -> bytes | None:
        with _explained(self.path / name):
            try:
                file = _open(self.path / name, os.O_RDONLY)
            except FileNotFoundError:
                return None
            try:
                return _read_fully(file, start, os.fstat(file).st_size - start if length is None else length)
            finally:
                os.close(file)

    def _append(self, name: str, at: int, data: bytes) -> None:
        with _explained(self.path / name):
            file = _open(self.path / name, os.O_RDWR | os.O_CREAT)
            try:
                if os.fstat(file).st_size > at:
                    os.ftruncate(file, at)
                try:
                    _write_fully(file, at, data)
                    os.fsync(file)
                except OSError:
                    # The caller learns that the append failed, so its bytes must not reappear as a valid entry later.
                    with suppress(OSError):
                        os.ftruncate(file, at)
                    raise
            finally:
                os.close(file)
            if at == 0:
                self._fsync_directory()

    def _replace(self, name: str, data: bytes, durable: bool) -> None:
        with _explained(self.path / name):
            aside = self.path / f"{name}{TEMPORARY}"
            aside.unlink(missing_ok=True)  # of a process that died
            file = _open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                _write_fully(file, 0, data)
                if durable:
                    os.fsync(file)
            except OSError:
                with suppress(OSError):
                    aside.unlink()
                raise
            finally:
                os.close(file)
            aside.replace(self.path / name)
            if durable:
                self._fsync_directory()

    def _fsync(self, name: str) -> None:
        with _explained(self.path / name):
            file = _open(self.path / name, os.O_RDONLY)
            try:
                os.fsync(file)
            finally:
                os.close(file)
            self._fsync_directory()

    def _remove(self, name: str) -> None:
        with _explained(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def _fsync_directory(self) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def held_folder(path: Path) -> Iterator[DiskFolder]:
    """The queue's directory at ``path``, created if it does not exist, locked for this process."""
    with named_folder("--queue", path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    busy = Refused(f"{path}: another agent uses this queue", remedy="stop it, or give each agent its own folder")
    with locked("--queue", path / LOCK, busy):
        yield DiskFolder(path)


@contextmanager
def locked(option: str, path: Path, busy: Refused) -> Iterator[None]:
    """Hold the lock file at ``path``, which is created if it does not exist. Raises ``busy`` if a process holds it."""
    with named_folder(option, path):
        lock = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        yield
    finally:
        os.close(lock)


@contextmanager
def named_folder(option: str, path: Path) -> Iterator[None]:
    """Convert an ``OSError`` in the block to an error that names ``option`` and its path."""
    try:
        yield
    except FileNotFoundError as error:  # parents are created too, so this is a file system of the kernel such as /proc
        raise Invalid(f"{option} {path}: no folder can be created there", remedy="name a folder on a disk") from error
    except OSError as error:
        raise _explanation(f"{option} {path}", error) from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explanation(str(path), error) from error


def _open(path: Path, flags: int) -> int:
    """Open a regular file that is not a link and has no other name; a new one is readable by this user only."""
    # O_NONBLOCK: opening a named pipe must not wait for its other end.
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    about = os.fstat(file)
    if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
        os.close(file)
        raise OSError(errno.ELOOP, "is a link or not a regular file")
    return file


def _explanation(path: str, error: OSError) -> HoldfastError:
    if error.errno == errno.ELOOP:
        return Refused(
            f"{path}: is a link or not a regular file, and is not opened",
            remedy="find out who put it there and remove it; only this process may write to the folder",
        )
    if error.errno in _FULL:
        return Unavailable(f"{path}: the disk is full", remedy="free some space; the data on it is not lost")
    if error.errno in _DENIED:
        return Denied(f"{path}: {error.strerror}", remedy="let the user of this process write to the folder")
    if isinstance(error, NotADirectoryError | FileExistsError):
        return Invalid(f"{path}: {error.strerror}", remedy="name a folder")
    return Unavailable(f"{path}: {error.strerror or error}")


def _write_fully(file: int, at: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file, rest, at)
        at, rest = at + written, rest[written:]


def _read_fully(file: int, start: int, length: int) -> bytes:
    pieces: list[bytes] = []
    while length > 0 and (piece := os.pread(file, length, start)):
        pieces.append(piece)
        start, length = start + len(piece), length - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
