"""The units of an hour: which inputs each has, and how a task makes one.

A task reads the inputs of a unit, computes (``rollup.kernel``), creates the chunks, then the unit's manifest. Every
name follows from the unit, so a task that runs again, twice at once or very late creates what is there already; a unit
whose manifest exists is done. Readers of generations see nothing of it until the driver publishes (``publish``).

Errors: an input that is missing or cannot be read is named in the unit's manifest, and the rest counts. A store that
does not answer fails the task.
"""

import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.objects.store import CREATE, Store, Written
from holdfast.telemetry.batches import BatchReader
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.rollup import chunk, kernel, layout, listing
from holdfast.telemetry.rollup.kernel import Chunk, Derived
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import (
    ChunkRef,
    Generation,
    Input,
    Kind,
    Table,
    Unit,
    UnitManifest,
    UnitRef,
    bucket_of,
    read_generation,
)
from holdfast.telemetry.rollup.points import NO_EXCLUSIONS, Exclusions
from holdfast.telemetry.rollup.rows import Rows
from holdfast.telemetry.rollup.shared_numbers import OtherHours, find_other_hours

DAY_HOURS = 24
RECORDS_AT_ONCE = 200_000
"""A task decodes so many records at a time, or one agent's."""
BATCHES_PER_UNIT = 20_000
"""A task holds the rows of so many batches, about."""
OPEN_PIECES = 4
"""Late batches have a whole unit made again. So while batches of an hour may come, its units are smaller by this
factor than those of a finished hour."""
READS = 32
WRITES = 16


@dataclass(frozen=True, slots=True)
class Place:
    """What the units of an hour have in common: the driver decides it once for each plan."""

    kind: Kind
    hour: int
    base: int
    """The number of the generation that was read; 0 if there is none."""
    buckets: int
    version: str
    epoch: int = 0
    """Of the generation that was read: new units have it in their names."""

    @classmethod
    def after(cls, current: Generation | None, kind: Kind, hour: int, buckets: int, windows: Windows) -> "Place":
        number, epoch = (0, 0) if current is None else (current.number, current.epoch)
        return cls(kind, hour, number, buckets, kernel.version_of(kind, windows), epoch)

    @classmethod
    def of(cls, current: Generation) -> "Place":
        """As the hour is divided and derived now."""
        numbers = (current.number, current.buckets, current.version, current.epoch)
        return cls(current.kind, current.hour, *numbers)


@dataclass(frozen=True, slots=True)
class Known:
    """The unit that is current in a bucket."""

    unit_id: str
    epoch: int = 0
    unreadable: int = 0
    """How many of its inputs could not be read."""

    @classmethod
    def of(cls, current: UnitRef | None) -> "Known | None":
        return None if current is None else cls(current.unit_id, current.epoch, len(current.unreadable))


@dataclass(frozen=True, slots=True)
class Planned:
    """A unit with what it is made from: of an hour batches, of a day chunks of its hours."""

    unit: Unit
    rows: Sequence[Listed] = ()
    """Inputs of which anything can be counted here."""
    sources: Sequence[tuple[str, str, int]] = ()
    """Id of the hour's unit, key of the chunk and its rows."""
    excluded: Exclusions = NO_EXCLUSIONS
    is_current: bool = False

    def shares(self) -> Iterator[list[Listed]]:
        """Whole agents, about ``RECORDS_AT_ONCE`` records together: a series belongs to one agent."""
        share: list[Listed] = []
        records = 0
        by_agent = sorted(self.rows, key=lambda row: (row.agent, row.manifest_id))
        for _, found in groupby(by_agent, key=lambda row: row.agent):
            own = list(found)
            size = sum(row.records for row in own)
            if share and records + size > RECORDS_AT_ONCE:
                yield share
                share, records = [], 0
            share += own
            records += size
        if share:
            yield share


