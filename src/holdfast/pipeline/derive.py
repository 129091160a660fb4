"""Derive: make the units that due hours lack, and publish them. The jobs ``rollup`` and ``index``.

Steps: *plan* (which units), *stage* (tasks make them; nothing is visible), *publish* (a generation per hour), *verify*
(it is there; marks of what it covers are removed). Then the same for days, from the hours. An hour that another driver
published first stays due, and the next run plans it again on top.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from holdfast.base.aio import map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible
from holdfast.pipeline import due, layout, problems, ranges
from holdfast.pipeline.job import Steps
from holdfast.pipeline.options import Env
from holdfast.pipeline.partition import divide
from holdfast.pipeline.plan import DAY_HOURS, HourPlan, Work, payload_of, plan_day, plan_hour
from holdfast.pipeline.publish import publish, verify
from holdfast.pipeline.unit import unit_task
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept.reconcile import Finding, Problem
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup.manifest import Kind

AT_ONCE = 8
HOURS_AT_ONCE = 200
"""That one run takes; the next takes the rest."""
INPUTS_AT_ONCE = 50_000
"""The same for inputs, about: a plan is written down."""
WORTH = 50_000
"""Records that are worth a task of their own."""


class Derive:
    """One job: several kinds, one after the other."""

    version = "1"

    def __init__(self, env: Env, name: str, kinds: Sequence[Kind]) -> None:
        self.name = name
        self._env = env
        self._store, self._options = env.store, env.options
        # Without windows above an hour there is nothing to make of days.
        self._kinds = [kind for kind in kinds if kind is not Kind.DAILY or env.options.windows.daily]

    async def is_due(self) -> bool:
        for kind in self._kinds:
            if await self._ripe(kind):
                return True
        return False

    async def run(self, ctx: Steps, request: Document) -> Document:
        totals: dict[str, int] = defaultdict(int)
        hours: set[str] = set()
        for kind in self._kinds:
            suffix = " days" if kind is Kind.DAILY else ""
            plan = await ctx.step(f"plan{suffix}", self._plan, str(kind), request)
            staged = await ctx.step(f"stage{suffix}", self._stage, plan)
            published = await ctx.step(f"publish{suffix}", self._publish, plan)
            await ctx.step(f"verify{suffix}", self._verify, plan, published)
            for name, count in {**staged, **published["counts"]}.items():
                totals[name] += count
            if kind is Kind.DAILY:  # which lies in the first hour of its day
                totals["days"] += len(published["hours"])
            else:
                hours |= set(published["hours"])
            totals["more"] |= int(plan["more"])
        return {**totals, "hours": sorted(hours), "more": bool(totals["more"])}

    async def split(self, request: Document) -> list[Document]:
        return await ranges.split(self._store, request)

    async def preview(self, request: Document) -> list[HourPlan]:
        """What a run would do, without doing it."""
        found: list[Problem] = []
        return [
            plan for kind in self._kinds for plan in await self._plans(kind, await self._wanted(kind, request), found)
        ]

    # --- plan ---

    async def _plan(self, kind_name: str, request: Document) -> Document:
        kind = Kind(kind_name)
        wanted = await self._wanted(kind, request)
        plans: list[HourPlan] = []
        found: list[Problem] = []
        left = list(wanted)
        while left and len(plans) < HOURS_AT_ONCE and sum(map(_inputs, plans)) < INPUTS_AT_ONCE:
            group, left = left[:AT_ONCE], left[AT_ONCE:]
            plans += await self._plans(kind, group, found)
        await problems.record(self._store, self._env.ambient, found)
        if plans:
            await problems.mended_hours(self._store, kind, [plan.hour for plan in plans])
        chosen = {plan.hour: wanted[plan.hour] for plan in plans}
        return {
            "plans": [plan.document() for plan in plans],
            "work": [work.document() for plan in plans for work in plan.work],
            "marks": {str(hour): keys for hour, keys in chosen.items()},
            "more": bool(left),
            "broken_hours": len(found),
        }

    async def _wanted(self, kind: Kind, request: Document) -> dict[int, list[str]]:
        """Hours to plan, with the marks that led there."""
        since, until = request.get("since_ns"), request.get("until_ns")
        if since is None and until is None:
            return await self._ripe(kind)
        marked = await due.marks(self._store, kind)
        hours = await ranges.hours(self._store, since, until)
        if kind is Kind.DAILY:
            hours = {hour // DAY_HOURS * DAY_HOURS for hour in hours}
        else:
            hours = {hour for hour in hours if ranges.within(hour, 1, since, until)}
        return {hour: marked.get(hour, []) for hour in sorted(hours)}

    async def _ripe(self, kind: Kind) -> dict[int, list[str]]:
        now_ns = self._env.ambient.clock.wall_ns()
        return due.ripe(await due.marks(self._store, kind), kind, self._options.settle_ns, now_ns)

    async def _plans(self, kind: Kind, wanted: Iterable[int], found: list[Problem]) -> list[HourPlan]:
        """The plans of these hours. One of which something cannot be read stays as it is, and due."""
        windows, size = self._options.windows, self._options.records_per_unit

        async def one(hour: int) -> HourPlan | None:
            try:
                if kind is Kind.DAILY:
                    return await plan_day(self._store, hour, windows)
                return await plan_hour(self._store, kind, hour, windows, size)
            except (Corrupt, Incompatible) as error:
                found.append(problems.of_hour(kind, hour, str(error)))
                return None

        plans = await map_bounded(wanted, one, limit=AT_ONCE)
        return [plan for plan in plans if plan is not None]

    # --- stage, publish, verify ---

    async def _stage(self, plan: Document) -> Document:
        work = [Work.of(each) for each in plan["work"]]
        cores = await self._env.engine.cores() if work else 1
        groups = divide(work, lambda each: each.weight, cores=cores, worth=WORTH)
        limits = self._options.limits
        bounds = (limits.frame_bytes, limits.payload_bytes, limits.records, limits.elements)
        payloads = [payload_of(group, self._options.windows, bounds) for group in groups]
        rows = await self._env.engine.run(self.name, unit_task, payloads, self._env.progress(f"{self.name}: units"))
        await self._report({ident for row in rows for ident in row["lost"]}, work)
        names = (
            "inputs",
            "records",
            "repeated",
            "doubtful",
            "unreadable",
            "chunks",
            "rows",
            "read_bytes",
            "wrote_bytes",
        )
        return {"units": len(rows), **{name: sum(row[name] for row in rows) for name in names}}

    async def _report(self, lost: set[str], work: Iterable[Work]) -> None:
        """Batches that were listed, and cannot be read any more: they are looked at again in every run."""
        hashes = {each.id: each.sha256 for one in work for each in one.unit.inputs if each.id in lost}
        found: list[Problem] = []
        for ident, sha256 in sorted(hashes.items()):
            async for key in self._store.keys(ingest.accepted_by_blob_folder(sha256)):
                identity = ingest.identity_in(key)
                if identity is not None and identity.manifest_id == ident:
                    told = "its bytes were there when it was reconciled, and could not be read when they were needed"
                    found.append(Problem(Finding.MISSING_BLOB, ingest.accepted_key(identity), told))
        await problems.record(self._store, self._env.ambient, found)

    async def _publish(self, plan: Document) -> Document:
        plans = [HourPlan.of(each) for each in plan["plans"]]
        done: list[list[object]] = []
        superseded: list[int] = []
        broken: list[Problem] = []
        left_out: list[int] = []

        async def one(each: HourPlan) -> None:
            try:
                published = await publish(self._store, each)
            except (Corrupt, Incompatible) as error:
                broken.append(problems.of_hour(each.kind, each.hour, str(error)))
                left_out.append(each.hour)
                return
            if published.superseded:
                superseded.append(each.hour)
            elif published.generation is not None:
                done.append([each.hour, published.generation.key])

        await map_bounded(plans, one, limit=AT_ONCE)
        await problems.record(self._store, self._env.ambient, broken)
        counts = {"published": len(done), "superseded": len(superseded)}
        counts["broken_hours"] = plan.get("broken_hours", 0) + len(broken)
        hours = sorted(layout.hour_name(int(str(hour))) for hour, _ in done)
        return {
            "done": sorted(done, key=str),
            "superseded": sorted(superseded),
            "broken": sorted(left_out),
            "hours": hours,
            "counts": counts,
        }

    async def _verify(self, plan: Document, published: Document) -> Document:
        lost = {*published["superseded"], *published.get("broken", ())}
        plans = [each for each in map(HourPlan.of, plan["plans"]) if each.hour not in lost]
        await map_bounded(
            [each for each in plans if each.changed], lambda each: verify(self._store, each), limit=AT_ONCE
        )
        await self._mark_days(plan, plans)
        await self._mark_merges(plan, plans)
        covered = [key for each in plans for key in plan["marks"].get(str(each.hour), [])]
        await due.clear(self._store, covered)
        return {"verified": len(plans)}

    async def _mark_days(self, plan: Document, plans: Iterable[HourPlan]) -> None:
        """A new generation of an hour makes its day due: before the hour's own marks go, or nobody would know.

        An hour that is marked and has not changed was published by somebody who may not have come this far.
        """
        if Kind.DAILY in self._kinds:
            for each, key in _fresh(plan, plans):
                await due.mark(
                    self._store, self._env.ambient, Kind.DAILY, each.hour // DAY_HOURS * DAY_HOURS, mark_of(key)
                )

    async def _mark_merges(self, plan: Document, plans: Iterable[HourPlan]) -> None:
        """Of an hour in several pieces: once it is closed, they can be put together."""
        for each, key in _fresh(plan, plans):
            if each.buckets > 1 or len(each.listings) > 1:
                await due.mark(self._store, self._env.ambient, layout.MERGE, each.hour, mark_of(key))


def _fresh(plan: Document, plans: Iterable[HourPlan]) -> Iterator[tuple[HourPlan, str]]:
    """Hours of rollups that have a new generation, with its key; or that may have, since they are marked."""
    for each in plans:
        number = each.base + 1 if each.changed else each.base
        if each.kind is Kind.ROLLUP and number and (each.changed or plan["marks"].get(str(each.hour))):
            yield each, derived.generation_key(each.hour, each.kind, number)


def mark_of(key: str) -> str:
    """What a mark is called that a generation has led to."""
    return hashlib.sha256(key.encode()).hexdigest()


def _inputs(plan: HourPlan) -> int:
    return sum(len(work.sources) for work in plan.work)


def rollup_job(env: Env) -> Derive:
    return Derive(env, "rollup", (Kind.ROLLUP, Kind.DAILY))


def index_job(env: Env) -> Derive:
    return Derive(env, "index", (Kind.INDEX,))
