"""The durable queue of an agent: batches wait under their sequence numbers until they are accepted.

A SQLite database, ``DIR/queue.sqlite``, with a row for each batch: its range of sequence numbers, its frame, and, if it
is *parked*, the reason. One transaction adds a batch, advances the next sequence number and saves what changes in the
agent's state with the batch; it is durable before the frame may be sent. A batch leaves the queue by a transaction that
is not fsynced: if a power failure undoes it, the batch is sent again and accepted once.

``append`` raises ``Full`` if the batch does not fit; then nothing was queued and no sequence number was used.

A parked batch is one that collectors refuse as it is, or one whose bytes are damaged; only an operator may drop it. It
is sent again now and then: so the agent learns of an operator's resolution, and a batch that exceeded a limit is
accepted after the limit was raised. Other processes may list and drop parked batches while the agent runs.
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.codec import Document
from holdfast.base.errors import Incompatible, Invalid, NotFound, Refused
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.telemetry.database import Database, Format, owned_folder
from holdfast.telemetry.frame import ANY_SIZE, FrameInvalid, encode, inspect, pack
from holdfast.telemetry.identity import BatchIdentity, check_sender
from holdfast.telemetry.records import Record

FILE = "queue.sqlite"
LOCK = "queue.lock"
VERSION_1 = "queue.json"
"""A file of the format before this one."""
NEXT_SEQ = "next_seq"
"""The name of the next sequence number in the table of the state: so an append changes one page less."""
DAMAGED = "damaged"
"""The reason of a parked batch whose frame cannot be read."""
FORMAT = Format(
    what="queue",
    number=0x48465155,
    version=2,
    schema="""