@dataclass(frozen=True, slots=True)
class Size:
    """What an hour has, as far as it decides into how many buckets its agents are divided."""

    records: int
    batches: int
    agents: int

    @classmethod
    def of(cls, rows: Sequence[Listed]) -> "Size":
        return cls(sum(row.records for row in rows), len(rows), len({row.agent for row in rows}))

    def buckets(self, records_per_unit: int, before: int, *, finished: bool) -> int:
        """A power of two. While batches of the hour may come, never fewer than ``before``."""
        records = records_per_unit if finished else max(1, records_per_unit // OPEN_PIECES)
        found = 1 if finished else before
        while found < self.agents and (self.records > found * records or self.batches > found * BATCHES_PER_UNIT):
            found *= 2
        return found


# --- which units ---


async def plan_unit(
    store: Store, place: Place, bucket: int, rows: Sequence[Listed], known: Known | None, found: OtherHours
) -> Planned:
    """The unit of a bucket, from all rows of the bucket."""
    own = found.countable(rows)
    inputs = tuple(row.input for row in rows)
    unit, is_current = _named(place, bucket, inputs, known, found.closed_hours(rows))
    if known is not None and is_current and known.unreadable and await _is_back(store, unit, own):
        # The same inputs, made again under a name that is not in use.
        unit, is_current = replace(unit, epoch=place.base + 1), False
    return Planned(unit, own, excluded=found.exclusions(rows), is_current=is_current)


def _named(
    place: Place, bucket: int, inputs: tuple[Input, ...], known: Known | None, closed: tuple[int, ...] = ()
) -> tuple[Unit, bool]:
    """The unit of these inputs, and whether it is the current one, which may have the name of an earlier epoch."""
    unit = Unit(place.kind, place.hour, place.buckets, bucket, inputs, place.version, place.epoch, closed)
    before = unit if known is None else replace(unit, epoch=known.epoch)
    is_current = known is not None and before.id == known.unit_id
    return (before if is_current else unit), is_current


@dataclass(slots=True)
class Plan:
    """All units of an hour or of a day, as one process plans them: for a day, for a preview, and to close an hour."""

    place: Place
    current: Generation | None
    units: list[Planned] = field(default_factory=list)
    listings: list[str] = field(default_factory=list)
    """Ids of those that are covered."""
    modified_ns: int = 0
    """When the newest of these was written, by the store's clock."""
    rows: list[Listed] = field(default_factory=list)
    other_hours: OtherHours = field(default_factory=OtherHours)

    @property
    def changed(self) -> bool:
        """Whether the current generation lacks any of it."""
        before = [] if self.current is None else [each.unit_id for each in self.current.units]
        covered = () if self.current is None else self.current.listings
        return before != [each.unit.id for each in self.units] or not set(covered).issuperset(self.listings)


async def plan_hour(
    store: Store, hour: int, limits: Limits, decide: Callable[[Generation | None, Size], Place]
) -> Plan:
    """The generation is read before the listings: it was made from listings that were there before it, and listings are
    never deleted, so the inputs planned here contain those of the generation. Of a closed hour no unit is planned.
    """
    current = await read_generation(store, Kind.ROLLUP, hour)
    pages = [page async for page in store.list(layout.batches_folder(hour))]
    entries = [entry for page in pages for entry in page.entries if layout.listing_in(entry.key) is not None]
    rows = await listing.read(store, [entry.key for entry in entries])
    plan = Plan(decide(current, Size.of(rows)), current, rows=rows)
    plan.listings = sorted(listing.ids(entry.key for entry in entries))
    plan.modified_ns = max((entry.modified_ns for entry in entries), default=0)
    if current is not None and current.is_closed:
        return plan
    buckets = plan.place.buckets
    plan.other_hours = await find_other_hours(store, hour, rows, BatchReader(store, limits).load_row)
    parts: dict[int, list[Listed]] = defaultdict(list)
    for row in rows:
        parts[bucket_of(row.agent, buckets)].append(row)
    for bucket, own in sorted(parts.items()):
        known = None if current is None or current.buckets != buckets else Known.of(current.unit(bucket))
        plan.units.append(await plan_unit(store, plan.place, bucket, own, known, plan.other_hours))
    return plan


async def _is_back(store: Store, unit: Unit, rows: Iterable[Listed]) -> bool:
    """Whether the current unit was made without a batch that can be read now."""
    found = await store.find(unit.key)
    if found is None:
        return False
    lost = set(UnitManifest.read(found).unreadable)
    reader = BatchReader(store, Limits())
    for row in rows:
        if row.manifest_id in lost and await reader.load_row(row) is not None:
            return True
    return False


# --- made ---


@dataclass(slots=True)
class Made:
    """What became of one unit."""

    manifest: UnitManifest
    made: bool = False
    """By this call; else it was there."""
    stale: bool = False
    """Nothing was made: an input was superseded since."""
    read_bytes: int = 0
    wrote_bytes: int = 0


async def make(store: Store, planned: Planned, windows: Windows, limits: Limits) -> Made:
    """Make the unit if it is not there."""
    found = await _found(store, planned.unit)
    if found is not None:
        return found
    made = Made(UnitManifest(planned.unit), made=True)
    derived, unreadable = await derive(store, planned, windows, limits, made)
    refs = await _create(store, await blocking(lambda: list(derived.chunks())), made)
    made.manifest = derived.manifest(refs, unreadable)
    await store.put(made.manifest.key, made.manifest.encode(), CREATE)
    return made


async def derive(
    store: Store, planned: Planned, windows: Windows, limits: Limits, made: Made
) -> tuple[Derived, list[str]]:
    """What a unit's batches give, and those that cannot be read. Memory holds the records of one share."""
    derived = Derived(planned.unit, windows, planned.excluded)
    reader = BatchReader(store, limits)
    for share in planned.shares():
        await blocking(derived.add, await reader.load_rows(share))
    made.read_bytes += reader.read_bytes
    return derived, sorted(reader.unreadable | reader.expired)


async def make_day(store: Store, unit: Unit, sources: Sequence[tuple[str, str]], windows: Windows) -> Made:
    """Make the unit of a day from chunks of its hours: ids of their units, and keys. Of a chunk that is gone nothing is
    made: the hour has another generation since, and the day is planned again on top of that.
    """
    found = await _found(store, unit)
    if found is not None:
        return found
    made = Made(UnitManifest(unit), made=True)
    unreadable: set[str] = set()
    gone = False

    async def one(source: tuple[str, str]) -> Rows | None:
        nonlocal gone
        ident, key = source
        try:
            body = (await store.get(key)).body
            made.read_bytes += len(body)
            return await blocking(chunk.decode, body, key=key)
        except NotFound:
            gone = True
        except (Corrupt, Incompatible):
            unreadable.add(ident)
        return None

    rows = [each for each in await map_bounded(sources, one, limit=READS) if each is not None]
    if gone:
        return Made(UnitManifest(unit), stale=True)
    refs = await _create(store, await blocking(lambda: list(kernel.daily_chunks(unit, rows, windows))), made)
    made.manifest = UnitManifest(unit, kernel.in_order(refs), unreadable=tuple(sorted(unreadable)))
    await store.put(made.manifest.key, made.manifest.encode(), CREATE)
    return made


async def _found(store: Store, unit: Unit) -> Made | None:
    found = await store.find(unit.key)
    if found is None:
        return None
    try:
        return Made(UnitManifest.read(found))
    except (Corrupt, Incompatible):  # publishing the hour fails on it too, and leaves the hour as it is
        return Made(UnitManifest(unit))


async def _create(store: Store, chunks: Iterable[Chunk], made: Made) -> list[ChunkRef]:
    """An existing key means done: its name follows from the same inputs. Its bytes may be packed in another way."""

    async def one(each: Chunk) -> ChunkRef:
        made.wrote_bytes += len(each.body)
        if isinstance(await store.put(each.ref.key, each.body, CREATE), Written):
            return each.ref
        there = (await store.get(each.ref.key)).body
        return replace(each.ref, size=len(there), crc32=zlib.crc32(there))

    return await map_bounded(chunks, one, limit=WRITES)


# --- days ---


async def plan_day(store: Store, hour: int, windows: Windows) -> Plan:
    """The day that begins with this hour, from the current generations of its hours."""
    current = await read_generation(store, Kind.DAILY, hour)
    found = [await read_generation(store, Kind.ROLLUP, each) for each in range(hour, hour + DAY_HOURS)]
    hours = [each for each in found if each is not None and each.units]
    place = Place.after(current, Kind.DAILY, hour, min((each.buckets for each in hours), default=1), windows)
    inputs: dict[int, list[UnitRef]] = defaultdict(list)
    for generation in hours:
        for each in generation.units:
            inputs[each.bucket & (place.buckets - 1)].append(each)
    largest = windows.hourly[-1]
    units: list[Planned] = []
    for bucket, own in sorted(inputs.items()):
        names = tuple(Input(each.unit_id, each.unit_id) for each in own)
        known = None if current is None or current.buckets != place.buckets else Known.of(current.unit(bucket))
        unit, is_current = _named(place, bucket, names, known)
        sources = [
            (each.unit_id, ref.key, ref.rows)
            for each in own
            for ref in each.chunks
            if ref.table is Table.ROLLUP and ref.window_ns == largest
        ]
        units.append(Planned(unit, sources=sources, is_current=is_current))
    listings = sorted({ident for each in found if each is not None for ident in each.listings})
    return Plan(place, current, units, listings)
