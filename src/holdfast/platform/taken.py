"""Sequence numbers that are counted already, by batches whose bytes may be gone: whoever counts what came later leaves
them out.

A unit that is sealed is never made again, so its inputs keep the numbers that they have, whatever would win them among
readable batches. Only batches of the same agent and boot whose ranges overlap matter, which is seldom: their numbers
are then looked up exactly, in the record of the expiry or in the bytes, if they are still there.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.aio import map_bounded
from holdfast.ingest.expired import find_expired
from holdfast.ingest.frame import Batch
from holdfast.ingest.identity import BatchIdentity
from holdfast.metrics import layout
from holdfast.metrics.columns import Ints
from holdfast.metrics.listing import Listed
from holdfast.metrics.manifest import Generation, UnitManifest
from holdfast.objects.store import Store

AT_ONCE = 16
Ranges = tuple[tuple[int, int], ...]
Load = Callable[[Listed], Awaitable[Batch | None]]


@dataclass(frozen=True, slots=True)
class Taken:
    """Inclusive ranges of numbers, by agent and boot."""

    ranges: dict[tuple[str, str], Ranges] = field(default_factory=dict)

    def among(self, batch: Batch, seqs: Ints) -> Ints | None:
        """Which of the batch's numbers are taken; None if none is."""
        own = self.ranges.get((batch.identity.agent_id, batch.identity.boot_id))
        if not own:
            return None
        inside = np.zeros(len(seqs), np.bool_)
        for first, last in own:
            inside |= (seqs >= first) & (seqs <= last)
        return seqs[inside] if inside.any() else None


NOTHING = Taken()


def seqs_of(batch: Batch) -> Ints:
    return np.concatenate([batch.samples.seq, batch.histograms.samples.seq, batch.logs.seq, batch.alerts.seq])


def ranges_of(seqs: Ints) -> Ranges:
    """Numbers as inclusive ranges, in order."""
    ordered = np.unique(seqs)
    if not len(ordered):
        return ()
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    firsts = ordered[np.concatenate([[0], breaks + 1])]
    lasts = ordered[np.concatenate([breaks, [len(ordered) - 1]])]
    return tuple(zip(firsts.tolist(), lasts.tolist(), strict=True))


def identity_of_row(row: Listed) -> BatchIdentity:
    return BatchIdentity(row.agent, row.boot, row.seq_start, row.seq_end)


def overlapping(own: Iterable[Listed], others: Iterable[Listed]) -> list[Listed]:
    """Those of the others that share a range with one of these."""
    ranges: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in own:
        ranges.setdefault((row.agent, row.boot), []).append((row.seq_start, row.seq_end))
    return [
        row
        for row in others
        if any(first <= row.seq_end and row.seq_start <= last for first, last in ranges.get((row.agent, row.boot), ()))
    ]


async def expired_beside(store: Store, rows: Iterable[Listed], sealed: Container[str]) -> set[str]:
    """Ids of expired batches that have no records here: they stand in the hour for the numbers that they share. Their
    records are counted for ever where they lie.
    """
    beside = [row for row in rows if not row.records and row.manifest_id not in sealed]
    return {row.manifest_id for row in beside if await find_expired(store, identity_of_row(row)) is not None}


async def sealed_inputs(store: Store, current: Generation | None) -> set[str]:
    """Ids of the inputs of all sealed units. One GET for each unit, which are seldom more than one a bucket."""
    if current is None:
        return set()
    found: set[str] = set()
    for each in current.units:
        if each.sealed:
            made = UnitManifest.read(await store.get(layout.unit_key(current.hour, each.unit_id)))
            found |= {own.id for own in made.unit.inputs}
    return found


async def taken_by(store: Store, rows: Sequence[Listed], load: Load) -> Taken:
    """The numbers of these batches, exactly. Of one that is lost without a record, its whole range."""
    if not rows:
        return NOTHING

    async def one(row: Listed) -> Ranges:
        expired = await find_expired(store, identity_of_row(row))
        if expired is not None:
            return expired.ranges
        batch = await load(row)
        return ((row.seq_start, row.seq_end),) if batch is None else ranges_of(seqs_of(batch))

    found: dict[tuple[str, str], Ranges] = {}
    for row, ranges in zip(rows, await map_bounded(rows, one, limit=AT_ONCE), strict=True):
        found[row.agent, row.boot] = (*found.get((row.agent, row.boot), ()), *ranges)
    return Taken(found)
