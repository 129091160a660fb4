"""The durable queue of an agent: batches stay in order and under their sequence numbers until they are accepted.

    queue.json             agent id and boot id of the queue; written once
    {first seq}.segment    entries (see ``Entry``); only the newest grows, only the oldest are removed
    cursor.json            where the batches begin that are neither accepted nor parked, and totals that never decrease
    {start}-{end}.parked   batches taken out of the order (see ``Parked``)
    queue.reserve          removed to free space when the disk is full: a segment of accepted batches can only be
                           removed after a new segment was written

Safety depends on the order of writes: an entry is durable before its frame may be sent; a parked copy is durable before
the cursor passes its original; a new segment, with the state, is durable before an old one is removed. The cursor may
be lost at any time: batches are then sent again and accepted once.

``append`` raises ``QueueFull`` if the batch does not fit; then nothing was queued and no sequence number was used.

An entry is a frame and a note of what changes in the agent's state with it:

    0   4   magic "HFQ1"
    4   4   length of the note, little-endian
    8   4   length of the frame; 0 for an entry without a frame
    12  4   CRC-32 of everything else
    16      the note in JSON, then the frame

A segment is named by the lowest sequence number that may be in it. Its first entry has no frame, and its note is the
whole state. Bytes at the end of a segment that are not a complete entry were being written when a process died; no
caller relied on them. Unreadable bytes before a readable entry are damage.

A parked batch is one that collectors refuse as it is; only an operator may drop it. It is sent again now and then: so
the agent learns of an operator's resolution, and a batch that exceeded a limit is accepted after the limit was raised.
Reading and dropping parked batches needs no lock, because their files are created and removed atomically.
"""

import asyncio
import builtins
import hashlib
import re
import struct
import zlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, NotFound, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.telemetry.folder import LOCK, Folder
from holdfast.telemetry.frame import ANY_SIZE, FrameInvalid, encode, inspect, pack
from holdfast.telemetry.identity import BatchIdentity, check_sender
from holdfast.telemetry.records import Record

MAGIC = b"HFQ1"
LARGEST = 64 << 20
"""Longer than any entry; a greater length is damage."""
_HEAD = struct.Struct("<4sIII")
HEAD_BYTES = _HEAD.size
SUFFIX = ".segment"


@dataclass(frozen=True, slots=True)
class Entry:
    frame: bytes
    note: Document = field(default_factory=dict)

    def encode(self) -> bytes:
        note = codec.encode(self.note)
        checksum = _checksum(len(note), len(self.frame), note + self.frame)
        return _HEAD.pack(MAGIC, len(note), len(self.frame), checksum) + note + self.frame


def entry_length(head: bytes) -> int | None:
    """The length of the entry that begins with ``head``; None if these bytes do not begin an entry."""
    if len(head) < HEAD_BYTES:
        return None
    magic, note, frame, _ = _HEAD.unpack_from(head)
    total = HEAD_BYTES + int(note) + int(frame)
    return total if magic == MAGIC and total <= LARGEST else None


def read_entry(data: bytes) -> Entry | None:
    """The entry in these bytes; None unless they are exactly one valid entry."""
    if entry_length(data) != len(data):
        return None
    _, note, frame, checksum = _HEAD.unpack_from(data)
    rest = data[HEAD_BYTES:]
    if checksum != _checksum(note, frame, rest):
        return None
    try:
        return Entry(rest[note:], codec.decode(rest[:note], key="a note"))
    except Corrupt:
        return None


def _checksum(note: int, frame: int, rest: bytes) -> int:
    return zlib.crc32(rest, zlib.crc32(_HEAD.pack(MAGIC, note, frame, 0)))


@dataclass(slots=True)
class Segment:
    first_seq: int
    size: int

    @property
    def name(self) -> str:
        return segment_name(self.first_seq)


@dataclass(frozen=True, slots=True)
class Found:
    start: int
    end: int
    entry: Entry


@dataclass(frozen=True, slots=True)
class Damage:
    start: int
    end: int


def segment_name(first_seq: int) -> str:
    return f"{first_seq:020d}{SUFFIX}"


def first_seq_of(name: str) -> int | None:
    digits = name.removesuffix(SUFFIX)
    return int(digits) if name.endswith(SUFFIX) and len(digits) == 20 and digits.isdecimal() else None


def scan(data: bytes) -> Iterator[Found | Damage]:
    """The entries and the damage in these bytes, without an incomplete entry at the end."""
    at = 0
    while at < len(data):
        found = _entry_at(data, at)
        if found is None:
            following = _next_entry(data, at + 1)
            if following is None:
                return
            yield Damage(at, following)
            at = following
            continue
        yield found
        at = found.end


