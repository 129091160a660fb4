"""Segments of a queue: entries one after the other in a file that is named by the first number that may stand in it.

The first entry of a segment carries the agent's whole state and no frame. A torn end is what a dead process was about
to write and nobody was told of; whatever cannot be read before an entry that can is damage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.ingest.agent import entry as entries
from holdfast.ingest.agent.entry import HEAD_BYTES, MAGIC, Entry
from holdfast.ingest.agent.folder import Folder

SUFFIX = ".segment"


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
    """What stands in these bytes; a torn end is left out."""
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
    """What stands at ``at`` of a segment of ``size`` bytes; None at its end. Reads one entry, not the segment."""
    head = await folder.read(name, at, HEAD_BYTES)
    if at >= size or not head:
        return None
    length = entries.length_of(head)
    if length is not None and at + length <= size:
        entry = entries.read(await folder.read(name, at, length) or b"")
        if entry is not None:
            return Found(at, at + length, entry)
    rest = (await folder.read(name, at, size - at)) or b""
    following = _next_entry(rest, 1)
    return Damage(at, size if following is None else at + following)


def is_whole(data: bytes) -> bool:
    """Whether an entry begins here that is all there, by its length; it need not be right."""
    length = entries.length_of(data[:HEAD_BYTES])
    return length is not None and length <= len(data)


def _entry_at(data: bytes, at: int) -> Found | None:
    length = entries.length_of(data[at : at + HEAD_BYTES])
    if length is None:
        return None
    found = entries.read(data[at : at + length])
    return None if found is None else Found(at, at + length, found)


def _next_entry(data: bytes, at: int) -> int | None:
    while (at := data.find(MAGIC, at)) >= 0:
        if _entry_at(data, at) is not None:
            return at
        at += 1
    return None
