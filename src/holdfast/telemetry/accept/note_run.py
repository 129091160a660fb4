"""A run: many notes in one file, in the order of their keys, written at once and never changed.

    notes              sorted, each key once
    keys               of every 64th note, the first included
    count, oldest and newest landed_at, CRC-32 of the keys, CRC-32 of these figures

Only the keys at its end are held in memory, half a byte for each note; a look reads one block of 64. A run is named by
the logs whose notes are in it, first and last: what lies within another's range is in there too.
"""

import re
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.telemetry.accept.note import KEY_BYTES, NOTE_BYTES
from holdfast.telemetry.folder import Folder

BLOCK = 64
"""Notes that are read at a time."""
SUFFIX = ".run"

_MAGIC = b"HFNOTES1"
_FIGURES = struct.Struct(">8sQqqI")
_CHECK = struct.Struct(">I")
_NAME = re.compile(r"(\d{12})-(\d{12})" + re.escape(SUFFIX))


@dataclass(frozen=True, slots=True)
class Run:
    first: int
    last: int
    count: int
    oldest_ns: int
    newest_ns: int
    keys: bytes

    @property
    def name(self) -> str:
        return f"{self.first:012d}-{self.last:012d}{SUFFIX}"

    def covers(self, first: int, last: int) -> bool:
        return self.first <= first and last <= self.last

    def span_of(self, key: bytes) -> tuple[int, int] | None:
        """Where the block lies in which ``key`` stands if it is here; None if it is before the first."""
        block = bisect_right(range(len(self.keys) // KEY_BYTES), key, key=self._key) - 1
        if block < 0:
            return None
        start = block * BLOCK
        return start * NOTE_BYTES, (min(start + BLOCK, self.count) - start) * NOTE_BYTES

    def _key(self, block: int) -> bytes:
        return self.keys[block * KEY_BYTES : (block + 1) * KEY_BYTES]


def range_in(name: str) -> tuple[int, int] | None:
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


def sorted_run(first: int, last: int, notes: Sequence[bytes]) -> tuple[Run, bytes]:
    """A run of all these notes, which may be many at a time, and its bytes. Of equal keys the last one counts."""
    rows = np.frombuffer(b"".join(notes), np.uint8).reshape(-1, NOTE_BYTES)
    words = np.ascontiguousarray(rows[:, :KEY_BYTES]).view(">u8").astype(np.uint64)
    order = np.lexsort(words.T[::-1])
    ranked = words[order]
    lasting = np.ones(len(order), np.bool_)
    lasting[:-1] = (ranked[1:] != ranked[:-1]).any(axis=1)
    rows = rows[order[lasting]]
    landed = np.ascontiguousarray(rows[:, 72:80]).view(">i8")
    keys = rows[::BLOCK, :KEY_BYTES].tobytes()
    run = Run(first, last, len(rows), int(landed.min()), int(landed.max()), keys)
    figures = _FIGURES.pack(_MAGIC, run.count, run.oldest_ns, run.newest_ns, zlib.crc32(keys))
    return run, b"".join((rows.tobytes(), keys, figures, _CHECK.pack(zlib.crc32(figures))))


async def opened(folder: Folder, name: str) -> Run | None:
    """The run of that name, of which only the end is read; None if that cannot be."""
    found, size = range_in(name), await folder.size(name)
    tail = _FIGURES.size + _CHECK.size
    if found is None or size is None or size < tail:
        return None
    end = await folder.read(name, size - tail, tail) or b""
    figures, check = end[: _FIGURES.size], end[_FIGURES.size :]
    if len(end) != tail or check != _CHECK.pack(zlib.crc32(figures)):
        return None
    magic, count, oldest, newest, keys_check = _FIGURES.unpack(figures)
    blocks = -(-count // BLOCK)
    if magic != _MAGIC or size != count * NOTE_BYTES + blocks * KEY_BYTES + tail:
        return None
    keys = await folder.read(name, count * NOTE_BYTES, blocks * KEY_BYTES) or b""
    if zlib.crc32(keys) != keys_check:
        return None
    return Run(*found, count, oldest, newest, keys)


def at_most(block: bytes, key: bytes) -> bytes | None:
    """The last note of a block whose key is not above ``key``."""
    at = bisect_right(range(len(block) // NOTE_BYTES), key, key=lambda each: _key_at(block, each)) - 1
    return None if at < 0 else _note_at(block, at)


def exactly(block: bytes, key: bytes) -> bytes | None:
    """The note of a block with this key."""
    count = len(block) // NOTE_BYTES
    at = bisect_left(range(count), key, key=lambda each: _key_at(block, each))
    return _note_at(block, at) if at < count and _key_at(block, at) == key else None


def _key_at(block: bytes, at: int) -> bytes:
    return block[at * NOTE_BYTES : at * NOTE_BYTES + KEY_BYTES]


def _note_at(block: bytes, at: int) -> bytes:
    return block[at * NOTE_BYTES : (at + 1) * NOTE_BYTES]
