"""The spool: batches that one collector has accepted on its own disk, until they are in the object store.

    pending/v2/{agent}.{boot}.{start}-{end}.lmbatch                    accepted here, not landed; the frame's bytes
    conflicts/v1/agent={hex}/boot={hex}/{start}-{end}/{sha256}.lmbatch other bytes, to be put on record in the store
    spool.json                                                         the spool's id
    reserve                                                            room for notes when the disk is full
    trial                                                              exists briefly: a test write

Beside these objects, in ``notes.sqlite``, is a note of each batch that has landed: one row in a database in WAL mode
with ``synchronous=FULL``, so a commit fsyncs the log. Notes are removed after ``ingest.spool_notes_s``. A lost note
costs one more landing: the store still has the manifest, and answers that the batch is a duplicate. So a database that
is damaged is an error that asks for its removal, and all notes may go when they alone fill the disk.

A batch is accepted when its pending file is durable; the time of the file is the time of acceptance in every answer, in
live state and in the manifest. All pending files are in one directory that is never removed, so acceptance takes two
fsyncs in sequence: of the bytes, and of the directory, which concurrent batches share.

Order of writes: a batch lands, is listed by time in the store, gets a note, and only then its pending file is removed.
Acceptance creates the pending file first and looks for the note after. So either the file or the note shows that an
identity is taken, across restarts too, without a lock; and a reader that reads pending files first and the lists of the
store after misses none. A crash in between leaves a pending file that lands again, which changes nothing. A batch does
not land while it is being accepted: its sender would get a duplicate, and nothing would act on the acceptance.

A note takes room on the disk before the pending file gives any back. So a reserve is kept: when the disk is full it is
removed to make room for notes, and no batch is accepted until it is back.

The store given must return certain outcomes (the local one does): there is no network here, and nothing to settle.
"""

import asyncio
import hashlib
import re
import sqlite3
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import blocking, finishing
from holdfast.base.clock import Clock
from holdfast.base.errors import Ambiguous, Corrupt, Denied, Incompatible, Invalid, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.local import LocalStore
from holdfast.objects.store import CREATE, OVERWRITE, Object, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.folder import locked, named_folder
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
    """What is remembered of batches that have landed.

    In the database at ``path``, which belongs to this process alone. ``load`` comes first."""

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


PENDING = "pending/v2/"
STAYS = f"{PENDING}stays"
"""Keeps the folder there when no batch waits: to make it again takes a sync for each folder above."""
CONFLICTS = "conflicts/v1/"
ABOUT = "spool.json"
RESERVE = "reserve"
TRIAL = "trial"
TRIAL_BYTES = 4 << 10
RESERVE_BYTES = 2 << 20
"""More than the log of the notes can grow to."""
FORMAT = "holdfast.spool"
VERSION = 3
FOLDER = "objects"
LOCK = "spool.lock"

_PENDING = re.compile(re.escape(PENDING) + r"([0-9a-f]+)\.([0-9a-f]+)\.(\d{20})-(\d{20})\.lmbatch")


