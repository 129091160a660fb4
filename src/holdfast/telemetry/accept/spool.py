"""The spool: batches that one collector has accepted on its own disk, until they are in the object store.

A SQLite database, ``DIR/spool.sqlite``. A batch is accepted when the transaction that inserts it is durable; one
transaction takes all batches that arrive at the same time. The table ``waiting`` has the frames of batches that have
not landed in the store. The table ``batches`` has every identity that is taken, also after its batch has landed, for
``ingest.spool_notes_s``. If such a row is missing, a late duplicate lands once more: the store still has the manifest,
and answers that the batch is a duplicate.

Other bytes under an identity that is taken are kept in ``refused``, until their conflict is recorded in the store.

Order of writes: a batch is in the store, and can be found there by time, before its frame is removed here. So a reader
that reads the spool first and the store after it misses no batch.
"""

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.errors import Incompatible, Refused
from holdfast.base.ids import Ambient
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.database import Database, Format, explained, owned_folder
from holdfast.telemetry.identity import BatchIdentity

FILE = "spool.sqlite"
LOCK = "spool.lock"
VERSION_3 = "objects/spool.json"
"""A file of the formats before this one."""
COMMIT_BYTES = 8 << 20
"""A transaction takes no further batch beyond this size."""
FORGET_AT_ONCE = 10_000
_FIND = "SELECT * FROM batches WHERE agent_id = ? AND boot_id = ? AND seq_start = ? AND seq_end = ?"
_INSERT = "INSERT OR REPLACE INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_FORGET = "DELETE FROM batches WHERE id IN (SELECT id FROM batches WHERE landed_at_ns < ? LIMIT ?)"
FORMAT = Format(
    what="spool",
    number=0x48465350,
    version=4,
    schema="""
CREATE TABLE spool (spool_id TEXT, trial INTEGER);
CREATE TABLE batches (
    id INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT, boot_id TEXT, seq_start INTEGER, seq_end INTEGER,
    frame_sha256 BLOB, frame_bytes INTEGER, accepted_at_unix_ns INTEGER, collector_id TEXT,
    wire_version INTEGER, frame_version INTEGER, records TEXT, from_ns INTEGER, until_ns INTEGER, landed_at_ns INTEGER,
    UNIQUE (agent_id, boot_id, seq_start, seq_end)
);
CREATE INDEX landed ON batches (landed_at_ns);
CREATE TABLE waiting (id INTEGER PRIMARY KEY, attempts INTEGER, frame BLOB);
CREATE INDEX attempts ON waiting (attempts, id);
CREATE TABLE refused (
    id INTEGER PRIMARY KEY, agent_id TEXT, boot_id TEXT, seq_start INTEGER, seq_end INTEGER,
    frame_sha256 BLOB, frame BLOB,
    UNIQUE (agent_id, boot_id, seq_start, seq_end, frame_sha256)
)""",
    if_damaged="keep a copy of the folder, save what `sqlite3 spool.sqlite .recover` can read, and start with an empty"
    " folder (`holdfast authority promote --spool DIR`)",
)


@dataclass(frozen=True, slots=True)
class Spooled:
    """A batch that waits to land."""

    id: int
    manifest: AcceptedManifest
    """The manifest that the batch will get once it lands."""


@dataclass(frozen=True, slots=True)
class Conflicting:
    """Other bytes under an identity that is taken."""

    id: int
    identity: BatchIdentity
    frame_sha256: str


@dataclass(frozen=True, slots=True)
class Taken:
    """The batch that holds an identity."""

    manifest: AcceptedManifest
    new: bool
    """Whether the identity was free until now."""


@dataclass(frozen=True, slots=True)
class _Submitted:
    manifest: AcceptedManifest
    frame: bytes
    taken: "asyncio.Future[Taken]"