async def read_at(folder: Folder, name: str, at: int, size: int) -> Found | Damage | None:
    """The entry or damage at ``at`` of a segment of ``size`` bytes; None at its end. Reads one entry only."""
    head = await folder.read(name, at, HEAD_BYTES)
    if at >= size or not head:
        return None
    length = entry_length(head)
    if length is not None and at + length <= size:
        entry = read_entry(await folder.read(name, at, length) or b"")
        if entry is not None:
            return Found(at, at + length, entry)
    rest = (await folder.read(name, at, size - at)) or b""
    following = _next_entry(rest, 1)
    return Damage(at, size if following is None else at + following)


def is_whole(data: bytes) -> bool:
    """Whether the bytes have the full length of the entry that begins here, valid or not."""
    length = entry_length(data[:HEAD_BYTES])
    return length is not None and length <= len(data)


def _entry_at(data: bytes, at: int) -> Found | None:
    length = entry_length(data[at : at + HEAD_BYTES])
    if length is None:
        return None
    found = read_entry(data[at : at + length])
    return None if found is None else Found(at, at + length, found)


def _next_entry(data: bytes, at: int) -> int | None:
    while (at := data.find(MAGIC, at)) >= 0:
        if _entry_at(data, at) is not None:
            return at
        at += 1
    return None


PARKED = ".parked"
_NAME = re.compile(r"(\d{20})-(\d{20})\.parked")


@dataclass(frozen=True, slots=True)
class Parked:
    identity: BatchIdentity
    frame: bytes
    reason: str
    """The reason in the collector's answer."""
    detail: str
    collector: str
    parked_at_unix_ns: int

    @property
    def name(self) -> str:
        return parked_name(self.identity)

    @property
    def frame_sha256(self) -> str:
        return hashlib.sha256(self.frame).hexdigest()


def parked_name(identity: BatchIdentity) -> str:
    return f"{identity.seq_start:020d}-{identity.seq_end:020d}{PARKED}"


async def write_parked(folder: Folder, parked: Parked) -> int:
    """Durable when it returns. Returns the size of the file."""
    note = {
        "reason": parked.reason,
        "detail": parked.detail,
        "collector": parked.collector,
        "parked_at_unix_ns": parked.parked_at_unix_ns,
    }
    data = Entry(parked.frame, note).encode()
    await folder.replace(parked.name, data)
    return len(data)


async def parked_names(folder: Folder) -> list[str]:
    return [name for name in await folder.names() if _NAME.fullmatch(name)]


