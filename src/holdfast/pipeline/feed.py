"""The job ``feed``: it writes the series that the index has found into the ontology, hour by hour. ``platform.census``
decides.

Steps: *plan* (which ended hours have an index that the census does not know), then one per hour, in order, with one
commit at most. The census is its own checkpoint, in the same commit as what follows from it: an hour that is counted
again, by a driver that died before it could record it or by one that was paused, changes nothing.

An hour counts when it has ended. Hours from the future (a clock that runs ahead) wait until their time comes; late data
counts while its hour is in the window, and not after.
"""

from collections.abc import Mapping, Sequence

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Corrupt, Incompatible, NotFound
from holdfast.base.telemetry import logger
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.session import Options as SessionOptions
from holdfast.pipeline import problems
from holdfast.pipeline.job import Steps
from holdfast.pipeline.options import Env
from holdfast.platform import census
from holdfast.platform.census import Hour
from holdfast.platform.session import Session
from holdfast.telemetry.rollup import index, layout, manifest
from holdfast.telemetry.rollup.layout import hour_name
from holdfast.telemetry.rollup.manifest import ChunkRef, Generation, Kind, Table, read_generation
from holdfast.telemetry.rollup.points import SeriesKey

AT_ONCE = 16
HOURS_AT_ONCE = 168
"""Hours that one run counts; the next run counts the rest."""
SHORTEST_LEASE_MS = 2_000
LOCK_TIMEOUT_MS = 5_000
TRIES = 5
"""Retries if other processes update the census at the same time."""

log = logger("pipeline")


class Feed:
    name = "feed"
    version = "1"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options = env.store, env.options
        self._series: dict[str, list[SeriesKey]] = {}
        """Series by the key of their generation, as read for the latest window."""

    async def is_due(self) -> bool:
        return bool(await self._hours())

    async def split(self, request: Document) -> list[Document]:
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        plan = await ctx.step("plan", self._plan)
        planned = plan["hours"]
        counted: list[Document] = []
        for hour in planned:
            counted.append(await ctx.step(f"count {hour['name']}", self._count, hour))
            self._env.say("feed: hours", len(counted), len(planned))
            if counted[-1].get("broken"):
                break  # hours are counted in order: those that follow wait for this one
        broken = bool(counted and counted[-1].get("broken"))
        done = [hour["hour"] for hour in planned[: len(counted) - broken]]
        if done:
            await ctx.step("mended", self._mended, done)
        return {
            "hours": [hour["name"] for hour in planned[: len(counted) - broken]],
            "broken_hours": int(broken),
            "commits": [each["commit"] for each in counted if each["commit"] is not None],
            "rows": sum(each["rows"] for each in counted),
            "more": plan["more"] and not broken,
        }

    async def preview(self) -> list[tuple[int, int]]:
        """The hours that a run would count, each with the number of generations that it would read."""
        return [(each.hour, len(each.generations)) for each in await self._hours()]

    async def _plan(self) -> Document:
        hours = await self._hours()
        chosen = [
            {"name": hour_name(each.hour), "hour": each.hour, "window": sorted(each.generations.items())}
            for each in hours[:HOURS_AT_ONCE]
        ]
        return {"hours": chosen, "more": len(chosen) < len(hours)}

    async def _hours(self) -> list[Hour]:
        """Hours to count, in order: those after the last one, and that one if its window has changed."""
        async with self._session() as onto:
            found = await census.taken(onto)
        last = 0 if found is None else int(found.until.timestamp()) // 3600 - 1
        numbers = await self._generations(max(0, last + 1 - self._options.stale_hours))
        hours = [Hour(hour, self._window(hour, numbers)) for hour in numbers if hour >= last]
        return [hour for hour in hours if not census.covers(found, hour)]

    async def _generations(self, first: int) -> dict[int, int]:
        """The number of the current generation of the index, for each ended hour from ``first`` on. One listing."""
        until_ns = self._env.ambient.clock.wall_ns() - self._options.settle_ns
        keys = [key async for key in self._store.keys(layout.MANIFESTS, after=layout.manifest_folder(first))]
        named = {
            hour: layout.generation_in(key) for hour, key in manifest.current_generations(keys, Kind.ROLLUP).items()
        }
        return {
            hour: found[1]
            for hour, found in named.items()
            if found is not None and layout.hour_start_ns(hour + 1) <= until_ns
        }

    def _window(self, hour: int, numbers: Mapping[int, int]) -> dict[int, int]:
        hours = range(hour + 1 - self._options.stale_hours, hour + 1)
        return {each: numbers[each] for each in hours if each in numbers}

    async def _count(self, planned: Document) -> Document:
        hour = Hour(planned["hour"], dict(planned["window"]))
        try:
            async with self._session() as onto:
                made = await self._take(onto, hour)
        except (Corrupt, Incompatible) as error:
            log.warning("%s; the ontology waits for this hour", error)
            await problems.record(self._store, self._env.ambient, [problems.of_hour(self.name, hour.hour, str(error))])
            return {"commit": None, "rows": 0, "broken": True}
        return {"commit": None if made is None else made.commit_id, "rows": 0 if made is None else made.rows}

    async def _mended(self, hours: Sequence[int]) -> Document:
        await problems.mended_hours(self._store, self.name, hours)
        return {}

    async def _take(self, onto: Session, hour: Hour) -> Commit | None:
        for tries_left in reversed(range(TRIES)):
            found = await census.taken(onto)
            if census.covers(found, hour):
                return None
            try:
                return await census.take(onto, found, hour, await self._seen(hour))
            except Conflict:
                if not tries_left:
                    raise
        return None

    async def _seen(self, hour: Hour) -> list[SeriesKey]:
        """Series of the whole window."""
        keys = [layout.generation_key(each, Kind.ROLLUP, number) for each, number in hour.generations.items()]
        missing = [key for key in keys if key not in self._series]
        read = await map_bounded(missing, self._read, limit=AT_ONCE)
        known = self._series | dict(zip(missing, read, strict=True))
        self._series = {key: known[key] for key in keys}
        return [series for found in self._series.values() for series in found]

    async def _read(self, key: str) -> list[SeriesKey]:
        """The series of the planned generation, or of the one that has replaced it, which has all of its inputs."""
        try:
            return await self._series_of(Generation.read(await self._store.get(key)))
        except NotFound:
            hour = layout.hour_in(key)
            current = None if hour is None else await read_generation(self._store, Kind.ROLLUP, hour)
            if current is None:
                raise
            return await self._series_of(current)

    async def _series_of(self, generation: Generation) -> list[SeriesKey]:
        refs = [ref for unit in generation.units for ref in unit.chunks if ref.table is Table.SERIES]

        async def one(ref: ChunkRef) -> list[SeriesKey]:
            return index.series_of(index.decode(Table.SERIES, (await self._store.get(ref.key)).body, key=ref.key))

        parts = await map_bounded(refs, one, limit=AT_ONCE)
        return [series for part in parts for series in part]

    def _session(self) -> Session:
        # A dead driver holds the ontology's lock until its lease expires: the next driver waits for that.
        ttl_ms = max(SHORTEST_LEASE_MS, self._options.lease_ttl_ms)
        options = SessionOptions(lease_ttl_ms=ttl_ms, lock_timeout_ms=max(LOCK_TIMEOUT_MS, 2 * ttl_ms))
        return Session(self._store, self._env.ambient, census.TYPES, options)
