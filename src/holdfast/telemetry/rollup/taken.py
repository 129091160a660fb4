"""Sequence numbers that are settled: whoever counts what came later leaves them out.

Of two batches that share numbers the lower identity counts them. But a unit that is sealed is never made again, so its
inputs, which are settled (``accept.settled``), keep theirs, in this hour and in every other. So the order is: settled
batches first, then the others; among each, by identity. Only batches of one agent and boot whose ranges overlap matter,
which is seldom: their records are then looked up, and their numbers exactly.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.aio import map_bounded
from holdfast.objects.store import Store
from holdfast.telemetry.accept.settled import find_settled
from holdfast.telemetry.accept.submit import identity_of
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.columns import Ints
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Generation, UnitManifest

AT_ONCE = 16
Ranges = tuple[tuple[int, int], ...]
Load = Callable[[Listed], Awaitable[Batch | None]]


@dataclass(frozen=True, slots=True)
class Taken:
    """Inclusive ranges of numbers, by agent and boot."""

    ranges: dict[tuple[str, str], Ranges] = field(default_factory=dict)
    owners: frozenset[BatchIdentity] = frozenset()
    """Batches that have taken them: nothing is taken from these."""

    def among(self, batch: Batch, seqs: Ints) -> Ints | None:
        """Which of the batch's numbers are taken from it; None if none is."""
        identity = identity_of(batch.identity)
        own = self.ranges.get((identity.agent_id, identity.boot_id))
        if not own or identity in self.owners:
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


@dataclass(frozen=True, slots=True)
class Order:
    """Which batches of an hour come first."""

    sealed: frozenset[str] = frozenset()
    """Inputs of sealed units, by manifest id: they are counted."""
    beside: frozenset[str] = frozenset()
    """Settled batches without records here: they stand in the hour for the numbers that they share."""
    first: frozenset[str] = frozenset()
    """Settled batches with records here, which share numbers with others."""

    def own(self, rows: Iterable[Listed]) -> list[Listed]:
        """Those that are still to be counted here."""
        return [row for row in rows if row.manifest_id not in self.sealed and row.manifest_id not in self.beside]

    def over(self, rows: Iterable[Listed]) -> tuple[str, ...]:
        """What the name of a unit of these batches must tell: another order gives other rows."""
        return tuple(sorted(row.manifest_id for row in rows if row.manifest_id in self.beside | self.first))

    def taken(self, rows: Iterable[Listed], own: Iterable[Listed]) -> list[Listed]:
        """Those of a bucket's batches that take numbers away from others of it."""
        settled = self.sealed | self.beside | self.first
        return overlapping(own, [row for row in rows if row.manifest_id in settled])


async def order_of(store: Store, rows: Sequence[Listed], sealed: set[str]) -> Order:
    """Looks up the records of batches that share a range with another one of these: as a rule, of none."""
    sharing = [row for row in _sharing(rows) if row.manifest_id not in sealed]
    found = await map_bounded(sharing, lambda row: find_settled(store, identity_of_row(row)), limit=AT_ONCE)
    settled = [row for row, record in zip(sharing, found, strict=True) if record is not None]
    beside = frozenset(row.manifest_id for row in settled if not row.records)
    return Order(frozenset(sealed), beside, frozenset(row.manifest_id for row in settled) - beside)


def _sharing(rows: Sequence[Listed]) -> list[Listed]:
    """Batches whose range overlaps that of another one; and those that stand here for one that is not listed yet."""
    ordered = sorted(rows, key=lambda row: (row.agent, row.boot, row.seq_start, row.seq_end))
    found: dict[str, Listed] = {row.manifest_id: row for row in rows if not row.records}
    widest: Listed | None = None
    for row in ordered:
        if widest is not None and (widest.agent, widest.boot) == (row.agent, row.boot):
            if row.seq_start <= widest.seq_end:
                found[row.manifest_id], found[widest.manifest_id] = row, widest
            if row.seq_end < widest.seq_end:
                continue
        widest = row
    return [found[key] for key in sorted(found)]


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
        settled = await find_settled(store, identity_of_row(row))
        if settled is not None:
            return settled.ranges
        batch = await load(row)
        return ((row.seq_start, row.seq_end),) if batch is None else ranges_of(seqs_of(batch))

    found: dict[tuple[str, str], Ranges] = {}
    for row, ranges in zip(rows, await map_bounded(rows, one, limit=AT_ONCE), strict=True):
        found[row.agent, row.boot] = (*found.get((row.agent, row.boot), ()), *ranges)
    return Taken(found, frozenset(map(identity_of_row, rows)))
