"""An entry of a queue as bytes: a frame, and a note of what changes in the agent's state with it.

    0   4   magic "HFQ1"
    4   4   length of the note, little-endian
    8   4   length of the frame; 0 for an entry that only carries state
    12  4   CRC-32 of everything else
    16      the note in JSON, then the frame

``read_head`` and ``read`` give None for bytes that are no whole entry: a torn end, or damage.
"""

import struct
import zlib
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt

MAGIC = b"HFQ1"
LARGEST = 64 << 20
"""Longer than any entry; a length beyond it is damage."""
_HEAD = struct.Struct("<4sIII")
HEAD_BYTES = _HEAD.size


@dataclass(frozen=True, slots=True)
class Entry:
    frame: bytes
    note: Document = field(default_factory=dict)

    def encode(self) -> bytes:
        note = codec.encode(self.note)
        checksum = _checksum(len(note), len(self.frame), note + self.frame)
        return _HEAD.pack(MAGIC, len(note), len(self.frame), checksum) + note + self.frame


def length_of(head: bytes) -> int | None:
    """How many bytes the entry has that begins with ``head``; None if none does."""
    if len(head) < HEAD_BYTES:
        return None
    magic, note, frame, _ = _HEAD.unpack_from(head)
    total = HEAD_BYTES + int(note) + int(frame)
    return total if magic == MAGIC and total <= LARGEST else None


def read(data: bytes) -> Entry | None:
    """The entry that is exactly these bytes."""
    if length_of(data) != len(data):
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