class Spool:
    """``load`` comes first."""

    def __init__(self, database: Database, ambient: Ambient) -> None:
        self.spool_id = ""
        """The id under which an authority knows this spool."""
        self._database = database
        self._ambient = ambient
        self._count = 0
        self._submitted: deque[_Submitted] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._refused_bytes = 0
        """Size of the newest batches if the disk did not take them, otherwise 0."""

    async def load(self) -> None:
        await self._database.run(self._load)

    async def close(self) -> None:
        await self._database.run(self._database.close)

    def __len__(self) -> int:
        """How many batches wait to land."""
        return self._count

    async def accept(self, manifest: AcceptedManifest, frame: bytes) -> Taken:
        """Accept a batch, durably, unless its identity is taken. Those that come while a transaction is committed share
        the next one."""
        taken: asyncio.Future[Taken] = asyncio.get_running_loop().create_future()
        self._submitted.append(_Submitted(manifest, frame, taken))
        if self._committing is None:
            # A task of its own: cancelling one caller must not interrupt the transaction of others.
            self._committing = asyncio.create_task(self._commit(), name="spool")
        return await taken

    async def to_land(self, most: int) -> list[Spooled]:
        """Batches that wait: those that failed to land least often first, then by age."""
        query = "SELECT batches.* FROM waiting JOIN batches USING (id) ORDER BY attempts, id LIMIT ?"
        return await self._database.run(self._waiting, query, most)

    async def newest(self, most: int, *, since_ns: int) -> list[Spooled]:
        """Batches that wait and were accepted since then, the newest first."""
        query = (
            "SELECT batches.* FROM waiting JOIN batches USING (id) WHERE accepted_at_unix_ns >= ? "
            "ORDER BY accepted_at_unix_ns DESC LIMIT ?"
        )
        return await self._database.run(self._waiting, query, since_ns, most)

    async def frame(self, spooled: Spooled) -> bytes | None:
        """None if the batch does not wait any more."""
        return await self._database.run(self._frame, "SELECT frame FROM waiting WHERE id = ?", spooled.id)

    async def landed(self, landed: Sequence[tuple[Spooled, AcceptedManifest]]) -> None:
        """These batches are in the object store, each under this manifest. It may be that of other bytes, whose
        conflict is recorded there."""
        if landed:
            await self._database.run(self._landed, landed)

    async def failed(self, batches: Sequence[Spooled]) -> None:
        """These batches could not land."""
        if batches:
            await self._database.run(self._failed, batches)

    async def stuck(self) -> int:
        """How many batches wait although they were tried."""
        return await self._database.run(self._stuck)

    async def refused(self) -> list[Conflicting]:
        """Refused bytes, but not those under the identity of a batch that waits."""
        return await self._database.run(self._refused)

    async def refused_frame(self, refused: Conflicting) -> bytes:
        return await self._database.run(self._frame, "SELECT frame FROM refused WHERE id = ?", refused.id) or b""

    async def remove_refused(self, refused: Conflicting) -> None:
        """Call this when the conflict is recorded in the store."""
        await self._database.run(self._remove_refused, refused)

    async def forget(self, before_ns: int) -> int:
        """Remove the rows of batches that landed before then; of all that landed, if the disk is full."""
        return await self._database.run(self._forget, before_ns)

    async def is_full(self) -> bool:
        return await self._database.run(self._database.is_full)

    async def try_to_write(self) -> None:
        """Check that batches can be accepted, also one as large as the newest that the disk did not take."""
        await self._database.run(self._try_to_write)

    def _load(self) -> None:
        self._database.open(self._begin)
        with self._database.read() as database:
            (self.spool_id,) = database.execute("SELECT spool_id FROM spool").fetchone()
            (self._count,) = database.execute("SELECT count(*) FROM waiting").fetchone()

    def _begin(self, database: sqlite3.Connection) -> None:
        database.execute("INSERT INTO spool VALUES (?, 0)", (self._ambient.ids.unique(),))

    async def _commit(self) -> None:
        """Commit until nothing is submitted any more."""
        try:
            while self._submitted:
                group = [self._submitted.popleft()]
                size = len(group[0].frame)
                while self._submitted and size + len(self._submitted[0].frame) <= COMMIT_BYTES:
                    group.append(self._submitted.popleft())
                    size += len(group[-1].frame)
                await self._commit_group(group, size)
        finally:
            self._committing = None

    async def _commit_group(self, group: "list[_Submitted]", size: int) -> None:
        outcomes: Sequence[Taken | Exception]
        try:
            outcomes = await self._database.run(self._accept, group, size)
            self._refused_bytes = 0
        except Exception as error:  # noqa: BLE001  # whatever it is, the callers raise it
            self._refused_bytes = size
            outcomes = [error] * len(group)
        for submitted, outcome in zip(group, outcomes, strict=True):
            if submitted.taken.done():
                continue  # its caller was cancelled
            if isinstance(outcome, Exception):
                submitted.taken.set_exception(outcome)
            else:
                submitted.taken.set_result(outcome)

    def _accept(self, group: "list[_Submitted]", size: int) -> list[Taken]:
        with self._database.write(adds=size) as database:
            taken = [_accept_one(database, each.manifest, each.frame) for each in group]
        self._count += sum(each.new for each in taken)
        return taken

    def _waiting(self, query: str, *values: int) -> list[Spooled]:
        with self._database.read() as database:
            return [Spooled(row[0], _manifest(row)) for row in database.execute(query, values)]

    def _frame(self, query: str, number: int) -> bytes | None:
        with self._database.read() as database:
            row = database.execute(query, (number,)).fetchone()
        return None if row is None else row[0]

    def _landed(self, landed: Sequence[tuple[Spooled, AcceptedManifest]]) -> None:
        now = self._ambient.clock.wall_ns()
        gone = 0
        with self._database.write() as database:
            for spooled, manifest in landed:
                gone += database.execute("DELETE FROM waiting WHERE id = ?", (spooled.id,)).rowcount
                database.execute(_INSERT, (spooled.id, *_row(manifest), now))
        self._count -= gone

    def _failed(self, batches: Sequence[Spooled]) -> None:
        with self._database.write(durable=False) as database:
            for each in batches:
                database.execute("UPDATE waiting SET attempts = attempts + 1 WHERE id = ?", (each.id,))

    def _stuck(self) -> int:
        with self._database.read() as database:
            return int(database.execute("SELECT count(*) FROM waiting WHERE attempts > 0").fetchone()[0])

    def _refused(self) -> list[Conflicting]:
        query = (
            "SELECT refused.id, agent_id, boot_id, seq_start, seq_end, refused.frame_sha256 "
            "FROM refused LEFT JOIN batches USING (agent_id, boot_id, seq_start, seq_end) "
            "WHERE batches.id IS NULL OR landed_at_ns IS NOT NULL"
        )
        with self._database.read() as database:
            rows = database.execute(query).fetchall()
        return [Conflicting(row[0], BatchIdentity(*row[1:5]), row[5].hex()) for row in rows]

    def _remove_refused(self, refused: Conflicting) -> None:
        with self._database.write() as database:
            database.execute("DELETE FROM refused WHERE id = ?", (refused.id,))

    def _forget(self, before_ns: int) -> int:
        if self._database.is_full():
            before_ns = self._ambient.clock.wall_ns()
        gone = 0
        while True:
            with self._database.write(durable=False) as database:
                count = database.execute(_FORGET, (before_ns, FORGET_AT_ONCE)).rowcount
            gone += count
            if count < FORGET_AT_ONCE:
                return gone

    def _try_to_write(self) -> None:
        with self._database.write(adds=max(1, self._refused_bytes)) as database:
            database.execute("UPDATE spool SET trial = trial + 1")


