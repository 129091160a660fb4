"""Open directories and files of the local store, and the errors of the operating system as errors of ours.

Everything below the root is opened name by name, relative to an open directory and never through a link
(``O_NOFOLLOW``). So a link below the root is never followed, not even one that replaces a directory between a check and
its use: the descriptor still stands for the directory that was checked. Only the root itself may be a link.

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

from holdfast.base.clock import Clock
from holdfast.base.errors import Ambiguous, Denied, HoldfastError, Invalid, Refused, Unavailable
from holdfast.objects.store import VERSION_DIGITS, Version

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK, because a pipe would wait for a writer. It is then recognised as no plain file.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_STAGE = os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT | os.O_EXCL
_NO_DIRECTORY = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}
_NO_PLAIN_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_NO_EMPTY_DIRECTORY = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
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


class Attempt:
    """Turns an ``OSError`` of its block into an error of ours, which depends on how far a change has come.

    Before its rename a failed write has had no effect. A rename that fails with an I/O error, and a rename whose
    directory cannot be fsynced, may survive a power cut or not: the outcome is ``Ambiguous``. Reading the object does
    not settle it, because the page cache shows what the disk may not have.
    """

    __slots__ = ("_doing", "_root", "begun", "made")

    def __init__(self, doing: str, root: bytes) -> None:
        self._doing = doing
        self._root = os.fsdecode(root)
        self.begun = False
        """The rename was called."""
        self.made = False
        """The rename has succeeded."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise self._explained(error) from error

    def _explained(self, error: OSError) -> HoldfastError:
        name = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
        what = f"{self._doing}: {self._root}: {error.strerror or error}{name}"
        if self.made or (self.begun and error.errno == errno.EIO):
            return Ambiguous(
                f"{what}: the write may be there now and gone after a power cut",
                remedy=f"check the disk of {self._root}, then read the object before you act again",
            )
        if error.errno in FULL:
            return Unavailable(
                what, remedy=f"the disk is full or a limit is reached: make room for {self._root} and try again"
            )
        if error.errno in _FORBIDDEN:
            return Denied(what, remedy=f"make {self._root} writable for user {os.geteuid()}, or choose another store")
        if error.errno == errno.ELOOP:
            return Refused(what, remedy="links below the root are not followed: move this one out of the store")
        if error.errno in _MISPLACED:
            return Invalid(what, remedy=_MISPLACED[error.errno])
        return Unavailable(what)


class _Open:
    """A descriptor that is closed by ``with``, or at the latest when the object is garbage."""

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


class OpenFile(_Open):
    """A plain file, opened for reading. Its bytes stay the same, whatever happens to its name."""

    __slots__ = ("found",)

    def __init__(self, descriptor: int, found: os.stat_result) -> None:
        super().__init__(descriptor)
        self.found = found

    @property
    def size(self) -> int:
        return self.found.st_size

    @property
    def identity(self) -> str:
        """Differs from that of every other file: objects are replaced by new files, never changed in place."""
        return f"{self.found.st_dev} {self.found.st_ino} {self.found.st_size} {self.found.st_mtime_ns}"

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


class Folder(_Open):
    """An open directory. Its methods take names of entries and follow no links."""

    __slots__ = ("_identity",)

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._identity: Identity | None = None

    @classmethod
    def at(cls, path: bytes) -> "Folder":
        """The directory at a path outside the store, where links are followed."""
        return cls(os.open(path, _DIRECTORY))

    def child(self, name: bytes) -> "Folder | None":
        """None if there is no directory of this name: nothing, a file, or a link."""
        try:
            return Folder(os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self.descriptor))
        except OSError as error:
            if error.errno in _NO_DIRECTORY:
                return None
            raise

    def again(self) -> "Folder":
        """The same directory, opened once more."""
        return Folder(os.open(b".", _DIRECTORY, dir_fd=self.descriptor))

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            found = os.fstat(self.descriptor)
            self._identity = found.st_dev, found.st_ino
        return self._identity

    def file(self, name: bytes) -> OpenFile | None:
        """The plain file of this name, opened for reading."""
        try:
            descriptor = os.open(name, _READ, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in _NO_PLAIN_FILE:
                return None
            raise
        found = os.fstat(descriptor)
        if is_file(found):
            return OpenFile(descriptor, found)
        os.close(descriptor)
        return None

    def look(self, name: bytes) -> os.stat_result | None:
        """What the entry is; None if there is none."""
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

    def make(self, name: bytes) -> bool:
        """Make a directory; False if there is an entry of this name."""
        try:
            os.mkdir(name, dir_fd=self.descriptor)
        except FileExistsError:
            return False
        return True

    def remove(self, name: bytes) -> bool:
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

    def rename(self, name: bytes, to: "Folder", new: bytes) -> None:
        os.rename(name, new, src_dir_fd=self.descriptor, dst_dir_fd=to.descriptor)

    def unlink(self, name: bytes) -> None:
        os.unlink(name, dir_fd=self.descriptor)


class Staged(_Open):
    """A file in the staging directory, locked by its writer. Closing removes it, unless it was placed."""

    __slots__ = ("_busy", "_folder", "_placed", "name")

    def __init__(self, folder: Folder, name: bytes, descriptor: int) -> None:
        super().__init__(descriptor)
        self.name = name
        self._folder = folder
        self._placed = False
        self._busy = threading.Lock()
        """A cancelled caller may close the file while a thread still writes to it."""

    def write(self, body: bytes) -> None:
        with self._busy:
            written = os.write(self.descriptor, body) if body else 0
            while written < len(body):
                written += os.write(self.descriptor, memoryview(body)[written:])

    def place(self, folder: Folder, name: bytes) -> None:
        self._folder.rename(self.name, folder, name)
        self._placed = True

    def close(self, close: Callable[[int], None] = os.close) -> None:
        with self._busy:
            if self.descriptor >= 0 and not self._placed:
                with suppress(FileNotFoundError):
                    self._folder.unlink(self.name)
            super().close(close)


class Staging:
    """Makes staged files. A file that can be locked was left by a writer that died."""

    _numbers = itertools.count()

    def __init__(self, folder: Folder, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    def stage(self, suffix: bytes = b"") -> Staged:
        """An empty file."""
        while True:
            name = b"%x-%d-%d%s" % (self._clock.wall_ns(), os.getpid(), next(self._numbers), suffix)
            try:
                descriptor = os.open(name, _STAGE, 0o666, dir_fd=self.folder.descriptor)
            except FileExistsError:
                continue  # a process in another container may have the same number
            staged = Staged(self.folder, name, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink > 0:
                return staged
            staged.close()  # swept between its creation and its lock

    def sweep(self) -> None:
        """Remove the files of writers that died."""
        for name, is_directory in self.folder.entries():
            if not is_directory:
                # It was placed just now; or belongs to another user, whose processes sweep it.
                with suppress(FileNotFoundError, PermissionError):
                    self._remove_unlocked(name)

    def _remove_unlocked(self, name: bytes) -> None:
        file = self.folder.file(name)
        if file is not None:
            # Locked: its writer is alive.
            with file, suppress(BlockingIOError):
                fcntl.flock(file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.folder.unlink(name)


def is_file(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISDIR(found.st_mode)
