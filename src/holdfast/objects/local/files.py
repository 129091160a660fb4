"""Open directories and files of the local store, and errors of the operating system as errors of ours.

Everything below the root is opened name by name, relative to an open directory and never through a link
(``O_NOFOLLOW``). So a link below the root is never followed, not even one that replaces a directory between a check and
its use: the descriptor still refers to the directory that was checked. Only the root itself may be a link.

An object's file is never changed in place. It is staged, fsynced and then renamed, so a reader gets the old bytes or
the new ones, and a crash leaves at most a file in the staging directory.

Names are bytes throughout the local store: they must not depend on the locale.
"""

import errno
import fcntl
import hashlib
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from holdfast.base.errors import Ambiguous, Denied, HoldfastError, Invalid, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.store import VERSION_DIGITS, Version

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK, because a pipe would wait for a writer. It is then recognised as no plain file.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_STAGE = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
_NO_DIRECTORY = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NO_PLAIN_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_NO_EMPTY_DIRECTORY = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_MISPLACED = {
    errno.ENOTDIR: "give the store a directory of its own",
    errno.ENAMETOOLONG: "use a shorter key, or a directory with a shorter path",
    errno.EXDEV: "keep the store on one filesystem, without mounts or links inside it",
}

PIECE_BYTES = 1024 * 1024
"""How much of a file is in memory while it is hashed."""

Identity = tuple[int, int]
"""Device and inode number: unique among the files that exist, and those that are open."""


class Operation:
    """Turns an ``OSError`` of its block into an error of ours, which depends on how far a change has come.

    Before its rename a failed write has had no effect. A rename that fails with an I/O error, and a rename whose
    directory cannot be fsynced, may survive a power failure or not: the outcome is ``Ambiguous``. Reading the object
    does not settle it, because the page cache shows what the disk may not have.
    """

    __slots__ = ("_name", "_root", "rename_called", "renamed")

    def __init__(self, name: str, root: bytes) -> None:
        self._name = name
        self._root = os.fsdecode(root)
        self.rename_called = False
        self.renamed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise self._translated(error) from error

    def _translated(self, error: OSError) -> HoldfastError:
        file = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        message = f"{self._name}: {self._root}: {error.strerror or error}{file}"
        if self.renamed or (self.rename_called and error.errno == errno.EIO):
            return Ambiguous(
                f"{message}: the write may be visible now and lost after a power failure",
                remedy=f"check the disk of {self._root}, then read the object before you act again",
            )
        if error.errno in _FULL:
            return Unavailable(
                message, remedy=f"the disk is full or a limit is reached: make room for {self._root} and try again"
            )
        if error.errno in _FORBIDDEN:
            return Denied(
                message, remedy=f"make {self._root} writable for user {os.geteuid()}, or choose another store"
            )
        if error.errno == errno.ELOOP:
            return Refused(message, remedy="links below the root are not followed: move this one out of the store")
        if error.errno in _MISPLACED:
            return Invalid(message, remedy=_MISPLACED[error.errno])
        return Unavailable(message)


class Descriptor:
    """A file descriptor that is closed by ``with``, or at the latest when this object is garbage collected."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def close(self, close: Callable[[int], None] = os.close) -> None:  # modules may be gone at interpreter exit
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def sync(self) -> None:
        os.fsync(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class OpenFile(Descriptor):
    """A plain file, opened for reading. Its bytes stay the same, even if it is renamed or replaced."""

    __slots__ = ("status",)

    def __init__(self, descriptor: int, status: os.stat_result) -> None:
        super().__init__(descriptor)
        self.status = status

    @property
    def size(self) -> int:
        return self.status.st_size

    @property
    def identity(self) -> str:
        """Differs from that of every other file: objects are replaced by new files, never changed in place."""
        return f"{self.status.st_dev} {self.status.st_ino} {self.status.st_size} {self.status.st_mtime_ns}"

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``, cut at the file's end."""
        end = min(end, self.size)
        pieces: list[bytes] = []
        while start < end and (piece := os.pread(self.descriptor, end - start, start)):
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_cached(self) -> bytes | None:
        """All bytes if they are in the page cache; None if reading may wait for the disk."""
        body = bytearray(self.size)
        try:
            count = os.preadv(self.descriptor, [body], 0, os.RWF_NOWAIT) if body else 0
        except OSError:  # EAGAIN, or the flag is not supported
            return None
        return bytes(body) if count == self.size else None

    def version(self) -> Version:
        """``content_version`` of a file that need not fit into memory."""
        hasher = hashlib.sha256()
        for start in range(0, self.size, PIECE_BYTES):
            hasher.update(self.read(start, start + PIECE_BYTES))
        return Version(hasher.hexdigest()[:VERSION_DIGITS])


