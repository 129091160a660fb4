"""The decisions of the reconciler, without I/O: the pipeline reads and writes.

A **finding** is reported to the operator: bytes that are missing or wrong, foreign objects, clocks that are ahead,
ranges that overlap. It does not stop the run.

**Coverage** has the sequence numbers of each (agent, boot) that were seen, as ranges. Of many ranges the closest are
joined, so it may contain numbers that were not seen, but it never lacks one that was. So a batch outside of the
coverage overlaps no other, and one inside must be compared with its neighbours.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.record_times import AHEAD_NS, HOUR_NS, TimeLimits
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.identity import BatchIdentity

FUTURE_NS = AHEAD_NS + HOUR_NS
"""How far ahead of its acceptance a record that counts may be dated."""
MOST_STRETCHES = 256
"""Ranges per agent and boot; beyond this number those with the smallest gaps are joined."""


class Finding(StrEnum):
    MISSING_BLOB = "missing_blob"
    """An accepted manifest names bytes that do not exist."""
    CORRUPT_BLOB = "corrupt_blob"
    """The bytes exist, and are not those that were accepted."""
    UNREADABLE_FRAME = "unreadable_frame"
    """The bytes are those that were accepted, and this version cannot read them as a frame."""
    UNKNOWN_SCHEMA = "unknown_schema"
    CORRUPT_MANIFEST = "corrupt_manifest"
    FOREIGN_OBJECT = "foreign_object"
    """An object under one of our prefixes whose name has another form than ours."""
    FUTURE_CLOCK = "future_clock"
    """Records outside of the times that were allowed when they were accepted; they are in no hour."""
    NOT_COVERED = "not_covered"
    """The coverage of its agent cannot be read, so it is unknown whether it overlaps another batch."""
    CORRUPT_DERIVED = "corrupt_derived"
    """An object that was derived for an hour cannot be read; the hour stays as it is."""
    TOO_LATE = "too_late"
    """A batch was found after an hour of its records was closed; these records are not counted."""
    OVERLAP = "overlap"
    """Two batches of one agent and boot share sequence numbers; each number counts once."""


BROKEN = frozenset(
    {
        Finding.MISSING_BLOB,
        Finding.CORRUPT_BLOB,
        Finding.UNREADABLE_FRAME,
        Finding.UNKNOWN_SCHEMA,
        Finding.CORRUPT_MANIFEST,
        Finding.NOT_COVERED,
    }
)
"""A batch with one of these is in no hour; every run tries again to read it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding about one object."""

    finding: Finding
    key: str
    message: str

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.finding}\x00{self.key}".encode()).hexdigest()

    def document(self) -> Document:
        return {"finding": str(self.finding), "key": self.key, "message": self.message}

    @classmethod
    def of(cls, document: Document) -> "Problem":
        return cls(Finding(document["finding"]), str(document["key"]), str(document["message"]))


@dataclass(frozen=True, slots=True)
class Share:
    """The records of a batch in one hour of sample time."""

    hour: int
    records: int
    first_ns: int
    last_ns: int


def shares(batch: Batch, limits: TimeLimits) -> tuple[list[Share], int]:
    """The hours in which the batch has records, in order, and how many records are outside of the limits: those are in
    no hour."""
    times = batch.times_ns
    inside = times < limits.until_ns
    if limits.from_ns is not None:
        inside &= times >= limits.from_ns
    sound = times[inside]
    if not len(sound):
        return [], len(times)
    ordered = np.sort(sound)
    hours, starts = np.unique(ordered // HOUR_NS, return_index=True)
    ends = np.append(starts[1:], len(ordered))
    found = [
        Share(int(hour), int(end - start), int(ordered[start]), int(ordered[end - 1]))
        for hour, start, end in zip(hours, starts, ends, strict=True)
    ]
    return found, len(times) - len(sound)


@dataclass(slots=True)
class _Source:
    stretches: list[list[int]] = field(default_factory=list)
    """First and last number of each, in order, with gaps between them."""
    longest: int = 0
    """The greatest number of records in one batch."""

    def add(self, start: int, end: int) -> bool:
        """Whether any of the numbers was covered before."""
        self.longest = max(self.longest, end - start + 1)
        touching = [each for each in self.stretches if each[0] <= end + 1 and each[1] >= start - 1]
        again = any(each[0] <= end and each[1] >= start for each in touching)
        low = min([start, *(each[0] for each in touching)])
        high = max([end, *(each[1] for each in touching)])
        kept = [each for each in self.stretches if each not in touching]
        self.stretches = sorted([*kept, [low, high]])
        while len(self.stretches) > MOST_STRETCHES:
            gaps = [after[0] - before[1] for before, after in zip(self.stretches, self.stretches[1:], strict=False)]
            place = gaps.index(min(gaps))
            self.stretches[place : place + 2] = [[self.stretches[place][0], self.stretches[place + 1][1]]]
        return again


class Coverage:
    """Sequence numbers that were seen, by (agent, boot)."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}

    def add_all(self, identities: Iterable[BatchIdentity]) -> set[BatchIdentity]:
        """Add these batches. Returns those with a number that was covered before."""
        ordered = sorted(set(identities))
        again: set[BatchIdentity] = set()
        for each in ordered:
            source = self._sources.setdefault(layout.boot_path(each.agent_id, each.boot_id), _Source())
            if source.add(each.seq_start, each.seq_end):
                again.add(each)
        return again

    def longest(self, identity: BatchIdentity) -> int:
        """The greatest number of records in one batch of this agent and boot."""
        source = self._sources.get(layout.boot_path(identity.agent_id, identity.boot_id))
        return 0 if source is None else source.longest

    def document(self) -> Document:
        return {
            "sources": {
                name: {"stretches": each.stretches, "longest": each.longest} for name, each in self._sources.items()
            }
        }

    @classmethod
    def of(cls, document: Mapping[str, object] | None, key: str) -> "Coverage":
        coverage = cls()
        try:
            for name, each in (document or {}).get("sources", {}).items():  # type: ignore[attr-defined]  # see below
                stretches = [[int(first), int(last)] for first, last in each["stretches"]]
                coverage._sources[name] = _Source(stretches, int(each["longest"]))
        except MALFORMED as error:
            raise Corrupt(f"{key}: not the coverage that was written ({error!r})") from error
        return coverage


def overlapping(identity: BatchIdentity, others: Iterable[BatchIdentity]) -> list[BatchIdentity]:
    """The other batches that share a number with this one."""
    return [other for other in others if other != identity and identity.overlaps(other)]


def neighbours_after(identity: BatchIdentity, longest: int) -> str:
    """The key at which a listing of manifests begins that finds every batch that can overlap this one."""
    first = max(0, identity.seq_start - max(longest, 1))
    path = layout.boot_path(identity.agent_id, identity.boot_id)
    return f"{layout.ACCEPTED}{path}{first:020d}-"