CREATE TABLE queue (agent_id TEXT, boot_id TEXT, created_at_unix_ns INTEGER);
CREATE TABLE state (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE batches (
    seq_start INTEGER PRIMARY KEY, seq_end INTEGER, reason TEXT, detail TEXT, parked_at_unix_ns INTEGER, frame BLOB
);
CREATE INDEX parked ON batches (seq_start) WHERE reason IS NOT NULL""",
    if_damaged="keep a copy of the folder, save what `sqlite3 queue.sqlite .recover` can read, and start with an empty"
    " folder",
)
_log = logger("agent")


@dataclass(frozen=True, slots=True)
class Queued:
    identity: BatchIdentity
    frame: bytes


@dataclass(frozen=True, slots=True)
class Parked:
    identity: BatchIdentity
    frame_bytes: int
    reason: str
    """The reason in the collector's answer, or ``DAMAGED``."""
    detail: str
    parked_at_unix_ns: int


class ParkedBatches:
    """The parked batches of a queue, for the agent and for operators."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def all(self) -> list[Parked]:
        return await self._database.run(self._all)

    async def find(self, numbers: str) -> Parked:
        """The batch with these sequence numbers, such as ``120-140``."""
        start, _, end = numbers.partition("-")
        if not (start.isdecimal() and end.isdecimal()):
            raise Invalid(f"{numbers!r} are no sequence numbers", remedy="write them as in `parked list`: 120-140")
        for each in await self.all():
            if (each.identity.seq_start, each.identity.seq_end) == (int(start), int(end)):
                return each
        raise NotFound(f"no parked batch has the numbers {numbers}", remedy="see `holdfast agent parked list`")

    async def frame(self, parked: Parked) -> bytes:
        """``NotFound`` if it was dropped or accepted meanwhile."""
        return await self._database.run(self._frame, parked.identity)

    async def remove(self, parked: Parked) -> None:
        """Does nothing if it was removed meanwhile."""
        await self._database.run(self._remove, parked.identity.seq_start)

    def _all(self) -> list[Parked]:
        with self._database.read() as database:
            rows = database.execute(
                "SELECT agent_id, boot_id, seq_start, seq_end, length(frame), reason, detail, parked_at_unix_ns "
                "FROM batches, queue WHERE reason IS NOT NULL ORDER BY seq_start"
            ).fetchall()
        return [Parked(BatchIdentity(*row[:4]), *row[4:]) for row in rows]

    def _frame(self, identity: BatchIdentity) -> bytes:
        with self._database.read() as database:
            row = database.execute(
                "SELECT frame FROM batches WHERE seq_start = ? AND reason IS NOT NULL", (identity.seq_start,)
            ).fetchone()
        if row is None:
            raise NotFound(f"batch {identity} is not parked any more")
        return bytes(row[0])

    def _remove(self, seq_start: int) -> None:
        with self._database.write() as database:
            database.execute("DELETE FROM batches WHERE seq_start = ? AND reason IS NOT NULL", (seq_start,))


class Queue:
    """``load`` comes first. No other process may append to the database or remove batches that wait."""

    def __init__(self, database: Database, agent_id: str, ambient: Ambient) -> None:
        self.agent_id = check_sender(agent_id)
        self.boot_id = ""
        self.next_seq = 0
        self.state: Document = {}
        """What the agent has saved, by name."""
        self.waiting_records = 0
        """How many records are neither accepted nor parked."""
        self.parked = ParkedBatches(database)
        self._database = database
        self._ambient = ambient
        self._appending = asyncio.Lock()

    async def load(self) -> None:
        await self._database.run(self._load)

    async def close(self) -> None:
        await self._database.run(self._database.close)

    async def append(self, records: Sequence[Record], changes: Mapping[str, Any] | None = None) -> BatchIdentity:
        """Make a batch of these records, which never changes, and make it durable together with ``changes`` of the
        state. A name whose value is None is removed from the state. What is in the state already is not written."""
        async with self._appending:
            batch = pack(self.agent_id, self.boot_id, records, seq_start=self.next_seq)
            await self._database.run(self._append, Queued(batch.identity, encode(batch)), changes or {})
            return batch.identity

    async def save(self, changes: Mapping[str, Any]) -> None:
        """Make changes of the state durable without a batch."""
        await self._database.run(self._save, changes)

    async def read(self, after: int) -> Queued | None:
        """The first batch that waits and begins after this sequence number; None if there is none yet."""
        return await self._database.run(self._read, after)

    async def park(self, identity: BatchIdentity, reason: str, detail: str) -> None:
        await self._database.run(self._park, identity, reason, detail)

    async def remove(self, identity: BatchIdentity) -> None:
        """Remove a batch that was accepted."""
        await self._database.run(self._remove, identity)

    async def used_bytes(self) -> int:
        return await self._database.run(self._database.used_bytes)

    def _load(self) -> None:
        self._database.open(self._begin)
        with self._database.read() as database:
            owner, self.boot_id = database.execute("SELECT agent_id, boot_id FROM queue").fetchone()
            if owner != self.agent_id:
                raise Refused(
                    f"the queue is that of agent {owner}, not of {self.agent_id}",
                    remedy="use another folder for each agent",
                )
            self.state = {name: json.loads(value) for name, value in database.execute("SELECT * FROM state")}
            self.next_seq = self.state.pop(NEXT_SEQ, 0)
            (self.waiting_records,) = database.execute(
                "SELECT coalesce(sum(seq_end - seq_start + 1), 0) FROM batches WHERE reason IS NULL"
            ).fetchone()

    def _begin(self, database: sqlite3.Connection) -> None:
        ambient = self._ambient
        row = (self.agent_id, ambient.ids.unique(), ambient.clock.wall_ns())
        database.execute("INSERT INTO queue VALUES (?, ?, ?)", row)

    def _append(self, queued: Queued, changes: Mapping[str, Any]) -> None:
        identity = queued.identity
        with self._database.write(adds=len(queued.frame)) as database:
            row = (identity.seq_start, identity.seq_end, queued.frame)
            database.execute("INSERT INTO batches (seq_start, seq_end, frame) VALUES (?, ?, ?)", row)
            _write_state(database, {**self._differing(changes), NEXT_SEQ: identity.seq_end + 1})
        self.next_seq = identity.seq_end + 1
        self.waiting_records += identity.numbers
        self._apply(changes)

    def _save(self, changes: Mapping[str, Any]) -> None:
        with self._database.write() as database:
            _write_state(database, self._differing(changes))
        self._apply(changes)

    def _differing(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in changes.items() if value != self.state.get(name)}

    def _apply(self, changes: Mapping[str, Any]) -> None:
        state = {**self.state, **changes}
        self.state = {name: value for name, value in state.items() if value is not None}

    def _read(self, after: int) -> Queued | None:
        while True:
            with self._database.read() as database:
                row = database.execute(
                    "SELECT seq_start, seq_end, frame FROM batches "
                    "WHERE seq_start > ? AND reason IS NULL ORDER BY seq_start LIMIT 1",
                    (after,),
                ).fetchone()
            if row is None:
                return None
            after, seq_end, frame = row
            identity = BatchIdentity(self.agent_id, self.boot_id, after, seq_end)
            try:
                if inspect(frame, ANY_SIZE).identity == identity:
                    return Queued(identity, frame)
                problem = "its frame is that of another batch"
            except FrameInvalid as error:
                problem = str(error)
            _log.error("batch %s is damaged, and is parked: %s", identity, problem)
            self._park(identity, DAMAGED, problem)

    def _park(self, identity: BatchIdentity, reason: str, detail: str) -> None:
        with self._database.write(durable=False) as database:
            row = (reason, detail, self._ambient.clock.wall_ns(), identity.seq_start)
            database.execute(
                "UPDATE batches SET reason = ?, detail = ?, parked_at_unix_ns = ? WHERE seq_start = ?", row
            )
        self.waiting_records -= identity.numbers

    def _remove(self, identity: BatchIdentity) -> None:
        with self._database.write(durable=False) as database:
            database.execute("DELETE FROM batches WHERE seq_start = ?", (identity.seq_start,))
        self.waiting_records -= identity.numbers
        if not self.waiting_records:
            self._database.shrink()


def _write_state(database: sqlite3.Connection, changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if value is None:
            database.execute("DELETE FROM state WHERE name = ?", (name,))
        else:
            database.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, json.dumps(value)))


@asynccontextmanager
async def open_queue(
    folder: Path, agent_id: str, ambient: Ambient, *, max_bytes: int | None = None
) -> AsyncIterator[Queue]:
    """The queue in ``folder``, created if there is none, for this process. ``Refused`` if it is another agent's."""
    busy = Refused(f"{folder}: another agent uses this queue", remedy="stop it, or give each agent its own folder")
    with owned_folder("--queue", folder, LOCK, busy):
        if (folder / VERSION_1).exists():
            raise Incompatible(
                f"{folder}: the queue has format version 1, and this release reads version {FORMAT.version}",
                remedy="let the release that wrote it send all batches (`holdfast agent --once`), then name an empty"
                " folder",
            )
        queue = Queue(Database(folder / FILE, FORMAT, max_bytes=max_bytes), agent_id, ambient)
        try:
            await queue.load()
            yield queue
        finally:
            await queue.close()


@asynccontextmanager
async def open_parked(folder: Path) -> AsyncIterator[ParkedBatches]:
    """The parked batches of the queue in ``folder``, also while an agent uses it."""
    database = Database(folder / FILE, FORMAT)
    await database.run(database.open)
    try:
        yield ParkedBatches(database)
    finally:
        await database.run(database.close)
