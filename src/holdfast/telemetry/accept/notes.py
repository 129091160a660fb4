"""What a spool remembers of batches that have landed: one row per batch in a SQLite database, ``notes.sqlite``.

A note is durable when ``add`` returns: the database is in WAL mode with ``synchronous=FULL``, so a commit fsyncs the
log. Notes are read back after a restart and removed after ``ingest.spool_notes_s``. A lost note costs one more landing:
the store still has the manifest, and answers that the batch is a duplicate. So a database that is damaged is an error
that asks for its removal, and ``clear`` may drop all notes when they alone fill the disk.

Errors: ``Unavailable`` if the disk is full or fails, without effect on the notes that are there; ``Corrupt`` if the
database is damaged.
"""

import hashlib
import sqlite3
import struct
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.base.aio import blocking, finishing
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, Invalid, Unavailable
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.identity import BatchIdentity

FILE = "notes.sqlite"
_LOG_SUFFIX = "-wal"
_WAL_PAGES = 200
"""Pages of 4 KiB after which the log goes into the database: the log takes about a megabyte at most."""
_DELETE_AT_ONCE = 10_000
_INTEGER_MAX = 2**63 - 1
"""A manifest of another writer may hold any number; larger ones are stored as this."""
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

_KEY = struct.Struct(">16sQQ")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS notes (
    identity BLOB PRIMARY KEY, frame_sha256 BLOB NOT NULL, frame_bytes INTEGER NOT NULL,
    accepted_at_unix_ns INTEGER NOT NULL, landed_at_ns INTEGER NOT NULL, collector_id TEXT NOT NULL,
    wire_version INTEGER NOT NULL, frame_version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS notes_landed ON notes (landed_at_ns);
"""
_FIND = """
SELECT frame_sha256, frame_bytes, accepted_at_unix_ns, collector_id, wire_version, frame_version
FROM notes WHERE identity = ?
"""
_FORGET = """
DELETE FROM notes WHERE identity IN (
    SELECT identity FROM notes WHERE landed_at_ns < ? OR landed_at_ns > ? LIMIT ?
)
"""


class Notes:
    """In the database at ``path``, which belongs to this process alone. ``load`` comes first."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None

    async def load(self) -> None:
        await finishing(self._load)

    async def close(self) -> None:
        await finishing(self._close)

    async def find(self, identity: BatchIdentity) -> AcceptedManifest | None:
        """What landed under this identity, if it is remembered: its manifest, as far as a note has it."""
        row = await blocking(self._find, _key_of(identity))
        if row is None:
            return None
        sha256, size, accepted_at, collector_id, wire_version, frame_version = row
        return AcceptedManifest(
            identity=identity,
            frame_sha256=sha256.hex(),
            frame_bytes=size,
            raw_blob_key=layout.blob_key(sha256.hex()),
            accepted_at_unix_ns=accepted_at,
            collector_id=collector_id,
            wire_version=wire_version,
            frame_version=frame_version,
        )

    async def add(self, manifests: Collection[AcceptedManifest]) -> None:
        """Remember that these have landed: all of them, or none if it fails."""
        if manifests:
            now = self._clock.wall_ns()
            await finishing(self._add, [_row_of(manifest, now) for manifest in manifests])

    async def forget(self, before_ns: int) -> int:
        """Remove the notes of what landed before then; how many. A note may be dated in the future, if the clock was
        wrong: those as far ahead of now as ``before_ns`` is behind it are removed too."""
        now = self._clock.wall_ns()
        return await finishing(self._forget, before_ns, 2 * now - before_ns)

    async def clear(self) -> None:
        """Remove all notes and give their room on the disk back."""
        await finishing(self._clear)

    def _connect(self) -> sqlite3.Connection:
        # The lock keeps threads apart.
        database = sqlite3.connect(self._path, check_same_thread=False)
        # Exclusive locking needs no shared memory beside the log, which could not grow on a full disk.
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA wal_autocheckpoint = {_WAL_PAGES}")
        database.execute(f"PRAGMA journal_size_limit = {_WAL_PAGES * 4096}")
        return database

    def _load(self) -> None:
        with self._lock, self._explained():
            self._database = self._connect()
            self._database.executescript(_SCHEMA)

    def _close(self) -> None:
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _find(self, key: bytes) -> tuple[bytes, int, int, str, int, int] | None:
        with self._transaction() as database:
            row: tuple[bytes, int, int, str, int, int] | None = database.execute(_FIND, (key,)).fetchone()
            return row

    def _add(self, rows: list[tuple[object, ...]]) -> None:
        with self._transaction() as database:
            database.executemany("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _forget(self, before_ns: int, after_ns: int) -> int:
        bounds = _bounded(before_ns), _bounded(after_ns), _DELETE_AT_ONCE
        gone = 0
        while True:
            with self._transaction() as database:
                count = database.execute(_FORGET, bounds).rowcount
            gone += count
            if count < _DELETE_AT_ONCE:
                return gone

    def _clear(self) -> None:
        self._close()
        for suffix in ("", _LOG_SUFFIX):
            Path(f"{self._path}{suffix}").unlink(missing_ok=True)
        self._load()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits at the end of the block, or rolls back at an error."""
        with self._lock, self._explained():
            if self._database is None:
                raise Unavailable(f"{self._path}: the notes of the spool are closed")
            with self._database:
                yield self._database

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _DAMAGED:
                raise Corrupt(
                    f"{self._path}: the notes of the spool are damaged: {error}",
                    remedy="remove this file and those whose names begin with it: the store finds duplicates by itself",
                ) from error
            raise Unavailable(f"{self._path}: {error}", remedy="free some space on the disk, or repair it") from error


def check_noteworthy(manifest: AcceptedManifest) -> AcceptedManifest:
    """The manifest, if a note can hold it; ``Corrupt`` if its hash is not one."""
    try:
        layout.check_hash(manifest.frame_sha256)
    except Invalid as error:
        raise Corrupt(f"{manifest.key}: frame_sha256: {error}") from error
    return manifest


def _key_of(identity: BatchIdentity) -> bytes:
    """Batches of one source are neighbours in the order of their numbers, so that notes written together are too."""
    source = hashlib.sha256(f"{identity.agent_id}\x00{identity.boot_id}".encode()).digest()[:16]
    return _KEY.pack(source, identity.seq_start, identity.seq_end)


def _row_of(manifest: AcceptedManifest, landed_at_ns: int) -> tuple[object, ...]:
    return (
        _key_of(manifest.identity),
        bytes.fromhex(manifest.frame_sha256),
        _bounded(manifest.frame_bytes),
        _bounded(manifest.accepted_at_unix_ns),
        _bounded(landed_at_ns),
        manifest.collector_id,
        _bounded(manifest.wire_version),
        _bounded(manifest.frame_version),
    )


def _bounded(number: int) -> int:
    return max(-_INTEGER_MAX, min(number, _INTEGER_MAX))
