"""Batches that share sequence numbers, and which of these numbers closed hours have counted.

Each number of an agent and boot counts once. Of two batches that share one, the batch of the lower identity counts it,
as long as the hours of both are open. Once an hour is closed (``manifest``), the numbers that it counted count in no
other hour, and a record that lies in it and was not counted is too late: it counts nowhere and takes no number from
another batch.

So an hour needs to know which other hours the batches that share numbers have records in, and which of those are
closed. Only such batches are looked up; most hours have none. All batches that share a number are listed in the hours
of each other (the reconciler does that), so the rows of one hour are enough to find them.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.aio import map_bounded
from holdfast.objects.store import Store
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.record_times import times_of
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.rollup.columns import Flags, Ints
from holdfast.telemetry.rollup.layout import HOUR_NS
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Generation, Kind, Numbers, read_generation

AT_ONCE = 16
Load = Callable[[Listed], Awaitable[Batch | None]]
"""The batch of a row; None if its bytes cannot be read."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Which records of an open hour's batches do not count, because of closed hours."""

    hours: frozenset[int] = frozenset()
    """Closed hours: a record in one of these counts in no other hour."""
    numbers: Numbers = field(default_factory=dict)
    """Numbers that they have counted, of the agents and boots whose batches share numbers."""

    @classmethod
    def joined(cls, parts: Iterable["Taken"]) -> "Taken":
        of = list(parts)
        hours = frozenset(hour for each in of for hour in each.hours)
        return cls(hours, {source: ranges for each in of for source, ranges in each.numbers.items()})

    def concerns(self, batch: Batch) -> bool:
        return (batch.identity.agent_id, batch.identity.boot_id) in self.numbers

    def free(self, batch: Batch, seqs: Ints) -> Flags:
        """Which of the batch's records may still be counted."""
        free = ~np.isin(times_of(batch) // HOUR_NS, np.array(sorted(self.hours), np.int64))
        for first, last in self.numbers.get((batch.identity.agent_id, batch.identity.boot_id), ()):
            free &= (seqs < first) | (seqs > last)
        return free


NOTHING = Taken()


def seqs_of(batch: Batch) -> Ints:
    """The numbers of all records, in the order of ``times_of``."""
    return np.concatenate([batch.samples.seq, batch.histograms.samples.seq, batch.logs.seq, batch.alerts.seq])


def identity_of_row(row: Listed) -> BatchIdentity:
    return BatchIdentity(row.agent, row.boot, row.seq_start, row.seq_end)


def overlap(one: Listed, other: Listed) -> bool:
    """Whether the ranges of two rows of one agent and boot overlap; of a row with itself, they do."""
    same = (one.agent, one.boot) == (other.agent, other.boot)
    return same and one.seq_start <= other.seq_end and other.seq_start <= one.seq_end


def touching(rows: Iterable[Listed], others: Iterable[Listed]) -> list[Listed]:
    """Those of the rows whose range overlaps that of one of the others."""
    known: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for other in sorted(others, key=lambda row: row.seq_start):
        starts, reaches = known.setdefault((other.agent, other.boot), ([], []))
        reaches.append(max(other.seq_end, reaches[-1] if reaches else 0))
        starts.append(other.seq_start)

    def touches(row: Listed) -> bool:
        starts, reaches = known.get((row.agent, row.boot), ([], []))
        before = bisect_right(starts, row.seq_end)
        return before > 0 and reaches[before - 1] >= row.seq_start

    return [row for row in rows if touches(row)]


def sharing(rows: Iterable[Listed]) -> list[Listed]:
    """Those whose range overlaps that of another one, and those that are listed only because of that."""
    found: dict[str, Listed] = {}
    widest: Listed | None = None
    for row in sorted(rows, key=lambda row: (row.agent, row.boot, row.seq_start, row.seq_end)):
        if not row.records:
            found[row.manifest_id] = row
        if widest is not None and (widest.agent, widest.boot) == (row.agent, row.boot):
            if row.seq_start <= widest.seq_end:
                found[row.manifest_id], found[widest.manifest_id] = row, widest
            if row.seq_end < widest.seq_end:
                continue
        widest = row
    return [found[key] for key in sorted(found)]


@dataclass(frozen=True, slots=True)
class Links:
    """The other hours of batches that share numbers with others."""

    hours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The hours of each such batch, by manifest id; empty if its bytes cannot be read."""
    generations: dict[int, Generation] = field(default_factory=dict)
    """The current generations of these hours."""

    def own(self, rows: Iterable[Listed]) -> list[Listed]:
        """The rows without batches whose hours are all closed: none of their records can be counted any more."""
        return [row for row in rows if not self._is_done(row)]

    def closed(self, rows: Iterable[Listed]) -> tuple[int, ...]:
        """Closed hours in which these batches have records."""
        found = {hour for row in rows for hour in self.hours.get(row.manifest_id, ())}
        return tuple(sorted(hour for hour in found if self._is_closed(hour)))

    def taken(self, rows: Sequence[Listed]) -> Taken:
        hours = self.closed(rows)
        sources = {(row.agent, row.boot) for row in rows if row.manifest_id in self.hours}
        if not hours:
            return NOTHING
        counted = [self.generations[hour].counted or {} for hour in hours]
        numbers = {
            source: tuple(sorted(one for each in counted for one in each.get(source, ()))) for source in sorted(sources)
        }
        return Taken(frozenset(hours), numbers)

    def _is_closed(self, hour: int) -> bool:
        return hour in self.generations and self.generations[hour].is_closed

    def _is_done(self, row: Listed) -> bool:
        hours = self.hours.get(row.manifest_id, ())
        return not row.records and bool(hours) and all(map(self._is_closed, hours))


async def links(store: Store, hour: int, rows: Iterable[Listed], load: Load) -> Links:
    """Looks up where batches of this hour that share numbers have records besides."""
    shared = sharing(rows)
    if not shared:
        return Links()

    async def one(row: Listed) -> tuple[int, ...]:
        return tuple(sorted({*await hours_of(store, row, load)} - {hour}))

    found = await map_bounded(shared, one, limit=AT_ONCE)
    others = sorted({each for hours in found for each in hours})
    generations = await map_bounded(others, lambda other: read_generation(store, Kind.ROLLUP, other), limit=AT_ONCE)
    known = {other: each for other, each in zip(others, generations, strict=True) if each is not None}
    return Links({row.manifest_id: hours for row, hours in zip(shared, found, strict=True)}, known)


async def hours_of(store: Store, row: Listed, load: Load) -> tuple[int, ...]:
    """The hours in which a batch has records: from its bytes or, once these have expired, from the record of that."""
    batch = await load(row)
    if batch is not None:
        return tuple(np.unique(times_of(batch) // HOUR_NS).tolist())
    record = await find_expired(store, identity_of_row(row))
    return () if record is None else record.hours
