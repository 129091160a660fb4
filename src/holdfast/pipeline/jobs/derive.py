"""Derive: make the units that due hours lack, and publish them; then the same for days, from their hours.

    marks, generations, listings     what is due, and what there is of it: read in this order, and staged
    places := hours of these         one row for each hour: the driver decides into how many units it is divided
    units  := map(batches of open places, MakeUnits)      read, decode, deduplicate, roll up, write chunks and manifest
    late   := map(batches of closed places, TooLate)
    each hour: one create            the driver publishes the next generation (``publish``); marks that it covers go

The driver holds hours, counts and names of units. Batches are rows: they go from the listings to the tasks. A unit that
is current, or whose manifest exists, costs no read of its batches. An hour that another driver published first stays
due, and the next run plans it again on top. An hour of which something cannot be read stays as it is, due and on
record.

A closed hour is never derived again: batches that are listed in it later are reported as too late.
"""

import hashlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.pipeline import due, layout, problems
from holdfast.pipeline.engine import staged
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import Relations, Step, relations
from holdfast.pipeline.job import Steps
from holdfast.pipeline.jobs.derive_units import DAY_WORK, NUMBERS, MakeDays, MakeUnits, TooLate, day_rows
from holdfast.pipeline.options import Env
from holdfast.pipeline.publish import Draft, publish, verify
from holdfast.pipeline.tables.batches import LISTED, ListedTable
from holdfast.pipeline.units import DAY_HOURS, Place, Plan, Size, plan_day, plan_hour
from holdfast.telemetry.accept.reconcile import Finding, Problem
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup.kernel import version_of
from holdfast.telemetry.rollup.layout import hour_name
from holdfast.telemetry.rollup.manifest import Generation, Kind, read_generation

AT_ONCE = 8
HOURS_AT_ONCE = 100
"""Hours that one run derives; the next run continues. The driver holds the names of their units and listings."""
MOST_REPORTED = 10_000
"""Batches that one run records as problems, at most."""
BY_UNIT = Spread(by=("hour", "bucket"), worth=50_000, order=("agent", "manifest_id"), work="records + 10")
BY_DAY = Spread(by=("hour", "bucket"), worth=200_000, order=("input_id", "key"), work="rows + 10")
BY_HOUR = Spread(by=("hour",), worth=1_000, order=("manifest_id",))

MARKS = pa.schema([("hour", pa.int64()), ("key", pa.string())])
CURRENT = pa.schema(
    [
        *((name, pa.int64()) for name in ("hour", "number", "buckets", "epoch", "closed", "bucket")),
        *(("version", pa.string()), ("unit_id", pa.string()), ("unit_epoch", pa.int64()), ("unreadable", pa.int64())),
        ("error", pa.string()),
    ]
)
PLACES = pa.schema(
    [
        *((name, pa.int64()) for name in ("hour", "base", "buckets", "epoch", "closed", "fewer")),
        *(("version", pa.string()), ("error", pa.string())),
    ]
)
"""A row for each hour. One with an ``error`` cannot be read completely, and stays as it is. One with ``fewer`` can be
divided into fewer buckets once it is finished.
"""

BATCHES = """
    SELECT * FROM (
        SELECT *, row_number() OVER (PARTITION BY hour, manifest_id ORDER BY records DESC, listing) AS place FROM listed
        WHERE error = ''
    ) AS numbered WHERE place = 1"""
HOURS = """
    SELECT hour, max(number) AS number, max(buckets) AS buckets, max(epoch) AS epoch, max(closed) AS closed,
        sum(records) AS records, count(manifest_id) AS batches, count(DISTINCT agent) AS agents, max(error) AS error
    FROM (
        SELECT hour, 0 AS number, 1 AS buckets, 0 AS epoch, 0 AS closed, records, manifest_id, agent, '' AS error
        FROM batches
        UNION ALL SELECT hour, number, buckets, epoch, closed, 0, NULL, NULL, error FROM current_units
        UNION ALL SELECT hour, 0, 1, 0, 0, 0, NULL, NULL, error FROM listed WHERE error <> ''
    ) AS all_of GROUP BY hour ORDER BY hour"""