class Directory(Descriptor):
    """An open directory. Its methods take names of entries and follow no links."""

    __slots__ = ("_identity",)

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._identity: Identity | None = None

    @classmethod
    def at(cls, path: bytes) -> "Directory":
        """The directory at a path outside the store, where links are followed."""
        return cls(os.open(path, _DIRECTORY))

    def reopen(self) -> "Directory":
        """The same directory under another descriptor."""
        return Directory(os.open(b".", _DIRECTORY, dir_fd=self.descriptor))

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            status = os.fstat(self.descriptor)
            self._identity = status.st_dev, status.st_ino
        return self._identity

    def open_directory(self, name: bytes) -> "Directory | None":
        """None if there is no directory with this name: nothing, a file, or a link."""
        try:
            return Directory(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return None
            raise

    def open_file(self, name: bytes) -> OpenFile | None:
        """None if there is no plain file with this name."""
        try:
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in _NO_PLAIN_FILE:
                return None
            raise
        status = os.fstat(descriptor)
        if is_file(status):
            return OpenFile(descriptor, status)
        os.close(descriptor)
        return None

    def stat(self, name: bytes) -> os.stat_result | None:
        """None if there is no entry with this name."""
        try:
            return os.stat(name, dir_fd=self.descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def entries(self) -> Iterator[tuple[bytes, bool]]:
        """Plain files, and directories (True), but no links and special files."""
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if is_directory or entry.is_file(follow_symlinks=False):
                    yield os.fsencode(entry.name), is_directory

    def make_directory(self, name: bytes) -> bool:
        """False if there is an entry with this name."""
        try:
            os.mkdir(name, dir_fd=self.descriptor)
        except FileExistsError:
            return False
        return True

    def remove_directory(self, name: bytes) -> bool:
        """Remove a directory if it is empty; True if there is none now."""
        try:
            os.rmdir(name, dir_fd=self.descriptor)
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno in _NO_EMPTY_DIRECTORY:
                return False
            raise
        return True

    def rename(self, name: bytes, to: "Directory", new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def unlink(self, name: bytes) -> None:
        os.unlink(name, dir_fd=self.descriptor)


class Staged(Descriptor):
    """A file in the staging directory, locked by its writer. Closing removes it, unless it was placed."""

    __slots__ = ("_directory", "_lock", "_name", "_placed")

    def __init__(self, directory: Directory, name: bytes, descriptor: int) -> None:
        super().__init__(descriptor)
        self._name = name
        self._directory = directory
        self._placed = False
        self._lock = threading.Lock()
        """A cancelled caller may close the file while a thread still writes to it."""

    def write(self, body: bytes) -> None:
        with self._lock:
            written = os.write(self.descriptor, body) if body else 0
            while written < len(body):
                written += os.write(self.descriptor, memoryview(body)[written:])

    def place(self, directory: Directory, name: bytes) -> None:
        self._directory.rename(self._name, directory, name)
        self._placed = True

    def close(self, close: Callable[[int], None] = os.close) -> None:
        with self._lock:
            if self.descriptor >= 0 and not self._placed:
                with suppress(FileNotFoundError):
                    self._directory.unlink(self._name)
            super().close(close)


class Staging:
    """Makes staged files. A staged file that is not locked was left by a process that died."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self._numbers = itertools.count()
        self._prefix = Ambient.system().ids.unique().encode()  # processes in two containers may have the same number

    def stage(self) -> Staged:
        """An empty file."""
        while True:
            name = b"%s-%d-%d" % (self._prefix, os.getpid(), next(self._numbers))
            descriptor = os.open(name, _STAGE, 0o666, dir_fd=self.directory.descriptor)
            staged = Staged(self.directory, name, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink > 0:
                return staged
            staged.close()  # swept between its creation and its lock

    def sweep(self) -> None:
        """Remove the files of processes that died."""
        for name, is_directory in self.directory.entries():
            if not is_directory:
                # It is locked or was placed just now; or another user's, whose processes sweep it.
                with suppress(BlockingIOError, FileNotFoundError, PermissionError):
                    self._remove_unlocked(name)

    def _remove_unlocked(self, name: bytes) -> None:
        file = self.directory.open_file(name)
        if file is not None:
            with file:
                fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.directory.unlink(name)


def is_file(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISREG(status.st_mode)


def is_directory(status: os.stat_result | None) -> bool:
    return status is not None and stat.S_ISDIR(status.st_mode)
