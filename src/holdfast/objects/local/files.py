"""Files of the local store: written whole or not at all, and durable before they are seen.

An object's file is never changed in place. It is written aside, forced to disk, and then renamed, so a reader has the
old bytes or the new ones, and a crash leaves at most a file in the staging folder.

Paths are bytes throughout the local store: names must not depend on the locale.
"""

import errno
import fcntl
import hashlib
import itertools
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from holdfast.base.clock import Clock
from holdfast.objects.store import VERSION_DIGITS, Version

# A link could lead out of the store, and a pipe would wait for a writer: neither is an object.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_STAGE = os.O_WRONLY | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL
_NAMELESS = os.O_WRONLY | os.O_CLOEXEC | getattr(os, "O_TMPFILE", 0)
_NO_NAMELESS = {errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EXDEV, errno.EMLINK}
_NO_PLAIN_FILE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO}
_NO_EMPTY_FOLDER = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EBUSY}

_OPEN_FILES = b"/proc/self/fd"

_PIECE = 1024 * 1024
"""How much of a file is in memory while it is hashed."""

_NO_WAITING = getattr(os, "RWF_NOWAIT", None)
_NOT_AT_HAND = {errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class OpenFile:
    """A file opened for reading. Its bytes stay what they are, whatever happens to its name."""

    __slots__ = ("_descriptor", "identity", "modified_ns", "size")

    def __init__(self, descriptor: int, found: os.stat_result) -> None:
        self._descriptor = descriptor
        self.size = found.st_size
        self.modified_ns = found.st_mtime_ns
        self.identity = f"{found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"
        """Another file has another one: objects are replaced by new files, never changed in place."""

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``start`` to ``end``, cut at the file's end."""
        end = min(end, self.size)
        pieces: list[bytes] = []
        while start < end and (piece := os.pread(self._descriptor, end - start, start)):
            pieces.append(piece)
            start += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def read_at_hand(self) -> bytes | None:
        """All bytes, if the system has them in memory; None if somebody would have to wait for the disk."""
        if _NO_WAITING is None:
            return None
        buffer = bytearray(self.size)
        try:
            count = os.preadv(self._descriptor, [buffer], 0, _NO_WAITING) if self.size else 0
        except OSError as error:
            if error.errno in _NOT_AT_HAND:
                return None
            raise
        return bytes(buffer) if count == self.size else None

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def version(self) -> Version:
        """``content_version`` of a file that need not fit into memory."""
        hasher = hashlib.sha256()
        for start in range(0, self.size, _PIECE):
            hasher.update(self.read(start, start + _PIECE))
        return Version(hasher.hexdigest()[:VERSION_DIGITS])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


class Staged:
    """A file with all its bytes on disk, waiting for its place. It is removed afterwards, unless it was given one."""

    __slots__ = ("_descriptor", "_kept", "_placed", "found", "path")

    def __init__(self, path: bytes, descriptor: int, found: os.stat_result) -> None:
        self.path = path
        self.found = found
        self._descriptor = descriptor
        self._placed = False
        self._kept = False

    def place(self, path: bytes, folder: int | None = None) -> None:
        """``path`` is below the open folder, if one is given."""
        os.rename(self.path, path, dst_dir_fd=folder)
        self._placed = True

    def keep(self) -> int:
        """The open file, which the caller has to close from now on."""
        self._kept = True
        return self._descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._kept:
            os.close(self._descriptor)
        if not self._placed:
            _unlink(self.path)


class _Open:
    """Is closed at the latest when nobody has it any more, such as one who was cancelled while a thread opened it, or
    whose loop was closed."""

    __slots__ = ("descriptor",)

    def __init__(self) -> None:
        self.descriptor = -1

    def close(self, close: Callable[[int], None] = os.close) -> None:  # modules may be gone when the interpreter ends
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


class Nameless(_Open):
    """A file that has no name yet. Nobody sees it before it has one, and a crash leaves nothing of it. It can take a
    name that is free, but nobody's place. Its bytes are still to be forced to disk."""

    __slots__ = ("_path",)

    def __init__(self, path: bytes, folder: "OpenFolder", body: bytes) -> None:
        """``path`` is that of the folder."""
        super().__init__()
        self._path = path
        self.descriptor = os.open(b".", _NAMELESS, 0o666, dir_fd=folder.descriptor)
        try:
            _write(self.descriptor, body)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def possible() -> bool:
        """Whether this system has such files; a filesystem may not have them all the same."""
        return hasattr(os, "O_TMPFILE") and os.path.isdir(_OPEN_FILES)

    @staticmethod
    def unheard_of(error: OSError) -> bool:
        """Whether an error says that this filesystem does not have them, or cannot name them."""
        return error.errno in _NO_NAMELESS

    def place(self, name: bytes, folder: "OpenFolder") -> None:
        """Raises ``FileExistsError`` if something of that name is in the open folder."""
        try:
            os.link(b"%s/%d" % (_OPEN_FILES, self.descriptor), name, dst_dir_fd=folder.descriptor)
        except OSError as error:  # which would name the descriptor
            raise OSError(error.errno, error.strerror, b"%s/%s" % (self._path, name)) from error


class Growing:
    """A file that is being written piece by piece."""

    def __init__(self, path: bytes, file: int) -> None:
        self.path = path
        self._file: int | None = file
        self._hasher = hashlib.sha256()

    def write(self, piece: bytes) -> None:
        self._hasher.update(piece)
        _write(self._open(), piece)

    def finish(self) -> tuple[Staged, Version]:
        """The file with all its bytes on disk, and their version."""
        file = self._open()
        os.fsync(file)
        staged = Staged(self.path, file, os.fstat(file))
        self._file = None
        return staged, Version(self._hasher.hexdigest()[:VERSION_DIGITS])

    def discard(self) -> None:
        """Unless it was finished."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            _unlink(self.path)

    def _open(self) -> int:
        if self._file is None:
            raise OSError(errno.EBADF, "this file was finished")
        return self._file


class Staging:
    """Files that are being written. Each is locked by its writer, so one that can be locked was left by a dead one."""

    def __init__(self, folder: bytes, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._numbers = itertools.count()

    def stage(self, body: bytes, suffix: bytes = b"") -> Staged:
        """A file with these bytes."""
        while True:
            path, file = self._create(suffix)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                _write(file, body)
                os.fsync(file)
                found = os.fstat(file)
            except BaseException:
                os.close(file)
                _unlink(path)
                raise
            if found.st_nlink > 0:
                return Staged(path, file, found)
            os.close(file)  # swept before it was locked

    def begin(self) -> Growing:
        """An empty file, to be written piece by piece."""
        while True:
            path, file = self._create(b"")
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink > 0:
                return Growing(path, file)
            os.close(file)  # swept before it was locked

    def sweep(self) -> None:
        """Remove what dead writers have left."""
        with os.scandir(self._folder) as entries:
            for entry in entries:
                # Placed meanwhile; or another user's, who sweeps it.
                with suppress(FileNotFoundError, PermissionError):
                    _remove_unlocked(entry.path)

    def _create(self, suffix: bytes) -> tuple[bytes, int]:
        while True:
            token = b"%x-%d-%d" % (self._clock.wall_ns(), os.getpid(), next(self._numbers))
            path = b"%s/%s%s" % (self._folder, token, suffix)
            try:
                return path, os.open(path, _STAGE, 0o666)
            except FileExistsError:
                continue  # a process in another container may have the same number


def _write(file: int, body: bytes) -> None:
    written = os.write(file, body) if body else 0
    while written < len(body):
        written += os.write(file, memoryview(body)[written:])


def _unlink(path: bytes) -> None:
    with suppress(FileNotFoundError):  # swept, once it was closed
        os.unlink(path)


def _remove_unlocked(path: bytes) -> None:
    file = os.open(path, _READ)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        return  # its writer lives
    finally:
        os.close(file)


def open_file(path: bytes) -> OpenFile | None:
    """The plain file at ``path``; None if there is none."""
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno in _NO_PLAIN_FILE:
            return None
        raise
    found = os.fstat(descriptor)
    if is_file(found):
        return OpenFile(descriptor, found)
    os.close(descriptor)
    return None


def exists(path: bytes) -> bool:
    """Cheaper than ``look`` where nothing is there as a rule."""
    return os.access(path, os.F_OK)


def look(path: bytes) -> os.stat_result | None:
    """What is at ``path``, links not followed; None if nothing is."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_file(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISREG(found.st_mode)


def is_folder(found: os.stat_result | None) -> bool:
    return found is not None and stat.S_ISDIR(found.st_mode)


def make_folder(path: bytes) -> bool:
    """True if it was made, False if something of that name was there."""
    try:
        os.mkdir(path)
    except FileExistsError:
        return False
    return True


def remove_folder(path: bytes) -> bool:
    """Remove the folder if it is empty; True if it is gone now."""
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in _NO_EMPTY_FOLDER:
            return False
        raise
    return True


class OpenFolder(_Open):
    """A folder opened to be locked or forced to disk."""

    __slots__ = ("_identity",)

    def __init__(self, path: bytes) -> None:
        super().__init__()
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._identity: tuple[int, int] | None = None

    def sync(self) -> None:
        """Make durable which names the folder holds. A file's own bytes are synced before it gets its name."""
        os.fsync(self.descriptor)

    @property
    def device(self) -> int:
        """The number of the filesystem that it is on."""
        return self._known_as()[0]

    def is_same(self, other: "OpenFolder") -> bool:
        return self._known_as() == other._known_as()

    def has(self, name: bytes) -> bool:
        return os.access(name, os.F_OK, dir_fd=self.descriptor, follow_symlinks=False)

    def is_removed(self) -> bool:
        return os.fstat(self.descriptor).st_nlink == 0

    def _known_as(self) -> tuple[int, int]:
        if self._identity is None:
            found = os.fstat(self.descriptor)
            self._identity = found.st_dev, found.st_ino
        return self._identity


def sync_folder(path: bytes) -> None:
    with OpenFolder(path) as folder:
        folder.sync()