UNIT_WORK = """
    SELECT batches.*, batches.slot % places.buckets AS bucket,
        places.base, places.buckets, places.epoch, places.version,
        current_units.unit_id, current_units.unit_epoch, current_units.unreadable
    FROM batches JOIN places ON batches.hour = places.hour
    LEFT JOIN current_units ON current_units.hour = places.hour AND current_units.buckets = places.buckets
        AND current_units.bucket = batches.slot % places.buckets
    WHERE places.closed = 0 AND places.error = ''"""
LATE_WORK = """
    SELECT batches.* FROM batches JOIN places ON batches.hour = places.hour
    WHERE places.closed = 1 AND places.error = ''"""
UNITS_OF = "SELECT hour, unit_id, outcome FROM units WHERE outcome <> 'lost' ORDER BY hour, bucket"
COUNTS = f"""
    SELECT count(*) AS units, {", ".join(f"sum({name}) AS {name}" for name in NUMBERS)}
    FROM units WHERE outcome = 'unit' AND inputs > 0"""
DAY_PLACES = "SELECT DISTINCT hour, base, buckets, epoch, version FROM day_work ORDER BY hour"
DAY_UNITS = "SELECT * FROM day_work WHERE listing IS NULL"


class Derive:
    name = "derive"
    version = "1"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options, self._limits = env.store, env.options, env.options.limits

    async def is_due(self) -> bool:
        return bool(await self._wanted(Kind.ROLLUP, {}) or await self._wanted(Kind.DAILY, {}))

    async def split(self, request: Document) -> list[Document]:
        return await due.split(self._store, request)

    async def run(self, ctx: Steps, request: Document) -> Document:
        hours = await ctx.step("due hours", self._wanted, str(Kind.ROLLUP), request)
        made = await ctx.step("hours", self._hours, hours[:HOURS_AT_ONCE], ctx.run_id)
        days = await ctx.step("due days", self._wanted, str(Kind.DAILY), request)
        made_days = await ctx.step("days", self._days, days[:HOURS_AT_ONCE], ctx.run_id)
        await ctx.step("end", self._end, ctx.run_id)
        counts = {name: made[name] + made_days[name] for name in made if name not in ("hours", "published")}
        more = len(hours) > HOURS_AT_ONCE or len(days) > HOURS_AT_ONCE
        names = [hour_name(hour) for hour in made["hours"]]
        return {**counts, "published": len(names), "days": len(made_days["hours"]), "hours": names, "more": more}

    async def _hours(self, hours: Sequence[int], run_id: str) -> Document:
        """The order of reading: marks, generations, listings. A mark that is seen was made before its listing is read;
        a generation that is read was made from listings that are read after it.
        """
        outcome = Outcome()
        if not hours:
            return outcome.document()
        async with relations(self._store, self._env.engine, run_id, self._watch) as work:
            await work.put("marks", MARKS, self._marks([Kind.ROLLUP, layout.FINISH], hours))
            await work.put("current_units", CURRENT, self._current(hours))
            await work.scan("listed", ListedTable(tuple(hours)))
            define(work)
            await work.put("places", PLACES, self._places(work))
            await work.map("units", "SELECT * FROM unit_work", MakeUnits(self._options.windows, self._limits), BY_UNIT)
            await work.map("late", LATE_WORK, TooLate(self._limits), BY_HOUR)
            places = await work.rows("SELECT * FROM places ORDER BY hour")
            await self._report(work, [row for row in places if row["error"]], outcome)
            readable = [row for row in places if not row["error"]]
            covered = await self._publish(work, Kind.ROLLUP, [row for row in readable if not row["closed"]], outcome)
            fewer = {row["hour"] for row in readable if row["fewer"]}
            for hour in covered:
                await self._mark(hour, several=hour in fewer)
            await self._unmark(work, Kind.ROLLUP, [*covered, *(row["hour"] for row in readable if row["closed"])])
        return outcome.document()

    async def _days(self, days: Sequence[int], run_id: str) -> Document:
        outcome = Outcome()
        if not days:
            return outcome.document()
        async with relations(self._store, self._env.engine, run_id, self._watch) as work:
            await work.put("day_marks", MARKS, self._marks([Kind.DAILY], days))
            await work.put("day_work", DAY_WORK, self._day_work(days))
            await work.map("day_units", DAY_UNITS, MakeDays(self._options.windows), BY_DAY)
            work.view("marks", "SELECT * FROM day_marks")
            work.view("units", "SELECT * FROM day_units")
            work.view("listings", "SELECT DISTINCT hour, listing FROM day_work WHERE listing <> ''")
            covered = await self._publish(work, Kind.DAILY, await work.rows(DAY_PLACES), outcome)
            await self._unmark(work, Kind.DAILY, covered)
        return outcome.document()

    async def _end(self, run_id: str) -> Document:
        await staged.remove(self._store, run_id)
        return {}

    def _watch(self, step: str) -> Any:
        return self._env.progress(f"derive: {step}")

    # --- what is due ---

    async def _wanted(self, kind: str, request: Document) -> list[int]:
        """The due hours; for days, the first hour of each."""
        if kind == Kind.DAILY and not self._options.windows.daily:
            return []
        since, until = request.get("since_ns"), request.get("until_ns")
        if since is not None or until is not None:
            return await due.hours_between(self._store, since, until, due.LENGTH[kind])
        now_ns = self._env.ambient.clock.wall_ns()
        found = set(await due.marks(self._store, kind, self._options.settle_ns, now_ns))
        if kind == Kind.ROLLUP:
            found |= set(await due.marks(self._store, layout.FINISH, self._options.merge_after_ns, now_ns))
        return sorted(found)

    async def _marks(self, kinds: Sequence[str], hours: Iterable[int]) -> AsyncIterator[pa.RecordBatch]:
        for kind in kinds:
            found = await due.marks(self._store, kind)
            rows = [{"hour": hour, "key": key} for hour in hours for key in found.get(hour, ())]
            yield pa.RecordBatch.from_pylist(rows, MARKS)

    # --- hours ---

    async def _current(self, hours: Sequence[int]) -> AsyncIterator[pa.RecordBatch]:
        async def one(hour: int) -> list[Document]:
            try:
                found = await read_generation(self._store, Kind.ROLLUP, hour)
            except (Corrupt, Incompatible) as error:
                return [{"hour": hour, "error": str(error)}]
            return [] if found is None else _rows_of(found)

        for start in range(0, len(hours), AT_ONCE):
            for rows in await map_bounded(hours[start : start + AT_ONCE], one, limit=AT_ONCE):
                yield pa.RecordBatch.from_pylist(rows, CURRENT)

    async def _places(self, work: Relations) -> AsyncIterator[pa.RecordBatch]:
        now_ns = self._env.ambient.clock.wall_ns()
        rows: list[Document] = []
        for row in await work.rows(HOURS):
            own = {"hour": row["hour"], "closed": row["closed"], "error": row["error"]}
            if row["error"] or row["closed"]:
                rows.append(own)
            elif row["batches"]:
                size = Size(int(row["records"]), row["batches"], row["agents"])
                place, fewer = self._place(row["hour"], size, row, now_ns)
                numbers = {"base": place.base, "buckets": place.buckets, "epoch": place.epoch, "fewer": int(fewer)}
                rows.append({**own, **numbers, "version": place.version})
        yield pa.RecordBatch.from_pylist(rows, PLACES)

    def _place(self, hour: int, size: Size, before: Document, now_ns: int) -> tuple[Place, bool]:
        """Also, whether it can be divided into fewer buckets once it is finished."""
        finished = derived.hour_start_ns(hour + 1) + self._options.merge_after_ns <= now_ns
        records = self._options.records_per_unit
        buckets = size.buckets(records, before["buckets"], finished=finished)
        version = version_of(Kind.ROLLUP, self._options.windows)
        place = Place(Kind.ROLLUP, hour, before["number"], buckets, version, before["epoch"])
        return place, size.buckets(records, 1, finished=True) < buckets

    async def _report(self, work: Relations, broken: Sequence[Document], outcome: "Outcome") -> None:
        """Problems for the operator: batches that cannot be read any more, batches that came too late, and hours that
        cannot be read completely.
        """
        detail = "its bytes were there when it was reconciled, and could not be read when they were needed"
        first = f"LIMIT {MOST_REPORTED}"
        lost = await work.rows(f"SELECT DISTINCT key FROM units WHERE outcome = 'lost' ORDER BY key {first}")
        found = [Problem(Finding.MISSING_BLOB, row["key"], detail) for row in lost]
        late = await work.rows(f"SELECT *, count(*) OVER () AS n FROM late ORDER BY key, hour {first}")
        for row in late:
            detail = f"{row['records']} records of {hour_name(row['hour'])}, which is closed: they are not counted"
            found.append(Problem(Finding.TOO_LATE, row["key"], detail))
        found += [problems.of_hour(Kind.ROLLUP, row["hour"], row["error"]) for row in broken]
        await problems.record(self._store, self._env.ambient, found)
        outcome.broken_hours += len(broken)
        outcome.late += late[0]["n"] if late else 0

    # --- days ---

    async def _day_work(self, days: Sequence[int]) -> AsyncIterator[pa.RecordBatch]:
        """One day at a time: the inputs of its units, the chunks that they are made from, the listings."""
        for day in days:
            try:
                plan = await plan_day(self._store, day, self._options.windows)
            except (Corrupt, Incompatible) as error:
                await problems.record(self._store, self._env.ambient, [problems.of_hour(Kind.DAILY, day, str(error))])
                continue
            yield pa.RecordBatch.from_pylist(list(day_rows(plan)), DAY_WORK)

    # --- publish ---

    async def _publish(self, work: Relations, kind: Kind, places: Sequence[Document], outcome: "Outcome") -> list[int]:
        """Publish the next generation of each of these hours, unless one of its units failed; returns those whose plan
        is current now.
        """
        units: dict[int, list[Document]] = defaultdict(list)
        for row in await work.rows(UNITS_OF):
            units[row["hour"]].append(row)
        listings: dict[int, list[str]] = defaultdict(list)
        for row in await work.rows("SELECT hour, listing FROM listings ORDER BY hour, listing"):
            listings[row["hour"]].append(row["listing"])
        drafts = [
            Draft(_place_of(kind, row), [unit["unit_id"] for unit in units[row["hour"]]], listings[row["hour"]])
            for row in places
            if all(unit["outcome"] == "unit" for unit in units[row["hour"]])
        ]
        published = await map_bounded(drafts, lambda draft: self._publish_one(draft, outcome), limit=AT_ONCE)
        (counts,) = await work.rows(COUNTS)
        outcome.counts = {name: int(count or 0) for name, count in counts.items()}
        return [hour for hour in published if hour is not None]

    async def _unmark(self, work: Relations, kind: Kind, covered: Sequence[int]) -> None:
        """Remove the marks of these hours: those that were staged, which were there before the listings were read."""
        hours = set(covered)
        marks = await work.rows("SELECT hour, key FROM marks")
        await self._store.delete_many([row["key"] for row in marks if row["hour"] in hours])
        if hours:
            await problems.mended_hours(self._store, kind, covered)

    async def _publish_one(self, draft: Draft, outcome: "Outcome") -> int | None:
        """The hour, if its plan is current now."""
        place = draft.place
        try:
            published = await publish(self._store, draft)
        except (Corrupt, Incompatible) as error:
            outcome.broken_hours += 1
            found = problems.of_hour(place.kind, place.hour, str(error))
            await problems.record(self._store, self._env.ambient, [found])
            return None
        if published.superseded:
            outcome.superseded += 1
            return None
        if published.generation is not None:
            await verify(self._store, place, published.generation.number)
            outcome.hours.append(place.hour)
        return place.hour

    async def _mark(self, hour: int, *, several: bool) -> None:
        """The day of an hour is due, whether this driver or one that was killed published the hour. Of an hour in more
        units than its records need, one more look is due when it is finished. Both before the hour's own marks go.
        """
        current = await read_generation(self._store, Kind.ROLLUP, hour)
        if current is None:
            return
        ident = hashlib.sha256(current.key.encode()).hexdigest()
        if self._options.windows.daily:
            await due.mark(self._store, self._env.ambient, Kind.DAILY, hour // DAY_HOURS * DAY_HOURS, ident)
        if several:
            await due.mark(self._store, self._env.ambient, layout.FINISH, hour, ident)

    # --- without doing it ---

    async def preview(self, request: Document) -> list[Plan]:
        """What a run would do. Holds the rows of one hour at a time."""
        now_ns = self._env.ambient.clock.wall_ns()
        found: list[Plan] = []
        for hour in await self._wanted(Kind.ROLLUP, request):

            def decide(current: Generation | None, size: Size, hour: int = hour) -> Place:
                before = {"number": 0, "buckets": 1, "epoch": 0} if current is None else _rows_of(current)[0]
                return self._place(hour, size, before, now_ns)[0]

            plan = await plan_hour(self._store, hour, self._options.limits, decide)
            if plan.changed:
                found.append(plan)
        for day in await self._wanted(Kind.DAILY, request):
            day_plan = await plan_day(self._store, day, self._options.windows)
            found += [day_plan] if day_plan.changed else []
        return found

    async def explain(self, request: Document) -> list[Step]:
        """The relational steps as the engine would run them. Reads nothing, and writes nothing."""
        async with relations(self._store, self._env.engine, "explain", self._watch) as work:
            tables = (("current_units", CURRENT), ("listed", LISTED), ("places", PLACES), ("day_work", DAY_WORK))
            for name, schema in tables:
                work.declare(name, schema)
            define(work)
            return [
                Step("current_units", "read the current generation of each due hour"),
                Step("listed", "read the listings of these hours"),
                await work.explain("places", "decide into how many units each hour is divided", HOURS),
                await work.explain("units", "make the units: one kernel for each", "SELECT * FROM unit_work"),
                await work.explain("late", "report batches that came after their hour was closed", LATE_WORK),
                await work.explain("day_units", "make the units of days", DAY_UNITS),
            ]


def define(work: Relations) -> None:
    work.view("batches", BATCHES)
    work.view("unit_work", UNIT_WORK)
    work.view("listings", "SELECT DISTINCT hour, listing FROM listed")


@dataclass
class Outcome:
    """The results for some hours."""

    hours: list[int] = field(default_factory=list)
    """Hours with a new generation."""
    superseded: int = 0
    broken_hours: int = 0
    late: int = 0
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("units", *NUMBERS), 0))

    def document(self) -> Document:
        rest = {"superseded": self.superseded, "broken_hours": self.broken_hours, "late": self.late}
        return {**self.counts, **rest, "hours": sorted(self.hours)}


def _rows_of(generation: Generation) -> list[Document]:
    """One row per unit, or one without a unit."""
    own = {
        "hour": generation.hour,
        "number": generation.number,
        "buckets": generation.buckets,
        "epoch": generation.epoch,
        "closed": int(generation.is_closed),
        "error": "",
    }
    units = [
        {"bucket": each.bucket, "unit_id": each.unit_id, "unit_epoch": each.epoch, "unreadable": len(each.unreadable)}
        for each in generation.units
    ]
    return [{**own, **unit} for unit in units or [{"bucket": -1}]]


def _place_of(kind: Kind, row: Mapping[str, Any]) -> Place:
    return Place(kind, row["hour"], row["base"], row["buckets"], row["version"], row["epoch"])
