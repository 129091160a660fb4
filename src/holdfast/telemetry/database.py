"""A SQLite database in a folder that one process owns: the queue of an agent, the spool of a collector.

A transaction is durable when it returns: WAL mode with ``synchronous=FULL`` fsyncs the log once per commit. With
``durable=False`` there is no fsync: a killed process loses nothing, a power failure may undo the newest of these
commits.

On a full disk a transaction fails as a whole, with ``Full``. Freed pages are used again. Deleting takes some room too,
in the log, and so does copying the log into the file; therefore data is added only while ``SPARE_BYTES`` of the disk
are free.

Errors: ``Full`` is ``Unavailable``; ``Corrupt`` for a damaged file; ``Incompatible`` for another version; ``Refused``
for a folder that another process uses or other users can write to, and for files that are links: such users must not
make this process read or overwrite files elsewhere. Any other error of the disk is ``Unavailable``.
"""

import errno
import fcntl
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from holdfast.base.aio import finishing
from holdfast.base.errors import Corrupt, Denied, HoldfastError, Incompatible, Invalid, Refused, Unavailable

PAGE_BYTES = 4096
LOG_PAGES = 1000
"""The log is copied into the file when it has this many pages: it takes about 4 MiB."""
SPARE_BYTES = 16 << 20
"""Free space on the disk below which no data is added."""
SHRINK_BYTES = 16 << 20
BUSY_S = 10.0
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_DENIED = {sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_AUTH}

P = ParamSpec("P")
R = TypeVar("R")


class Full(Unavailable):
    """The disk is full, or the database has reached its limit. Nothing has changed."""


@dataclass(frozen=True, slots=True)
class Format:
    """What a database holds. ``number`` marks its files as ours."""

    what: str
    number: int
    version: int
    schema: str
    if_damaged: str
    """What an operator can do with a damaged file."""


class Database:
    """``open`` comes first. Methods block; ``run`` calls a function that uses them in a thread."""

    def __init__(self, path: Path, made_for: Format, *, max_bytes: int | None = None) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self._format = made_for
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await finishing(function, *args, **kwargs)

    def open(self, begin: Callable[[sqlite3.Connection], None] | None = None) -> None:
        """``begin`` writes what a new database begins with. Without it, ``Invalid`` if there is no database."""
        with self._lock, self._explained():
            database = self.connect(create=begin is not None)
            try:
                if begin is not None and not _is_begun(database):
                    self._create(database, begin)
                self._check_version(database)
                self._configure(database)
            except BaseException:
                database.close()
                raise
            self._connection = database

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._explained():
            yield self._opened()

    @contextmanager
    def write(self, *, durable: bool = True, adds: int = 0) -> Iterator[sqlite3.Connection]:
        """Commits at the end of the block, or rolls back at an error. ``adds``: the bytes of new data."""
        with self._lock, self._explained():
            database = self._opened()
            if adds and not self._has_room(database, adds):
                raise Full(f"{self.path}: the disk is full", remedy="free some space; the data on it is not lost")
            database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            database.execute("BEGIN IMMEDIATE")
            try:
                yield database
                database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # it may be rolled back already
                    database.execute("ROLLBACK")
                raise

    def is_full(self) -> bool:
        """Whether the disk is too full to add data."""
        with self.read() as database:
            return not self._has_room(database, 1)

    def used_bytes(self) -> int:
        with self.read() as database:
            return (_pragma(database, "page_count") - _pragma(database, "freelist_count")) * PAGE_BYTES

    def shrink(self) -> None:
        """Give disk space back if most of the file is unused. Reads and writes all that is left in it."""
        with self.read() as database:
            pages, unused = _pragma(database, "page_count"), _pragma(database, "freelist_count")
            if unused * PAGE_BYTES > SHRINK_BYTES and 2 * unused > pages:
                with suppress(sqlite3.Error):  # it needs a little space itself, and no other reader
                    database.execute("VACUUM")
                    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def connect(self, *, create: bool) -> sqlite3.Connection:
        for suffix in ("", "-wal", "-shm", "-journal"):
            _check_file(Path(f"{self.path}{suffix}"))
        if create:
            # SQLite gives its other files the permissions of this one.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        elif not self.path.exists():
            raise Invalid(f"{self.path.parent} has no {self._format.what}", remedy="name the folder that holds it")
        # The lock keeps threads apart.
        return sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)

    def free_bytes(self) -> int:
        """Free space on the disk."""
        disk = os.statvfs(self.path.parent)
        return disk.f_bavail * disk.f_frsize

    def _create(self, database: sqlite3.Connection, begin: Callable[[sqlite3.Connection], None]) -> None:
        database.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        database.execute("BEGIN IMMEDIATE")
        for statement in self._format.schema.split(";"):
            database.execute(statement)
        begin(database)
        database.execute(f"PRAGMA application_id = {self._format.number}")
        database.execute(f"PRAGMA user_version = {self._format.version}")
        database.execute("COMMIT")

    def _check_version(self, database: sqlite3.Connection) -> None:
        if _pragma(database, "application_id") != self._format.number:
            raise Refused(f"{self.path}: is not a {self._format.what} of holdfast", remedy="name another folder")
        version = _pragma(database, "user_version")
        if version != self._format.version:
            raise Incompatible(
                f"{self.path}: the {self._format.what} has format version {version}, and this release reads version "
                f"{self._format.version}",
                remedy="use the release that wrote it",
            )

    def _configure(self, database: sqlite3.Connection) -> None:
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode not in ("wal", "memory"):
            raise Refused(f"{self.path}: its file system cannot be used by SQLite", remedy="name a folder on a disk")
        database.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
        database.execute(f"PRAGMA journal_size_limit = {LOG_PAGES * PAGE_BYTES}")
        if self.max_bytes is not None:
            database.execute(f"PRAGMA max_page_count = {max(1, self.max_bytes // PAGE_BYTES)}")

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            raise Unavailable(f"{self.path}: the {self._format.what} is closed")
        return self._connection

    def _has_room(self, database: sqlite3.Connection, adds: int) -> bool:
        # Data is written twice: to the log, and then to the file.
        if self.free_bytes() >= SPARE_BYTES + 2 * adds:
            return True
        return _pragma(database, "freelist_count") * PAGE_BYTES >= 2 * adds

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._explanation(error) from error
        except OSError as error:
            raise _explanation(str(self.path), error) from error

    def _explanation(self, error: sqlite3.Error) -> HoldfastError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            limit = "" if self.max_bytes is None else f", or it has reached its limit of {self.max_bytes} bytes"
            return Full(f"{self.path}: the disk is full{limit}", remedy="free some space; the data in it is not lost")
        if code in _DAMAGED:
            return Corrupt(f"{self.path}: the {self._format.what} is damaged: {error}", remedy=self._format.if_damaged)
        if code in _DENIED:
            return Denied(f"{self.path}: {error}", remedy="let the user of this process write to the folder")
        return Unavailable(f"{self.path}: {error}", remedy="free some space on the disk, or repair it")