async def read_parked(folder: Folder, name: str) -> Parked | None:
    """None if the file does not exist any more."""
    data = await folder.read(name)
    if data is None:
        return None
    entry = read_entry(data)
    try:
        identity = None if entry is None else inspect(entry.frame, ANY_SIZE).identity
    except FrameInvalid:
        identity = None
    if entry is None or identity is None:
        raise Corrupt(
            f"{name}: the parked batch cannot be read",
            remedy="keep a copy of the file for analysis, or drop it with `holdfast agent parked drop`",
        )
    note = entry.note
    return Parked(
        identity,
        entry.frame,
        str(note.get("reason", "")),
        str(note.get("detail", "")),
        str(note.get("collector", "")),
        int(note.get("parked_at_unix_ns", 0)),
    )


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A parked batch whose file is damaged."""

    name: str
    size: int
    why: str

    @property
    def numbers(self) -> str:
        start, _, end = self.name.removesuffix(PARKED).partition("-")
        return f"{int(start)}-{int(end)}"


async def all_parked(folder: Folder) -> AsyncIterator[Parked | Unreadable]:
    """All parked batches, the damaged ones as ``Unreadable``."""
    for name in await parked_names(folder):
        try:
            parked = await read_parked(folder, name)
        except Corrupt as error:
            yield Unreadable(name, await folder.size(name) or 0, str(error))
            continue
        if parked is not None:
            yield parked


async def find_parked(folder: Folder, numbers: str) -> Parked:
    """Find a batch by its sequence numbers, such as ``120-140``. ``Corrupt`` if its file is damaged."""
    parked = await read_parked(folder, await find_name(folder, numbers))
    if parked is None:
        raise _no_such(numbers)
    return parked


async def find_name(folder: Folder, numbers: str) -> str:
    """The file name of a parked batch, whatever the file contains."""
    start, _, end = numbers.removesuffix(PARKED).partition("-")
    name = f"{start:0>20}-{end:0>20}{PARKED}"
    if not _NAME.fullmatch(name) or await folder.size(name) is None:
        raise _no_such(numbers)
    return name


def _no_such(numbers: str) -> NotFound:
    return NotFound(f"no parked batch {numbers}", remedy="see `holdfast agent parked list`")


ABOUT = "queue.json"
CURSOR = "cursor.json"
RESERVE = "queue.reserve"
_RESERVED = hashlib.shake_256(b"no file system makes this any shorter").digest(16 << 10)
FORMAT = "holdfast.agent_queue"
VERSION = 1
MOST_RECORDS = 1 << 20
"""More records than any batch has."""
DAMAGED = ".damaged"
CHANGES = "changes"
"""Key in a note: parts of the state of which the note has only the changed elements. None removes an element."""
_log = logger("agent")


class QueueFull(Unavailable):
    """There is no room for this batch. It was not queued."""


@dataclass(frozen=True, slots=True)
class QueueOptions:
    max_bytes: int = 1 << 30
    """Limit for segments and parked batches together."""
    segment_bytes: int = 1 << 20
    """Size at which a new segment is begun."""
    tidy_bytes: int = 256 << 10
    """Size from which a segment is replaced as soon as all its batches are accepted."""


@dataclass(frozen=True, slots=True, order=True)
class Position:
    segment: int
    offset: int


@dataclass(frozen=True, slots=True)
class Queued:
    """A batch in the queue. ``after`` is the position of the next one."""

    identity: BatchIdentity
    frame: bytes
    at: Position
    after: Position


class Queue:
    """Open one with ``open_queue``. No other process may use the folder."""

    def __init__(self, folder: Folder, options: QueueOptions, agent_id: str, boot_id: str) -> None:
        self.folder = folder
        self.options = options
        self.agent_id = agent_id
        self.boot_id = boot_id
        self.next_seq = 0
        self.state: Document = {}
        """The result of applying the notes of all entries."""
        self.totals: dict[str, int] = {}
        """Counts that are stored with the cursor, such as dropped records and damaged bytes."""
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
        """How many records are neither accepted nor parked."""
        return max(0, self.next_seq - self.cursor_seq)

    async def append(self, records: Sequence[Record], note: Mapping[str, object] | None = None) -> BatchIdentity:
        """Make a batch of these records, which never changes, and make it durable together with ``note``."""
        async with self._lock:
            batch = pack(self.agent_id, self.boot_id, records, seq_start=self.next_seq)
            note = dict(note or {})
            data = Entry(encode(batch), note).encode()
            try:
                await self._write(data)
            except Unavailable:
                # Accepted batches may still take space in the newest segment: remove them and try once more.
                if not await self._replace_accepted():
                    raise
                await self._write(data)
            self.next_seq = batch.identity.seq_end + 1
            fold(self.state, note)
            return batch.identity

    async def _write(self, data: builtins.bytes) -> None:
        if self.bytes + len(data) > self.options.max_bytes:
            raise QueueFull(
                f"the queue of {self.agent_id} holds {self.bytes} bytes of at most {self.options.max_bytes}",
                remedy="make a collector available, resolve parked batches, or raise agent.queue_max_bytes",
            )
        newest = self._segments[-1]
        # A small queue has small segments, so that accepted batches can be removed while others wait.
        if newest.size >= min(self.options.segment_bytes, self.options.max_bytes // 8):
            newest = await self._roll()
        await self.folder.append(newest.name, newest.size, data)
        newest.size += len(data)

    async def read(self, at: Position) -> Queued | None:
        """The batch at ``at``, or the first one after it; None if there is none yet."""
        oldest = self._segments[0].first_seq
        if at.segment < oldest:
            at = Position(oldest, 0)  # the segment at this position was removed with all its batches
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
        """Record that everything before ``to`` is accepted or parked."""
        async with self._lock:
            self.cursor, self.cursor_seq = max(self.cursor, to), max(self.cursor_seq, next_seq)
            await self._tidy()
            await self.save_cursor()

    async def save_cursor(self) -> None:
        """Without fsync: losing the cursor causes duplicates, not losses. On a full disk the old cursor stays."""
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
        """How many batches are parked. Counts their bytes again, because an operator may have dropped some."""
        names = await parked_names(self.folder)
        sizes = [await self.folder.size(name) or 0 for name in names]
        self.parked_bytes = sum(sizes)
        return len(names)

    def count(self, name: str, number: int) -> None:
        self.totals[name] = self.totals.get(name, 0) + number

    async def _replace_accepted(self) -> bool:
        """Replace the newest segment by an empty one if all its batches are accepted. Returns whether it did."""
        newest = self._segments[-1]
        if self.cursor != Position(newest.first_seq, newest.size) or newest.first_seq == self.next_seq:
            return False
        try:
            fresh = await self._roll_with_reserve()
        except Unavailable as error:
            _log.warning("no new segment can be begun yet: %s", error)
            return False
        self.cursor = Position(fresh.first_seq, fresh.size)
        await self._remove_passed()
        await self._keep_reserve()
        await self.save_cursor()
        return True

    async def _roll_with_reserve(self) -> Segment:
        """Begin a segment. If the disk is full, remove the reserve to make room for the state that it begins with."""
        try:
            return await self._roll()
        except Unavailable:
            await self.use_reserve()
            return await self._roll()

    async def use_reserve(self) -> None:
        """Free some space on a full disk for a write that frees more."""
        await self.folder.remove(RESERVE)

    async def _keep_reserve(self) -> None:
        if await self.folder.size(RESERVE) is None:
            with suppress(Unavailable):  # the disk is full; tried again later
                await self.folder.replace(RESERVE, _RESERVED, durable=False)

    async def _tidy(self) -> None:
        if self._segments[-1].size >= self.options.tidy_bytes:
            await self._replace_accepted()
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
        """Copy damaged bytes to a file of their own for manual recovery, and skip them."""
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
        """Read what earlier processes have left: the names, the newest segment, and the cursor."""
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
        """Remove a segment without a readable entry, which a process probably died while beginning; keep its bytes in
        another file. Returns the lowest sequence number that it certainly did not assign."""
        data = await self.folder.read(segment.name) or b""
        if data:
            await self.folder.replace(f"{segment.name}{DAMAGED}", data)
        await self.folder.remove(segment.name)
        return segment.first_seq + (MOST_RECORDS if is_whole(data) else 0)

    async def _load_newest(self, newest: Segment) -> bool:
        """Returns whether the segment has a readable entry."""
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
        """The last entry is complete but damaged, so it may have been durable and sent before. Its sequence numbers are
        not assigned again, and its bytes are set aside like other damage."""
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
            return  # lost in a power failure, as the module says
        self.totals = {name: max(self.totals.get(name, 0), totals.get(name, 0)) for name in {*self.totals, *totals}}
        # A sequence number that was accepted is never assigned again, whatever the disk has lost.
        self.next_seq = max(self.next_seq, seq)
        if any(each.first_seq == saved.segment and saved.offset <= each.size for each in self._segments):
            self.cursor, self.cursor_seq = saved, seq


def fold(state: Document, note: Mapping[str, Any]) -> None:
    """Apply a note to the state."""
    for name, value in note.items():
        if name != CHANGES:
            state[name] = value
            continue
        for part, changes in value.items():
            merged = {**state.get(part, {}), **changes}
            state[part] = {key: each for key, each in merged.items() if each is not None}


def _identity(name: str, frame: bytes) -> BatchIdentity:
    try:
        return inspect(frame, ANY_SIZE).identity
    except FrameInvalid as error:
        raise Corrupt(
            f"{name}: the frame of an entry cannot be read: {error}",
            remedy="use the version of holdfast that wrote this queue",
        ) from error


async def open_queue(
    folder: Folder,
    agent_id: str,
    ambient: Ambient,
    options: QueueOptions = QueueOptions(),  # noqa: B008  # frozen
) -> Queue:
    """The queue in ``folder``, created if the folder is empty. ``Refused`` if it is another agent's or not a queue."""
    check_sender(agent_id)
    body = await folder.read(ABOUT)
    if body is None:
        foreign = [name for name in await folder.names() if name != LOCK]
        if foreign:
            raise Refused(
                f"the folder is not empty and has no queue in it (it has {foreign[0]})",
                remedy="name an empty folder for --queue",
            )
        about = {"agent_id": agent_id, "boot_id": ambient.ids.unique(), "created_at_unix_ns": ambient.clock.wall_ns()}
        body = codec.encode({**about, "format": FORMAT, "version": VERSION})
        await folder.replace(ABOUT, body)
    else:
        # A process that died during its first write may not have synced it, and segments are useless without it.
        await folder.fsync(ABOUT)
    document = codec.decode(body, key=ABOUT)
    codec.expect(document, format_name=FORMAT, newest=VERSION, key=ABOUT)
    if document["agent_id"] != agent_id:
        raise Refused(
            f"the queue is that of agent {document['agent_id']}, not of {agent_id}",
            remedy="use another folder for each agent",
        )
    queue = Queue(folder, options, agent_id, str(document["boot_id"]))
    await queue.load()
    return queue
