"""For each hour of a question: which chunks may be used, and which batches must be read instead.

The chunks of a unit are used for its bucket of agents if they were made from exactly the batches of that bucket. If
another batch is listed, or accepted and not listed yet, the bucket is read from batches. So an answer does not depend
on what has been derived, and does not wait for it.

A closed hour never changes what it counts: its chunks are used whatever else is known, and batches that came later are
left out. Numbers that it has counted count in no other hour.

Order of reading: unlisted batches, then the names of generations, then listings. Listings are never deleted, and a
generation is made from listings that exist before it, so the listings contain what the generation was made from. A
batch that is listed between two of these reads was read as an unlisted one, and counts once.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.telemetry.batches import BatchCache, BatchReader
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.answer import Read
from holdfast.telemetry.query.unlisted import UnlistedBatch, unlisted_batches
from holdfast.telemetry.rollup import kernel, layout, listing
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import (
    Generation,
    Kind,
    UnitRef,
    bucket_of,
    current_generations,
    derive_again,
)
from holdfast.telemetry.rollup.matchers import AgentFilter
from holdfast.telemetry.rollup.points import NO_EXCLUSIONS, Exclusions, Telemetry, telemetry_of
from holdfast.telemetry.rollup.shared_numbers import find_other_hours, rows_overlapping

T = TypeVar("T")

READS = 16
DAY_HOURS = 24
ATTEMPTS = 4
"""How often an answer is started because an object that it needs was superseded and removed."""


class Superseded(Corrupt):
    """A current object does not exist. Perhaps another one is current by now; if the same one still is, it is lost."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: an object that is current is missing", remedy=derive_again(key))
        self.key = key


async def retry_superseded(answer: Callable[[], Awaitable[T]]) -> T:
    """The result of ``answer``, which is called again if an object that it needs was superseded and removed."""
    missing: str | None = None
    for attempts_left in reversed(range(ATTEMPTS)):
        try:
            return await answer()
        except Superseded as error:
            if error.key == missing or not attempts_left:
                raise Corrupt(str(error), remedy=error.remedy) from error
            missing = error.key
    raise AssertionError


@dataclass(slots=True)
class RawBatches:
    """Batches of one bucket that must be read."""

    bucket: int
    rows: list[Listed]
    excluded: Exclusions = NO_EXCLUSIONS


@dataclass(slots=True)
class HourSources:
    """What answers for one hour."""

    hour: int
    listings: list[str] = field(default_factory=list)
    """Keys of the listings of the hour."""
    buckets: int = 1
    """How many buckets the agents are divided into."""
    units: list[UnitRef] = field(default_factory=list)
    """Units whose chunks cover their buckets."""
    raw: list[RawBatches] = field(default_factory=list)
    """The batches of each other bucket."""
    rows: list[Listed] | None = None
    """Every batch of the hour, if the listings had to be read."""
    missing_listings: list[str] = field(default_factory=list)
    """Keys of listings from which the hour's generation was made and which do not exist any more."""


def is_usable(generation: Generation) -> bool:
    """Whether this version derived it, or nothing can derive it again."""
    return kernel.is_current(generation.version) or generation.is_closed


