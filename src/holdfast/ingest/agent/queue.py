"""The durable queue of an agent: what was appended stays, in its order and under its numbers, until it is accepted.

    queue.json             whose queue this is: agent id and boot id, drawn once and kept
    {first seq}.segment    entries (see ``segment``); only the newest grows, only the oldest are removed
    cursor.json            up to where everything is accepted or parked, and totals that must not run backwards
    {start}-{end}.parked   batches outside the order (see ``parked``)
    queue.reserve          some room for the day on which the disk is full: accepted batches can go only after a new
                           segment was begun

Order of writes, which is the whole of its safety: an entry is durable before anybody may send its frame; a parked copy
is durable before the cursor passes its original; a new segment, with the state, is durable before an old one goes. The
cursor may be lost at any time: batches are then sent again, and are duplicates.

``append`` gives ``QueueFull`` if the batch does not fit, and then nothing was queued and no number was used.
"""

import asyncio
import builtins
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.ingest.agent.entry import Entry
from holdfast.ingest.agent.folder import LOCK, Folder
from holdfast.ingest.agent.parked import PARKED, parked_names
from holdfast.ingest.agent.segment import Damage, Found, Segment, first_seq_of, is_whole, read_at, scan
from holdfast.ingest.frame import ANY_SIZE, FrameInvalid, Identity, encode, inspect, pack
from holdfast.ingest.identity import check_sender
from holdfast.ingest.records import Record

ABOUT = "queue.json"
CURSOR = "cursor.json"
RESERVE = "queue.reserve"
_BALLAST = hashlib.shake_256(b"no file system makes this any shorter").digest(16 << 10)
FORMAT = "holdfast.agent_queue"
VERSION = 1
MOST_RECORDS = 1 << 20
"""More than any batch holds."""
DAMAGED = ".damaged"
CHANGES = "changes"
"""In a note: parts of the state of which only what changed is told. None takes an element away."""
_log = logger("agent")


class QueueFull(Unavailable):
    """There is no room for this batch. It was not queued."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    max_bytes: int = 1 << 30
    """Of segments and parked batches together."""
    segment_bytes: int = 1 << 20
    """A segment that is as large as this is followed by another."""
    tidy_bytes: int = 256 << 10
    """A segment whose batches are all accepted is given up from this size on."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A batch that waits. ``after`` is where the next one is."""

    identity: Identity
    frame: bytes
    at: Position
    after: Position


