"""Segments: how a long journal stays cheap to append to. Pure.

A journal object holds a tail of lines, which every append writes again. When the tail has grown past the policy it is
sealed: its lines go into an immutable segment, and the journal begins with one head line that refers to it. Sealing
counts like a number with digits up to seven: the eighth segment of a level is not written by itself but together with
the seven before it, as one segment of the next level (and so on up). So

* every seal writes exactly one segment;
* a journal of N lines refers to at most seven segments per level, about log8 N levels;
* a line is sealed again at most once per level, so that all uploads together stay nearly linear in N.

A segment that would grow past ``largest`` bytes is not merged further: no process has to hold or send more at once.

The head line is the only line of a journal that is not an entry. It repeats the generation and the highest session, so
that a session can find out that it is fenced without reading a segment.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.base import codec
from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.base.record import Record

SEGMENTS = "segments"
FORMAT = 1

_ATTEMPT = re.compile(r"[0-9A-Za-z._-]{1,64}")


@dataclass(frozen=True, slots=True)
class SegmentPolicy:
    """When to seal: as soon as the tail has this many lines and this many bytes."""

    lines: int = 32
    size: int = 32 * 1024
    fan_in: int = 8
    largest: int = 64 * 1024 * 1024

    def __post_init__(self) -> None:
        if self.lines < 1 or self.fan_in < 2:
            raise Invalid(f"{self} would never seal or never merge", remedy="lines >= 1, fan_in >= 2")

    def is_due(self, tail: Sequence[bytes]) -> bool:
        return len(tail) >= self.lines and sum(map(len, tail)) >= self.size


class Ref(NamedTuple):
    """A journal's reference to a segment: lines ``first`` to ``first + lines - 1`` of the run."""

    level: int
    first: int
    lines: int
    size: int
    attempt: str
    sha256: str

    @property
    def end(self) -> int:
        return self.first + self.lines


@dataclass(frozen=True)
class Head(Record):
    """The first line of a journal that has segments."""

    WHAT = "a list of segments"

    generation: int
    session: int
    refs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """The segment to write: lines ``first`` to ``end - 1``. ``kept`` are the references that stay as they are."""

    level: int
    first: int
    end: int
    kept: tuple[Ref, ...]


def plan_seal(policy: SegmentPolicy, refs: Sequence[Ref], end: int, tail_bytes: int) -> Seal:
    """Seal everything up to line ``end``, with the segments that overflow their level."""
    kept = list(refs)
    level, size = 0, tail_bytes
    first = kept[-1].end if kept else 0
    while True:
        group = kept[-(policy.fan_in - 1) :]
        full = len(group) == policy.fan_in - 1 and all(ref.level == level for ref in group)
        merged = size + sum(ref.size for ref in group)
        if not full or merged > policy.largest:
            return Seal(level, first, end, tuple(kept))
        del kept[-len(group) :]
        level, first, size = level + 1, group[0].first, merged


def make_ref(seal: Seal, body: bytes, attempt: str) -> Ref:
    return Ref(seal.level, seal.first, seal.end - seal.first, len(body), attempt, digest(body))


def digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def split_lines(body: bytes) -> list[bytes]:
    """The lines of an object, each with its newline; a last one that lacks it gets it."""
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line + b"\n" for line in lines]


def format_head(head: Head) -> bytes:
    return codec.encode(head.document(type=SEGMENTS, format=FORMAT)) + b"\n"


def parse_head(line: bytes, *, key: str) -> Head | None:
    """The head in a journal's first line; None if that line is an entry."""
    if b'"segments"' not in line:
        return None
    document = codec.decode(line, key=key)
    if document.get("type") != SEGMENTS:
        return None
    found = document.get("format")
    if isinstance(found, int) and found > FORMAT:
        raise Incompatible(
            f"{key}: segments of format {found} are newer than this client reads (up to {FORMAT})",
            remedy="upgrade holdfast on this machine",
        )
    head = Head.parse(document, key=f"{key}: line 1")
    for ref in head.refs:
        if not _ATTEMPT.fullmatch(ref.attempt):  # it becomes part of a key
            raise Corrupt(f"{key}: line 1: {ref.attempt!r:.80} names no segment")
    if not head.refs or not joined(head.refs):
        raise Corrupt(f"{key}: line 1: the segments do not follow each other without a gap")
    return head


def joined(refs: Iterable[Ref]) -> bool:
    """Whether the segments hold the lines from 0 on, each once."""
    end = 0
    for ref in refs:
        if ref.first != end or ref.lines < 1:
            return False
        end = ref.end
    return True
