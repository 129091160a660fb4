"""Segments of a queue on disk: files of entries, one after the other. An entry is a frame and a note.

    0   4   magic "HFQ1"
    4   4   length of the note, little-endian
    8   4   length of the frame; 0 for an entry without a frame
    12  4   CRC-32 of everything else
    16      the note in JSON, then the frame

A note says what changes in the agent's state with its frame. A segment's file is named by the lowest sequence number
that may be in it; its first entry has no frame, and its note is the agent's whole state.

Bytes at the end of a segment that are not a complete entry were being written when a process died; no caller relied on
them. Unreadable bytes before a readable entry are damage.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.telemetry.folder import Folder

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