@dataclass(frozen=True, slots=True)
class Spooled:
    """A batch that waits to land."""

    identity: BatchIdentity
    frame_bytes: int
    accepted_at_unix_ns: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The identity is taken, by bytes of this hash; ``landed`` is what stands in the object store."""

    frame_sha256: str
    accepted_at_unix_ns: int
    new: bool = False
    """It was free until now."""
    landed: AcceptedManifest | None = None
    body: bytes | None = None
    """The bytes, while they wait here."""


class Spool:
    def __init__(self, store: Store, notes: Notes) -> None:
        """``load`` comes first."""
        self._store = store
        self._notes = notes
        self._reserved = False
        """The reserve is there."""
        self._short = False
        """It is in use, or could not be had."""
        self._making_room = asyncio.Lock()
        self._refused_bytes = 0
        """Of the newest batch, if the disk did not take it."""
        self._taking: Counter[BatchIdentity] = Counter()
        """What is being accepted now."""
        self._count = 0
        self._changes = 0
        """How often something came or went."""

    async def load(self) -> None:
        about = await self._store.find(ABOUT)
        if about is not None:
            self._check_version(about)
        await self._store.put(STAYS, b"", CREATE)
        await self._notes.load()
        async for _ in self.pending():
            pass

    def __len__(self) -> int:
        """How many batches wait to land. A write that failed half-way is counted when they are next listed."""
        return self._count

    async def spool_id(self, ambient: Ambient) -> str:
        """The id under which an authority knows this spool; drawn when it is first asked for."""
        drawn = codec.stamp(
            {"spool_id": ambient.ids.unique()},
            format_name=FORMAT,
            version=VERSION,
            write_id=ambient.ids.write_id(),
        )
        await self._store.put(ABOUT, codec.encode(drawn), CREATE)
        return str(self._check_version(await self._store.get(ABOUT))["spool_id"])

    @staticmethod
    def _check_version(about: Object) -> dict[str, Any]:
        document = codec.decode(about.body, key=ABOUT)
        version = codec.expect(document, format_name=FORMAT, newest=VERSION, key=ABOUT)
        if version < VERSION:
            raise Incompatible(
                f"the spool has format version {version}, and this release reads version {VERSION}",
                remedy="let the release that made it land its batches, then name another folder",
            )
        return document

    async def take(self, submission: Submission) -> Taken:
        """Take the batch in, durably, unless its identity was taken before."""
        self._check_room()
        self._taking[submission.identity] += 1
        try:
            taken = await self._take(submission)
            self._refused_bytes = 0
            return taken
        except (Unavailable, Ambiguous, Denied):
            self._refused_bytes = len(submission.body)
            raise
        finally:
            self._taking[submission.identity] -= 1
            if not self._taking[submission.identity]:
                del self._taking[submission.identity]

    async def _take(self, submission: Submission) -> Taken:
        key = pending_key(submission.identity)
        taken = await self._landed(submission.identity)
        while taken is None:
            created = isinstance(await self._store.put(key, submission.body, CREATE), Written)
            # The look before may be out of date: it only spares files that would go again at once.
            taken = await self._landed(submission.identity)
            if taken is None:
                self._changed(int(created))
                found = await self._store.find(key)
                if found is not None and created:
                    return Taken(submission.frame_sha256, found.modified_ns, new=True)
                if found is not None:
                    taken = Taken(hashlib.sha256(found.body).hexdigest(), found.modified_ns, body=found.body)
            elif created:
                await self._keep_conflict(submission, taken.frame_sha256)
                await self._store.delete(key)
        await self._keep_conflict(submission, taken.frame_sha256)
        return taken

    async def read(self, identity: BatchIdentity) -> bytes:
        """The bytes of a batch that has not landed yet; ``NotFound`` if it has, or never was here."""
        return (await self._store.get(pending_key(identity))).body

    async def waiting(self, identity: BatchIdentity) -> Object | None:
        return await self._store.find(pending_key(identity))

    async def pending(self) -> AsyncIterator[Spooled]:
        """What was accepted and has not landed, by agent, boot and sequence number."""
        changes, count = self._changes, 0
        async for page in self._store.list(PENDING):
            for entry in page.entries:
                identity = _pending_in(entry.key)
                if identity is not None:
                    count += 1
                    yield Spooled(identity, entry.size, entry.modified_ns)
        if changes == self._changes and not self._taking:
            self._count = count

    async def to_land(self) -> AsyncIterator[Spooled]:
        """The same, without what is being accepted now."""
        async for spooled in self.pending():
            if spooled.identity not in self._taking:
                yield spooled

    async def conflicts(self) -> AsyncIterator[tuple[BatchIdentity, bytes]]:
        """Bytes that were refused here and are to be put on record, once the batch they conflict with has landed: then
        its pending file is gone."""
        async for key in self._store.keys(CONFLICTS):
            identity = layout.identity_in(key)
            if identity is not None and await self.waiting(identity) is None:
                yield identity, (await self._store.get(key)).body

    async def have_landed(self, manifests: Collection[AcceptedManifest]) -> None:
        """These stand in the object store. One may be that of other bytes, with the conflict on record there. One that
        could not leave the disk the last time has its note."""
        fresh = [each for each in manifests if not await self._noted(each)]
        try:
            await self._notes.add(fresh)
        except Unavailable:
            await self._make_room()
            await self._notes.add(fresh)
        await self._store.delete_many([pending_key(manifest.identity) for manifest in manifests])
        self._changed(-len(manifests))

    async def conflict_landed(self, identity: BatchIdentity, sha256: str) -> None:
        await self._store.delete(_conflict(identity, sha256))

    async def forget(self, before_ns: int) -> int:
        """Remove notes of what landed before then. A duplicate of it that comes later is found when it lands."""
        return await self._notes.forget(before_ns)

    async def keep_reserve(self) -> None:
        """Make sure that there is room for notes. If notes alone fill the disk, they are removed: the store has the
        manifests."""
        if self._reserved and not self._short:
            return
        try:
            await self._store.put(RESERVE, _incompressible(RESERVE_BYTES), CREATE)
        except Unavailable:
            self._short = True
            if not [one async for one in self.pending()]:
                await self._notes.clear()
            return
        self._reserved, self._short = True, False

    async def try_to_write(self) -> None:
        """Check whether batches can be taken: write as much as the newest refused one, and remove it."""
        self._check_room()
        await self._store.put(TRIAL, _incompressible(max(TRIAL_BYTES, self._refused_bytes)), OVERWRITE)
        await self._store.delete(TRIAL)

    def _changed(self, by: int) -> None:
        self._changes += by != 0
        self._count = max(0, self._count + by)

    def _check_room(self) -> None:
        if self._short:
            raise Unavailable("the disk of the spool is full, and what waits on it has to land first")

    async def _make_room(self) -> None:
        async with self._making_room:
            if not self._short:
                self._reserved, self._short = False, True
                await self._store.delete(RESERVE)

    async def _landed(self, identity: BatchIdentity) -> Taken | None:
        manifest = await self._notes.find(identity)
        return None if manifest is None else Taken(manifest.frame_sha256, manifest.accepted_at_unix_ns, landed=manifest)

    async def _noted(self, manifest: AcceptedManifest) -> bool:
        found = await self._landed(manifest.identity)
        return found is not None and found.frame_sha256 == manifest.frame_sha256

    async def _keep_conflict(self, submission: Submission, accepted_sha256: str) -> None:
        if submission.frame_sha256 != accepted_sha256:
            await self._store.put(_conflict(submission.identity, submission.frame_sha256), submission.body, CREATE)


@asynccontextmanager
async def open_spool(folder: Path, ambient: Ambient) -> AsyncIterator[Spool]:
    """The spool in ``folder``, for this process alone."""
    with _held(folder):
        notes = Notes(folder / FILE, ambient.clock)
        spool = Spool(LocalStore(folder / FOLDER, clock=ambient.clock), notes)
        try:
            await spool.load()
            yield spool
        finally:
            await notes.close()


def holds_spool(folder: Path) -> bool:
    """Whether there is one already. Makes nothing."""
    with named_folder("--spool", folder):
        try:
            return (folder / FOLDER / ABOUT).stat().st_size > 0
        except FileNotFoundError:
            return False


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    with named_folder("--spool", folder):
        folder.mkdir(parents=True, exist_ok=True)
    busy = Refused(
        f"{folder}: another collector uses this spool",
        remedy="end it first: with local_spool a store has one collector; several need a store of s3_manifest",
    )
    with locked("--spool", folder / LOCK, busy):
        yield


def pending_key(identity: BatchIdentity) -> str:
    names = f"{identity.agent_id.encode().hex()}.{identity.boot_id.encode().hex()}"
    return f"{PENDING}{names}.{identity.seq_start:020d}-{identity.seq_end:020d}.lmbatch"


def _pending_in(key: str) -> BatchIdentity | None:
    """The batch whose key this is; None if it is no batch's."""
    found = _PENDING.fullmatch(key)
    if found is None:
        return None
    agent, boot, start, end = found.groups()
    try:
        return BatchIdentity(bytes.fromhex(agent).decode(), bytes.fromhex(boot).decode(), int(start), int(end))
    except (ValueError, Invalid):
        return None


def _conflict(identity: BatchIdentity, sha256: str) -> str:
    return f"{CONFLICTS}{layout.identity_path(identity)}/{sha256}.lmbatch"


@lru_cache(maxsize=1)
def _incompressible(size: int) -> bytes:
    """Bytes that a compressing file system cannot store in less room."""
    return hashlib.shake_256(b"holdfast").digest(size)