def _accept_one(database: sqlite3.Connection, manifest: AcceptedManifest, frame: bytes) -> Taken:
    identity = manifest.identity
    key = (identity.agent_id, identity.boot_id, identity.seq_start, identity.seq_end)
    found = database.execute(_FIND, key).fetchone()
    if found is None:
        number = database.execute(_INSERT, (None, *_row(manifest), None)).lastrowid
        database.execute("INSERT INTO waiting VALUES (?, 0, ?)", (number, frame))
        return Taken(manifest, new=True)
    taken = _manifest(found)
    if taken.frame_sha256 != manifest.frame_sha256:
        sha256 = bytes.fromhex(manifest.frame_sha256)
        database.execute("INSERT OR IGNORE INTO refused VALUES (NULL, ?, ?, ?, ?, ?, ?)", (*key, sha256, frame))
    return Taken(taken, new=False)


def _row(manifest: AcceptedManifest) -> tuple[object, ...]:
    """The columns of ``batches`` between ``id`` and ``landed_at_ns``."""
    identity, limits = manifest.identity, manifest.limits
    return (
        identity.agent_id,
        identity.boot_id,
        identity.seq_start,
        identity.seq_end,
        bytes.fromhex(manifest.frame_sha256),
        manifest.frame_bytes,
        manifest.accepted_at_unix_ns,
        manifest.collector_id,
        manifest.wire_version,
        manifest.frame_version,
        json.dumps(dict(manifest.records)),
        limits.from_ns,
        limits.until_ns,
    )


def _manifest(row: Sequence[Any]) -> AcceptedManifest:
    """From all columns of ``batches``."""
    sha256, size, accepted_at, collector_id, wire_version, frame_version, records, from_ns, until_ns = row[5:14]
    return AcceptedManifest(
        identity=BatchIdentity(*row[1:5]),
        frame_sha256=sha256.hex(),
        frame_bytes=size,
        raw_blob_key=layout.blob_key(sha256.hex()),
        accepted_at_unix_ns=accepted_at,
        collector_id=collector_id,
        wire_version=wire_version,
        frame_version=frame_version,
        records=json.loads(records),
        records_from_unix_ns=from_ns,
        records_until_unix_ns=until_ns,
    )


@asynccontextmanager
async def open_spool(folder: Path, ambient: Ambient) -> AsyncIterator[Spool]:
    """The spool in ``folder``, created if there is none, for this process."""
    busy = Refused(
        f"{folder}: another collector uses this spool",
        remedy="end it first: with local_spool a store has one collector; several need a store of s3_manifest",
    )
    with owned_folder("--spool", folder, LOCK, busy):
        if (folder / VERSION_3).exists():
            raise Incompatible(
                f"{folder}: the spool has a format version before {FORMAT.version}",
                remedy="let the release that wrote it land its batches, then name another folder",
            )
        spool = Spool(Database(folder / FILE, FORMAT), ambient)
        try:
            await spool.load()
            yield spool
        finally:
            await spool.close()


def holds_spool(folder: Path) -> bool:
    """Whether there is one already. Makes nothing."""
    with explained("--spool", folder):
        try:
            return (folder / FILE).stat().st_size > 0
        except FileNotFoundError:
            return False