@contextmanager
def owned_folder(option: str, path: Path, lock: str, busy: Refused) -> Iterator[None]:
    """Hold the folder at ``path``, which is created if it does not exist, for this process. Raises ``busy`` if another
    process holds it. ``option`` names its origin in errors; ``lock`` is the name of the lock file."""
    with explained(option, path):
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        _check_private(path)
        _check_file(path / lock)
        held = os.open(path / lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        yield
    finally:
        os.close(held)


@contextmanager
def explained(option: str, path: Path) -> Iterator[None]:
    """Errors of the operating system name the option and its path."""
    try:
        yield
    except FileNotFoundError as error:  # parents are created too, so this is a file system of the kernel such as /proc
        raise Invalid(f"{option} {path}: no folder can be created there", remedy="name a folder on a disk") from error
    except OSError as error:
        raise _explanation(f"{option} {path}", error) from error


def _check_private(folder: Path) -> None:
    about = folder.stat()
    if about.st_uid not in (os.geteuid(), 0) or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise Refused(
            f"{folder}: other users can write to it (owner {about.st_uid}, mode {stat.S_IMODE(about.st_mode):o})",
            remedy="let only the user of this process write to it (chmod 700), or name a folder in it: it is created",
        )


def _check_file(path: Path) -> None:
    """``Refused`` unless the file is missing or a regular file without another name."""
    with suppress(FileNotFoundError):
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1:
            raise Refused(
                f"{path}: is a link or not a regular file, and is not opened",
                remedy="find out who put it there and remove it; only this process may write to the folder",
            )


def _explanation(where: str, error: OSError) -> HoldfastError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Denied(f"{where}: {error.strerror}", remedy="let the user of this process write to the folder")
    if isinstance(error, NotADirectoryError | FileExistsError):
        return Invalid(f"{where}: {error.strerror}", remedy="name a folder")
    return Unavailable(f"{where}: {error.strerror or error}")


def _is_begun(database: sqlite3.Connection) -> bool:
    return _pragma(database, "schema_version") > 0


def _pragma(database: sqlite3.Connection, name: str) -> int:
    (value,) = database.execute(f"PRAGMA {name}").fetchone()
    return int(value)
