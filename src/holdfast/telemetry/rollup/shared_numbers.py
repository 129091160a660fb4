"""Batches that share sequence numbers, and which of these numbers closed hours have counted.

Each number of an agent and boot counts once. Of two batches that share one, the batch of the lower identity counts it,
as long as the hours of both are open. Once an hour is closed (``manifest``), the numbers that it counted count in no
other hour, and a record of that hour that was not counted is too late: it counts nowhere and takes no number from
another batch.

So deriving an hour requires, for batches that share numbers, the other hours in which these have records, and which of
those are closed. Only such batches are read for this; most hours have none. The reconciler lists batches that share a
number in the hours of each other, so the rows of one hour are enough to find them.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.aio import map_bounded
from holdfast.objects.store import Store
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.overlaps import overlapping_groups
from holdfast.telemetry.rollup.layout import HOUR_NS
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Generation, Kind, read_generation
from holdfast.telemetry.rollup.points import NO_EXCLUSIONS, Exclusions

READS = 16
Load = Callable[[Listed], Awaitable[Batch | None]]
"""The batch of a row; None if its bytes cannot be read."""


def rows_overlapping(rows: Iterable[Listed], others: Iterable[Listed]) -> list[Listed]:
    """Those of the rows whose range overlaps that of one of the others."""
    ranges: dict[tuple[str, str], tuple[list[int], list[int]]] = {}
    for other in sorted(others, key=lambda row: row.seq_start):
        starts, reaches = ranges.setdefault((other.agent, other.boot), ([], []))
        reaches.append(max(other.seq_end, reaches[-1] if reaches else 0))
        starts.append(other.seq_start)

    def overlaps(row: Listed) -> bool:
        starts, reaches = ranges.get((row.agent, row.boot), ([], []))
        before = bisect_right(starts, row.seq_end)
        return before > 0 and reaches[before - 1] >= row.seq_start

    return [row for row in rows if overlaps(row)]


def rows_sharing_numbers(rows: Iterable[Listed]) -> list[Listed]:
    """Those whose range overlaps that of another one, and those that are listed only because of that."""
    groups = overlapping_groups(rows, lambda row: row.identity)
    return sorted(row for group in groups for row in group if len(group) > 1 or not row.records)


@dataclass(frozen=True, slots=True)
class OtherHours:
    """The other hours of batches that share numbers with others."""

    hours: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The hours of each such batch, by manifest id; empty if its bytes cannot be read."""
    generations: dict[int, Generation] = field(default_factory=dict)
    """The current generations of these hours."""

    def countable(self, rows: Iterable[Listed]) -> list[Listed]:
        """The rows without batches that only have records in closed hours: none of these can be counted any more."""

        def is_done(row: Listed) -> bool:
            hours = self.hours.get(row.manifest_id, ())
            return not row.records and bool(hours) and all(map(self._is_closed, hours))

        return [row for row in rows if not is_done(row)]

    def closed_hours(self, rows: Iterable[Listed]) -> tuple[int, ...]:
        """Closed hours in which these batches have records."""
        found = {hour for row in rows for hour in self.hours.get(row.manifest_id, ())}
        return tuple(sorted(hour for hour in found if self._is_closed(hour)))

    def exclusions(self, rows: Sequence[Listed]) -> Exclusions:
        hours = self.closed_hours(rows)
        sources = {(row.agent, row.boot) for row in rows if row.manifest_id in self.hours}
        if not hours:
            return NO_EXCLUSIONS
        counted = [self.generations[hour].counted or {} for hour in hours]
        numbers = {
            source: tuple(sorted(one for each in counted for one in each.get(source, ()))) for source in sorted(sources)
        }
        return Exclusions(frozenset(hours), numbers)

    def _is_closed(self, hour: int) -> bool:
        return hour in self.generations and self.generations[hour].is_closed


async def find_other_hours(store: Store, hour: int, rows: Iterable[Listed], load: Load) -> OtherHours:
    """For batches of this hour that share numbers, finds the other hours in which they have records."""
    shared = rows_sharing_numbers(rows)
    if not shared:
        return OtherHours()

    async def one(row: Listed) -> tuple[int, ...]:
        return tuple(sorted({*await hours_of(store, row, load)} - {hour}))

    found = await map_bounded(shared, one, limit=READS)
    others = sorted({each for hours in found for each in hours})
    generations = await map_bounded(others, lambda other: read_generation(store, Kind.ROLLUP, other), limit=READS)
    current = {other: each for other, each in zip(others, generations, strict=True) if each is not None}
    return OtherHours({row.manifest_id: hours for row, hours in zip(shared, found, strict=True)}, current)


async def hours_of(store: Store, row: Listed, load: Load) -> tuple[int, ...]:
    """The hours in which a batch has records: from its bytes or, if these have expired, from the record of that."""
    batch = await load(row)
    if batch is not None:
        return tuple(np.unique(batch.times_ns // HOUR_NS).tolist())
    record = await find_expired(store, row.identity)
    return () if record is None else record.hours