class Sources:
    """What one answer reads: batches, generations, listings."""

    def __init__(self, store: Store, limits: Limits, cache: BatchCache | None = None) -> None:
        self.store = store
        self.reader = BatchReader(store, limits, cache)
        self.read = Read()
        self._unlisted: list[UnlistedBatch] = []

    async def hours(
        self,
        since_ns: int,
        until_ns: int,
        agents: AgentFilter,
        *,
        usable: Callable[[Generation], bool] = is_usable,
        by_day: bool = False,
    ) -> list[HourSources]:
        """The hours that overlap [since, until) and have data, the earliest first.

        With ``by_day``, a day whose chunks cover it replaces its hours and is returned as the first of them. For a
        closed hour that is not ``usable`` nothing is returned, because its batches may include late ones: the caller
        refuses the question, or asks for windows that it has.
        """
        wanted = layout.hours_between(since_ns, until_ns)
        # Batches of other agents are not needed: only batches of the same agent share numbers.
        self._unlisted = await unlisted_batches(self.store, self.reader, since_ns, agents.wants)
        touched = {hour for each in self._unlisted for hour in each.rows if hour in wanted}
        keys = [key async for key in _between(self.store, layout.MANIFESTS, wanted)]
        listings: dict[int, list[str]] = defaultdict(list)
        async for key in _between(self.store, layout.BATCHES_BY_HOUR, wanted):
            hour = layout.hour_in(key)
            if hour is not None and layout.listing_in(key) is not None:
                listings[hour].append(key)
        days: dict[int, Generation] = {}
        if by_day:
            found = await self._generations(_days_within(wanted, current_generations(keys, Kind.DAILY)))
            days = {
                day: each
                for day, each in found.items()
                if usable(each) and _covers(each, _day(day), listings) and touched.isdisjoint(_day(day))
            }
        done = {hour for day in days for hour in _day(day)}
        hourly = {hour: key for hour, key in current_generations(keys, Kind.ROLLUP).items() if hour not in done}
        generations = await self._generations(hourly)

        async def one(number: int) -> HourSources:
            if number in days:
                return HourSources(number, buckets=days[number].buckets, units=_units_of(days[number], agents))
            generation = generations.get(number)
            hour = HourSources(number, listings.get(number, []))
            if generation is not None:
                existing = set(listing.ids(hour.listings))
                hour.missing_listings = [
                    layout.batches_key(number, each) for each in generation.listings if each not in existing
                ]
                closed, current = generation.is_closed, generation if usable(generation) else None
                if closed and current is None:
                    return hour
                covered = _covers(generation, [number], listings) and number not in touched
                if current is not None and (closed or covered):
                    hour.buckets, hour.units = current.buckets, _units_of(current, agents)
                    return hour
                generation = current
            await self._divide(hour, generation, agents)
            return hour

        numbers = sorted(((hourly.keys() | listings.keys() | touched) - done) | days.keys())
        hours = await map_bounded(numbers, one, limit=READS)
        self.read.hours = len(hours)
        unreadable = {each for hour in hours for unit in hour.units for each in unit.unreadable}
        self.read.unreadable = tuple(sorted(unreadable))
        return hours

    async def all_rows(self, hour: HourSources) -> list[Listed]:
        """Every batch of the hour. ``Corrupt`` if a listing is missing."""
        if hour.missing_listings:
            raise Corrupt(
                f"{hour.missing_listings[0]}: a listing of accepted batches is missing",
                remedy="run: holdfast pipeline run --full",
            )
        if hour.rows is None:
            hour.rows = self._with_unlisted(hour.hour, await listing.read(self.store, hour.listings))
        return hour.rows

    async def telemetry(self, hour: int, raw: RawBatches) -> Telemetry:
        """The records of these batches in the hour."""
        batches = await self.reader.load_rows(raw.rows)
        self.read.batches += len(raw.rows)
        start_ns = layout.hour_start_ns(hour)
        return await blocking(telemetry_of, batches, start_ns, start_ns + layout.HOUR_NS, raw.excluded)

    def finished(self) -> Read:
        """What was read, with the batches that could not be read."""
        self.read.unreadable = tuple(sorted({*self.read.unreadable, *self.reader.unreadable}))
        self.read.expired = tuple(sorted(self.reader.expired))
        return self.read

    async def _divide(self, hour: HourSources, current: Generation | None, agents: AgentFilter) -> None:
        """Decide for each bucket whether its chunks or its batches answer."""
        hour.buckets = 1 if current is None else current.buckets
        every = await self.all_rows(hour)
        buckets: dict[int, list[Listed]] = defaultdict(list)
        for row in every:
            buckets[bucket_of(row.agent, hour.buckets)].append(row)
        others = await find_other_hours(self.store, hour.hour, every, self.reader.load_row)
        for bucket, rows in sorted(buckets.items()):
            if not _wants_bucket(agents, bucket, hour.buckets):
                continue
            unit = None if current is None else current.unit(bucket)
            inputs = [row.input for row in rows]
            if current is not None and unit is not None and current.covers(bucket, inputs, others.closed_hours(rows)):
                hour.units.append(unit)
            elif wanted := [row for row in others.countable(rows) if agents.wants(row.agent)]:
                hour.raw.append(RawBatches(bucket, wanted, others.exclusions(rows)))

    def _with_unlisted(self, hour: int, listed: Iterable[Listed]) -> list[Listed]:
        found = {row.manifest_id: row for row in listed}
        for each in self._unlisted:
            if hour in each.rows:
                found.setdefault(each.rows[hour].manifest_id, each.rows[hour])
        others = [Listed.of(each.manifest, None) for each in self._unlisted]
        overlapping = rows_overlapping([row for row in others if row.manifest_id not in found], found.values())
        return sorted([*found.values(), *overlapping])

    async def _generations(self, keys: Mapping[int, str]) -> dict[int, Generation]:
        async def one(key: str) -> Generation:
            found = await self.store.find(key)
            if found is None:
                raise Superseded(key)
            return Generation.read(found)

        found = await map_bounded(keys.values(), one, limit=READS)
        return dict(zip(keys, found, strict=True))


def _wants_bucket(agents: AgentFilter, bucket: int, buckets: int) -> bool:
    return agents.names is None or any(bucket_of(name, buckets) == bucket for name in agents.names)


def _units_of(generation: Generation, agents: AgentFilter) -> list[UnitRef]:
    return [unit for unit in generation.units if _wants_bucket(agents, unit.bucket, generation.buckets)]


def _day(first: int) -> range:
    """The hours of a day, by its first."""
    return range(first, first + DAY_HOURS)


def _days_within(hours: range, keys: Mapping[int, str]) -> dict[int, str]:
    """Generations of days of which all hours are wanted."""
    return {
        day: key
        for day, key in keys.items()
        if day % DAY_HOURS == 0 and hours.start <= day and day + DAY_HOURS <= hours.stop
    }


def _covers(generation: Generation, hours: Iterable[int], listings: Mapping[int, list[str]]) -> bool:
    """Whether it was made from all listings of these hours."""
    keys = [key for hour in hours for key in listings.get(hour, ())]
    return set(listing.ids(keys)) <= set(generation.listings)


async def _between(store: Store, prefix: str, hours: range) -> AsyncIterator[str]:
    """The keys of these hours below a prefix that is followed by date and hour."""
    begin, end = f"{prefix}{layout.hour_path(hours.start)}", f"{prefix}{layout.hour_path(hours.stop)}"
    async for key in store.keys(prefix, after=begin.rstrip("/")):
        if key >= end:
            return
        yield key
