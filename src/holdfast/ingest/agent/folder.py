"""A folder on disk, as a queue needs it: few operations, each durable when it returns.

Names are flat. ``append`` and ``replace`` force their bytes to disk before they return; a process that dies within one
leaves any part of an append behind it, and of a replace nothing or all. A full disk is ``Unavailable``, and has no
effect. Whatever else a disk does is ``Unavailable`` too: the caller may try again, and believes nothing before.
"""

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from holdfast.base.aio import blocking, finishing
from holdfast.base.errors import Denied, HoldfastError, Invalid, Refused, Unavailable

LOCK = "queue.lock"
TEMPORARY = ".new"
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}


Piece = tuple[str, int, int]
"""Of the file of this name, from here on, so many bytes."""


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

    async def read_pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        """Bytes of several files; none of one that is not there."""
        ...

    async def append(self, name: str, at: int, data: bytes) -> None:
        """Write at ``at``, the end of what counts, and force it to disk. What stood behind it is cut off."""
        ...

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        """Another content, all at once. Not durable: after a power failure the old one may be back, or none."""
        ...

    async def force(self, name: str) -> None:
        """Force to disk what an earlier life may have written without doing so."""
        ...

    async def remove(self, name: str) -> None:
        """No error if there is no such file."""
        ...


class DiskFolder:
    """The folder at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def names(self) -> list[str]:
        return await blocking(self._names)

    async def size(self, name: str) -> int | None:
        return await blocking(self._size, name)

    async def read(self, name: str, start: int = 0, length: int | None = None) -> bytes | None:
        return await blocking(self._read, name, start, length)

    async def read_pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        return await blocking(self._read_pieces, pieces)

    async def append(self, name: str, at: int, data: bytes) -> None:
        await finishing(self._append, name, at, data)

    async def replace(self, name: str, data: bytes, *, durable: bool = True) -> None:
        await finishing(self._replace, name, data, durable)

    async def force(self, name: str) -> None:
        await blocking(self._force, name)

    async def remove(self, name: str) -> None:
        await finishing(self._remove, name)

    def _names(self) -> list[str]:
        with _explained(self.path):
            return sorted(name for name in os.listdir(self.path) if not name.endswith(TEMPORARY))

    def _size(self, name: str) -> int | None:
        with _explained(self.path / name):
            try:
                return (self.path / name).stat().st_size
            except FileNotFoundError:
                return None

    def _read(self, name: str, start: int, length: int | None) -> bytes | None:
        with _explained(self.path / name):
            try:
                with (self.path / name).open("rb", buffering=0) as file:
                    file.seek(start)
                    return file.read() if length is None else _read_fully(file.fileno(), start, length)
            except FileNotFoundError:
                return None

    def _read_pieces(self, pieces: Sequence[Piece]) -> list[bytes]:
        return [self._read(name, start, length) or b"" for name, start, length in pieces]

    def _append(self, name: str, at: int, data: bytes) -> None:
        with _explained(self.path / name):
            file = os.open(self.path / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(file).st_size > at:
                    os.ftruncate(file, at)
                try:
                    _write_fully(file, at, data)
                    os.fsync(file)
                except OSError:
                    # Whole entries must not appear later that nobody was told of. A failure here tells it all the same.
                    with suppress(OSError):
                        os.ftruncate(file, at)
                    raise
            finally:
                os.close(file)
            if at == 0:
                self._force_names()

    def _replace(self, name: str, data: bytes, durable: bool) -> None:
        with _explained(self.path / name):
            aside = self.path / f"{name}{TEMPORARY}"
            file = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
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
                self._force_names()

    def _force(self, name: str) -> None:
        with _explained(self.path / name):
            for path in (self.path / name, self.path):
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(file)
                finally:
                    os.close(file)

    def _remove(self, name: str) -> None:
        with _explained(self.path / name):
            (self.path / name).unlink(missing_ok=True)

    def _force_names(self) -> None:
        folder = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def held_folder(path: Path) -> Iterator[DiskFolder]:
    """The folder at ``path``, made if need be, for this process alone."""
    with named_folder("--queue", path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(
                f"{path}: another agent works on this queue", remedy="stop it, or give each agent its own folder"
            ) from error
        yield DiskFolder(path)
    finally:
        os.close(lock)


@contextmanager
def named_folder(option: str, path: Path) -> Iterator[None]:
    """Errors of the system in this block are those of the folder that ``option`` names, which is made if need be."""
    try:
        yield
    except FileNotFoundError as error:  # all folders above it are made: only the kernel's own, as /proc, take none
        raise Invalid(f"{option} {path}: no folder can be made there", remedy="name a folder on a disk") from error
    except OSError as error:
        raise _explanation(f"{option} {path}", error) from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explanation(str(path), error) from error


def _explanation(path: str, error: OSError) -> HoldfastError:
    if error.errno in _FULL:
        return Unavailable(f"{path}: the disk is full", remedy="make room; nothing that is there is lost")
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