class Queue:
    """Open one with ``open_queue``. The folder must be this process's alone."""

    def __init__(self, folder: Folder, options: QueueOptions, agent_id: str, boot_id: str) -> None:
        self.folder = folder
        self.options = options
        self.agent_id = agent_id
        self.boot_id = boot_id
        self.next_seq = 0
        self.state: Document = {}
        """What the notes of all entries add up to."""
        self.totals: dict[str, int] = {}
        """Counts that are kept with the cursor: what was dropped, what was damaged."""
        self.cursor = Position(0, 0)
        self.cursor_seq = 0
        self.parked_bytes = 0
        self._segments: list[Segment] = []
        self._lock = asyncio.Lock()

    @property
    def bytes(self) -> int:
        return sum(segment.size for segment in self._segments) + self.parked_bytes

    @property
    def waiting_records(self) -> int:
        """How many numbers are given and not yet accepted or parked."""
        return max(0, self.next_seq - self.cursor_seq)

    async def append(self, records: Sequence[Record], note: Mapping[str, object] | None = None) -> Identity:
        """Cut a batch of these records, for ever, and make it durable together with ``note``."""
        async with self._lock:
            batch = pack(self.agent_id, self.boot_id, records, seq_start=self.next_seq)
            note = dict(note or {})
            data = Entry(encode(batch), note).encode()
            try:
                await self._write(data)
            except Unavailable:
                # What is accepted already stays on disk while it does not hurt, and here it does.
                if not await self._give_way():
                    raise
                await self._write(data)
            self.next_seq = batch.identity.seq_end + 1
            fold(self.state, note)
            return batch.identity

    async def _write(self, data: builtins.bytes) -> None:
        if self.bytes + len(data) > self.options.max_bytes:
            raise QueueFull(
                f"the queue of {self.agent_id} holds {self.bytes} bytes of at most {self.options.max_bytes}",
                remedy="bring the collectors back, resolve parked batches, or raise agent.queue_max_bytes",
            )
        newest = self._segments[-1]
        # Small enough that a queue with little room has several: the oldest goes while the others wait.
        if newest.size >= min(self.options.segment_bytes, self.options.max_bytes // 8):
            newest = await self._roll()
        await self.folder.append(newest.name, newest.size, data)
        newest.size += len(data)

    async def read(self, at: Position) -> Queued | None:
        """The batch at ``at``, or the first one after it; None if there is none yet."""
        oldest = self._segments[0].first_seq
        if at.segment < oldest:
            at = Position(oldest, 0)  # the segment of this position has gone, with all its batches
        while (segment := self._segment_of(at)) is not None:
            found = await read_at(self.folder, segment.name, at.offset, segment.size)
            match found:
                case None:
                    following = self._following(segment)
                    if following is None:
                        return None
                    at = Position(following.first_seq, 0)
                case Damage(start, end):
                    await self._set_aside(segment, start, end)
                    at = Position(segment.first_seq, end)
                case Found(_, end, entry):
                    after = Position(segment.first_seq, end)
                    if entry.frame:
                        return Queued(_identity(segment.name, entry.frame), entry.frame, at, after)
                    at = after
        return None

    async def advance(self, to: Position, next_seq: int) -> None:
        """Everything before ``to`` is accepted or parked."""
        async with self._lock:
            self.cursor, self.cursor_seq = max(self.cursor, to), max(self.cursor_seq, next_seq)
            await self._tidy()
            await self.save_cursor()

    async def save_cursor(self) -> None:
        """Not forced to disk: to lose it costs duplicates, not batches. A full disk keeps the old one."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "segment": self.cursor.segment,
            "offset": self.cursor.offset,
            "seq": self.cursor_seq,
            "totals": self.totals,
        }
        try:
            await self.folder.replace(CURSOR, codec.encode(document), durable=False)
        except Unavailable as error:
            _log.warning("the cursor could not be saved: %s", error)

    async def look_at_parked(self) -> int:
        """How many batches are parked. Operators drop them behind our back, so their bytes are counted anew."""
        names = await parked_names(self.folder)
        sizes = [await self.folder.size(name) or 0 for name in names]
        self.parked_bytes = sum(sizes)
        return len(names)

    def count(self, name: str, number: int) -> None:
        self.totals[name] = self.totals.get(name, 0) + number

    async def _give_way(self) -> bool:
        """Give up a newest segment whose batches are all accepted; whether there was one."""
        newest = self._segments[-1]
        if self.cursor != Position(newest.first_seq, newest.size) or newest.first_seq == self.next_seq:
            return False
        try:
            fresh = await self._roll_somehow()
        except Unavailable as error:
            _log.warning("no new segment can be begun yet: %s", error)
            return False
        self.cursor = Position(fresh.first_seq, fresh.size)
        await self._remove_passed()
        await self._keep_reserve()
        await self.save_cursor()
        return True

    async def _roll_somehow(self) -> Segment:
        """On a disk that is full to the last byte the reserve makes room for the state, which frees the rest."""
        try:
            return await self._roll()
        except Unavailable:
            await self.use_reserve()
            return await self._roll()

    async def use_reserve(self) -> None:
        """Make some room on a full disk, for what frees more."""
        await self.folder.remove(RESERVE)

    async def _keep_reserve(self) -> None:
        if await self.folder.size(RESERVE) is None:
            with suppress(Unavailable):  # then there is none, until there is room
                await self.folder.replace(RESERVE, _BALLAST, durable=False)

    async def _tidy(self) -> None:
        if self._segments[-1].size >= self.options.tidy_bytes:
            await self._give_way()
        await self._remove_passed()

    async def _remove_passed(self) -> None:
        while self._segments[0].first_seq < self.cursor.segment:
            await self.folder.remove(self._segments[0].name)
            del self._segments[0]

    async def _roll(self) -> Segment:
        fresh = Segment(self.next_seq, 0)
        data = Entry(b"", {"state": self.state, "totals": self.totals}).encode()
        await self.folder.append(fresh.name, 0, data)
        fresh.size = len(data)
        self._segments.append(fresh)
        return fresh

    async def _set_aside(self, segment: Segment, start: int, end: int) -> None:
        """Damage is kept for whoever may read more of it than we can, and passed over."""
        data = await self.folder.read(segment.name, start, end - start) or b""
        name = f"{segment.first_seq:020d}-{start}{DAMAGED}"
        if await self.folder.size(name) is None:
            self.count("damaged_bytes", end - start)
            _log.error("%s: %d bytes at %d cannot be read; they are kept as %s", segment.name, end - start, start, name)
            await self.folder.replace(name, data)

    def _segment_of(self, at: Position) -> Segment | None:
        return next((each for each in self._segments if each.first_seq == at.segment), None)

    def _following(self, segment: Segment) -> Segment | None:
        return next((each for each in self._segments if each.first_seq > segment.first_seq), None)

    async def load(self) -> None:
        """Read what earlier lives have left: the names, the newest segment, and the cursor."""
        names = await self.folder.names()
        for name in names:
            size = await self.folder.size(name) or 0
            first = first_seq_of(name)
            if first is not None:
                self._segments.append(Segment(first, size))
            elif name.endswith(PARKED):
                self.parked_bytes += size
        given = 0
        while self._segments and not await self._load_newest(self._segments[-1]):
            given = max(given, await self._give_up(self._segments.pop()))
        self.next_seq = max(self.next_seq, given)
        if not self._segments:
            await self._roll()
        await self._load_cursor()
        await self._keep_reserve()

    async def _give_up(self, segment: Segment) -> int:
        """Begun and not finished, most likely; but bytes that nobody can read are not ours to throw away. The first
        number that was surely not given in it."""
        data = await self.folder.read(segment.name) or b""
        if data:
            await self.folder.replace(f"{segment.name}{DAMAGED}", data)
        await self.folder.remove(segment.name)
        return segment.first_seq + (MOST_RECORDS if is_whole(data) else 0)

    async def _load_newest(self, newest: Segment) -> bool:
        """Whether anything stands in it. A segment that was begun and not finished is none."""
        await self.folder.fsync(newest.name)
        data = await self.folder.read(newest.name) or b""
        end = 0
        next_seq = newest.first_seq
        state: Document = {}
        totals: dict[str, int] = {}
        for found in scan(data):
            end = found.end
            if isinstance(found, Damage):
                continue
            if found.entry.frame:
                next_seq = _identity(newest.name, found.entry.frame).seq_end + 1
                fold(state, found.entry.note)
            else:
                state, totals = dict(found.entry.note.get("state", {})), dict(found.entry.note.get("totals", {}))
        if end == 0:
            return False
        newest.size = end
        self.next_seq, self.state, self.totals = next_seq, state, totals
        if is_whole(data[end:]):
            await self._pass_over(newest, data[end:])
        elif end < len(data):
            await self.folder.append(newest.name, end, b"")
        return True

    async def _pass_over(self, newest: Segment, damaged: builtins.bytes) -> None:
        """The last entry is all there and not what was written, so it may have been durable and sent before it was
        damaged. Its numbers are not given again, and it is set aside like any damage."""
        at, newest.size = newest.size, newest.size + len(damaged)
        await self._set_aside(newest, at, newest.size)
        self.next_seq += MOST_RECORDS
        await self._roll()

    async def _load_cursor(self) -> None:
        self.cursor = Position(self._segments[0].first_seq, 0)
        self.cursor_seq = self._segments[0].first_seq
        body = await self.folder.read(CURSOR)
        try:
            document = codec.decode(body or b"", key=CURSOR)
            codec.expect(document, format_name=FORMAT, newest=VERSION, key=CURSOR)
            saved = Position(int(document["segment"]), int(document["offset"]))
            seq, totals = int(document["seq"]), {str(key): int(count) for key, count in document["totals"].items()}
        except (Corrupt, Incompatible, KeyError, TypeError, ValueError, AttributeError):
            return  # lost with the power; see above
        self.totals = {name: max(self.totals.get(name, 0), totals.get(name, 0)) for name in {*self.totals, *totals}}
        # A number that was accepted is never given again, whatever a disk has lost.
        self.next_seq = max(self.next_seq, seq)
        if any(each.first_seq == saved.segment and saved.offset <= each.size for each in self._segments):
            self.cursor, self.cursor_seq = saved, seq


def fold(state: Document, note: Mapping[str, Any]) -> None:
    """What a note changes in the state."""
    for name, value in note.items():
        if name != CHANGES:
            state[name] = value
            continue
        for part, changes in value.items():
            merged = {**state.get(part, {}), **changes}
            state[part] = {key: each for key, each in merged.items() if each is not None}


def _identity(name: str, frame: bytes) -> Identity:
    try:
        return inspect(frame, ANY_SIZE).identity
    except FrameInvalid as error:
        raise Corrupt(
            f"{name}: an entry holds no frame that can be read: {error}",
            remedy="use the version of holdfast that wrote this queue",
        ) from error


async def open_queue(
    folder: Folder,
    agent_id: str,
    ambient: Ambient,
    options: QueueOptions = QueueOptions(),  # noqa: B008  # frozen
) -> Queue:
    """The queue in ``folder``, begun if the folder is empty. ``Refused`` if it is another agent's, or no queue."""
    check_sender(agent_id)
    body = await folder.read(ABOUT)
    if body is None:
        foreign = [name for name in await folder.names() if name != LOCK]
        if foreign:
            raise Refused(
                f"the folder is not empty and holds no queue (it has {foreign[0]})",
                remedy="name an empty folder for --queue",
            )
        about = {"agent_id": agent_id, "boot_id": ambient.ids.unique(), "created_at_unix_ns": ambient.clock.wall_ns()}
        body = codec.encode({**about, "format": FORMAT, "version": VERSION})
        await folder.replace(ABOUT, body)
    else:
        # A life that ended within its first write may have left it unforced, and segments must not outlast it.
        await folder.fsync(ABOUT)
    document = codec.decode(body, key=ABOUT)
    codec.expect(document, format_name=FORMAT, newest=VERSION, key=ABOUT)
    if document["agent_id"] != agent_id:
        raise Refused(
            f"the queue is that of agent {document['agent_id']}, not of {agent_id}",
            remedy="give each agent a folder of its own",
        )
    queue = Queue(folder, options, agent_id, str(document["boot_id"]))
    await queue.load()
    return queue
