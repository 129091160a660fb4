"""For each hour of a question: which chunks may be used, and which batches must be read instead.

The chunks of a unit are used for its bucket of agents if they were made from exactly the batches of that bucket. If
another batch is listed or fresh, the bucket is read from batches. So an answer does not depend on what has been
derived, and does not wait for it.

A closed hour counts for ever what it counts: its chunks are used whatever else is known, and batches that came later
are left out. Numbers that it has counted count in no other hour.

Order of reading: fresh batches, then the names of generations, then listings. Listings only grow, and a generation is
made from listings that exist before it, so the listings contain what the generation was made from. A batch that is
listed between two of these reads was read as fresh, and counts once.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.telemetry.query.fresh import Batches, Known, fresh, neighbours, row_of
from holdfast.telemetry.rollup import kernel, layout, listing, manifest
from holdfast.telemetry.rollup.counted import NOTHING, Links, Taken, links, touching
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Current, Generation, Kind, bucket_of

T = TypeVar("T")

AT_ONCE = 16
DAY_HOURS = 24
LOOKS = 4
"""How often an answer is started again because an object that it needed was superseded and removed."""


class Overtaken(Corrupt):
    """An object that was current does not exist. Another may be current now; if the same one still is, it is lost."""

    def __init__(self, key: str) -> None:
        super().__init__(f"{key}: an object that is current is missing", remedy=manifest.MAKE_ANEW)
        self.key = key


async def resolved(answer: Callable[[], Awaitable[T]]) -> T:
    """The result of ``answer``, which is called again if an object that it needed was superseded and removed."""
    missed: str | None = None
    for looks_left in reversed(range(LOOKS)):
        try:
            return await answer()
        except Overtaken as error:
            if error.key == missed or not looks_left:
                raise Corrupt(str(error), remedy=error.remedy) from error
            missed = error.key
    raise Corrupt("objects that an answer needs are superseded faster than they can be read")


@dataclass(slots=True)
class Raw:
    """Batches of one bucket that must be read."""

    bucket: int
    rows: list[Listed]
    taken: Taken = NOTHING
    """What closed hours have counted of them."""


@dataclass(slots=True)
class Hour:
    """What is used to answer for one hour."""

    hour: int
    units: list[Current] = field(default_factory=list)
    """Their chunks cover their buckets."""
    buckets: int = 1
    """How many buckets the agents are divided into."""
    raw: list[Raw] = field(default_factory=list)
    """The batches of each other bucket."""
    listed: list[Listed] | None = None
    """Every batch of the hour, if the listings had to be read."""
    keys: list[str] = field(default_factory=list)
    """Of the listings, including merged ones."""
    lost: list[str] = field(default_factory=list)
    """Of listings from which its generation was made and which do not exist any more."""

    closed: bool = False
    """Whether its raw bytes may be gone: its numbers are final, and known by its kept windows alone."""


def is_ours(generation: Generation) -> bool:
    """Whether this version derived it, or nothing can derive it again."""
    return kernel.is_current(generation.version) or generation.is_closed


class Looked:
    """What one answer reads to find chunks and batches."""

    def __init__(self, store: Store, batches: Batches) -> None:
        self.store = store
        self.batches = batches
        self._fresh: list[Known] = []
        """With the batches that share numbers with them."""

    async def hours(
        self,
        kind: Kind,
        since_ns: int,
        until_ns: int,
        *,
        wants_agent: Callable[[str], bool],
        wants_bucket: Callable[[int, int], bool],
        usable: Callable[[Generation], bool] = is_ours,
        by_day: bool = False,
    ) -> list[Hour]:
        """The hours that overlap [since, until) and have data, the earliest first.

        With ``by_day``, a day whose chunks cover it replaces its hours and is returned as the first of them. Of a
        closed hour that is not ``usable`` nothing is returned, because its batches may include late ones: the caller
        refuses the question, or asks for windows that it has."""
        wanted = layout.hours_between(since_ns, until_ns)
        # Batches of other agents are not needed: only batches of the same agent share numbers.
        self._fresh = await fresh(self.store, self.batches, since_ns, wants_agent)
        self._fresh += await neighbours(self.store, self.batches, self._fresh)
        touched = {hour for each in self._fresh for hour in each.rows if hour in wanted}
        keys = [key async for key in _between(self.store, layout.MANIFESTS, wanted)]
        listings = await self._listings(wanted)
        days: dict[int, Generation] = {}
        if by_day:
            found = await self._read(_days_within(wanted, manifest.current(keys, Kind.DAILY)))
            days = {day: each for day, each in found.items() if usable(each) and _whole(day, each, listings, touched)}
        done = {hour for day in days for hour in _day(day)}
        hourly = {hour: key for hour, key in manifest.current(keys, kind).items() if hour not in done}
        generations = await self._read(hourly)
        hours = sorted(((hourly.keys() | listings.keys() | touched) - done) | days.keys())

        async def one(number: int) -> Hour:
            if number in days:
                day = days[number]
                units = [each for each in day.units if wants_bucket(each.bucket, day.buckets)]
                return Hour(number, units, day.buckets)
            current = generations.get(number)
            hour = Hour(number, keys=listings.get(number, []))
            if current is not None:
                there = set(listing.ids(hour.keys))
                hour.lost = [layout.batches_key(number, each) for each in current.listings if each not in there]
                hour.closed = current.is_closed
                current = current if usable(current) else None
            await self._divide(hour, current, wants_agent, wants_bucket)
            return hour

        return await map_bounded(hours, one, limit=AT_ONCE)

    async def read_listed(self, hour: Hour) -> list[Listed]:
        """Every batch of the hour. ``Corrupt`` if a listing is missing."""
        if hour.lost:
            raise Corrupt(
                f"{hour.lost[0]}: a listing of accepted batches is missing",
                remedy="run: holdfast pipeline run --full",
            )
        if hour.listed is None:
            hour.listed = self._with_fresh(hour.hour, await listing.read(self.store, hour.keys))
        return hour.listed

    async def _divide(
        self,
        hour: Hour,
        current: Generation | None,
        wants_agent: Callable[[str], bool],
        wants_bucket: Callable[[int, int], bool],
    ) -> None:
        hour.buckets = size = 1 if current is None else current.buckets
        if hour.closed and current is None:
            return
        if current is not None and (hour.closed or (_covers(current, hour.keys) and not self._touched(hour))):
            hour.units = [unit for unit in current.units if wants_bucket(unit.bucket, current.buckets)]
            return
        buckets: dict[int, list[Listed]] = defaultdict(list)
        rows = await self.read_listed(hour)
        for row in rows:
            buckets[bucket_of(row.agent, size)].append(row)
        found = await links(self.store, hour.hour, rows, self.batches.of_row)
        for bucket, every in sorted(buckets.items()):
            if wants_bucket(bucket, size):
                self._choose(hour, current, bucket, every, found, wants_agent)

    def _choose(
        self,
        hour: Hour,
        current: Generation | None,
        bucket: int,
        rows: Sequence[Listed],
        found: Links,
        wants_agent: Callable[[str], bool],
    ) -> None:
        """What answers for one bucket: its chunks, or batches."""
        unit = None if current is None else current.unit(bucket)
        inputs = [row.input for row in rows]
        if current is not None and unit is not None and current.covers(bucket, inputs, found.closed(rows)):
            hour.units.append(unit)
        elif chosen := [row for row in found.own(rows) if wants_agent(row.agent)]:
            hour.raw.append(Raw(bucket, chosen, found.taken(rows)))

    def _touched(self, hour: Hour) -> bool:
        """Whether a fresh batch, or one that shares numbers with a fresh batch, has records in the hour."""
        return any(hour.hour in each.rows for each in self._fresh)

    def _with_fresh(self, hour: int, listed: Sequence[Listed]) -> list[Listed]:
        found = {row.manifest_id: row for row in listed}
        for each in self._fresh:
            if hour in each.rows:
                row = each.rows[hour]
                found.setdefault(row.manifest_id, row)
        others = [row for row in map(row_of, self._fresh) if row.manifest_id not in found]
        return sorted([*found.values(), *touching(others, found.values())])

    async def _read(self, keys: Mapping[int, str]) -> dict[int, Generation]:
        async def one(key: str) -> Generation:
            found = await self.store.find(key)
            if found is None:
                raise Overtaken(key)
            return Generation.read(found)

        found = await map_bounded(keys.values(), one, limit=AT_ONCE)
        return dict(zip(keys, found, strict=True))

    async def _listings(self, wanted: range) -> dict[int, list[str]]:
        found: dict[int, list[str]] = defaultdict(list)
        async for key in _between(self.store, layout.BATCHES_BY_HOUR, wanted):
            hour = layout.hour_in(key)
            if hour is not None and listing.is_listing(key, hour):
                found[hour].append(key)
        return found


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


def _whole(day: int, generation: Generation, listings: Mapping[int, list[str]], touched: set[int]) -> bool:
    """Whether the generation of a day was made from all batches of its hours."""
    hours = _day(day)
    known = [key for hour in hours for key in listings.get(hour, ())]
    return touched.isdisjoint(hours) and _covers(generation, known)


def _covers(generation: Generation, keys: Iterable[str]) -> bool:
    return set(listing.ids(keys)) <= set(generation.listings)


async def _between(store: Store, prefix: str, hours: range) -> AsyncIterator[str]:
    """The keys of these hours, below a prefix after which keys have date and hour."""
    begin, end = f"{prefix}{layout.hour_path(hours.start)}", f"{prefix}{layout.hour_path(hours.stop)}"
    async for page in store.list(prefix, after=begin.rstrip("/")):
        for entry in page.entries:
            if entry.key >= end:
                return
            yield entry.key
