"""Merge: put together what closed hours have in small pieces. The job ``merge``.

An hour is *closed* when it ended ``merge_after_ns`` ago, and was derived for the last time so long ago: while late data
trickles in, nothing is gained by putting together what is divided anew. Of such an hour

* the listings of batches become one (``rollup.listing``): nothing is published, for it says what they say;
* the units become few (``rollup.merge``): one chunk per metric and window, in as few buckets as chunks of a good size
  allow, and one unit of the sealed ones in a bucket. They are made beside the others; the next generation names them.

Steps: *plan* (which hours have anything to put together), *stage* (tasks make it; no reader of generations sees it),
*publish* (the next number after the generation that was read, or not at all), *verify* (marks go). Then days are made
anew from the units that their hours have now. All names follow from what is put together. So whoever does it again, or
at the same time, makes what is there already; of two drivers one gets the number, and the hour of the other stays due.
Inputs are exactly those of the generation before.

What was superseded is garbage collection's, with its fence and its grace. A task that misses a chunk or a unit makes
nothing: the hour has another generation since. Whatever comes late is derived by ``rollup``, which divides the hour
anew.

Errors: what cannot be read leaves its hour as it is; whoever derives or audits the hour tells of it.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import CREATE, Lost, Store, Written
from holdfast.pipeline import due, layout, ranges
from holdfast.pipeline.derive import Derive, mark_of
from holdfast.pipeline.job import Steps
from holdfast.pipeline.options import Env
from holdfast.pipeline.partition import divide
from holdfast.pipeline.plan import DAY_HOURS, read_generation
from holdfast.telemetry.rollup import chunk, listing, merge
from holdfast.telemetry.rollup import layout as derived
from holdfast.telemetry.rollup.derive import Chunk
from holdfast.telemetry.rollup.manifest import ChunkRef, Generation, Kind, Table, Unit, UnitManifest
from holdfast.telemetry.rollup.merge import Division, Joint

AT_ONCE = 8
HOURS_AT_ONCE = 200
"""That one run takes; the next takes the rest."""
JOINTS = 4
"""Chunks that a task puts together at the same time: each is held decoded."""
READS = 8
WORTH = 16 << 20
"""Bytes that are worth a task of their own."""
EACH = 256 << 10
"""What an object costs besides its bytes, as if it were so many."""

log = logger("pipeline")


@dataclass(frozen=True, slots=True)
class HourMerge:
    """What is to be put together of one hour."""

    hour: int
    base: int
    """The number of the generation that was read; 0 if its units stay as they are."""
    buckets: int = 1
    groups: tuple[int, ...] = ()
    listings: int = 0
    """That become one; 0 if they are."""
    units: int = 0
    remade: int = 0
    """The number of the current generation, if it is newer than what the hour was marked for: whoever published it may
    not have come so far as to mark the day."""
    weights: tuple[int, ...] = ()
    """Of each group."""

    @classmethod
    def of(cls, document: Document) -> "HourMerge":
        return cls(**{**document, "groups": tuple(document["groups"]), "weights": tuple(document["weights"])})

    @property
    def division(self) -> Division:
        return Division(self.buckets, self.groups)

    def work(self) -> list[Document]:
        """What tasks are told."""
        told = {"hour": self.hour, "base": self.base, "buckets": self.buckets}
        found = [
            {**told, "bucket": bucket, "weight": weight}
            for bucket, weight in zip(self.groups, self.weights, strict=True)
        ]
        return found + ([{"hour": self.hour, "weight": self.listings * EACH}] if self.listings else [])


class Merge:
    name = "merge"
    version = "1"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options = env.store, env.options
        self._days = Derive(env, self.name, (Kind.DAILY,))

    async def is_due(self) -> bool:
        return bool(await self._ripe())

    async def split(self, request: Document) -> list[Document]:
        return await ranges.split(self._store, request)

    async def run(self, ctx: Steps, request: Document) -> Document:
        plan = await ctx.step("plan", self._plan, request)
        staged = await ctx.step("stage", self._stage, plan)
        published = await ctx.step("publish", self._publish, plan, staged["made"])
        await ctx.step("verify", self._verify, plan, published)
        days = await self._days.run(ctx, {})
        counts = {**published["counts"], "days": days.get("published", 0)}
        counts["superseded"] += days.get("superseded", 0)
        hours = sorted({layout.hour_name(hour) for hour in (*published["done"], *staged["listed"])})
        return {**staged["counts"], **counts, "hours": hours, "more": plan["more"] or days["more"]}

    async def preview(self, request: Document) -> list[HourMerge]:
        """What a run would do, without doing it."""
        wanted = await self._wanted(request)
        found = await map_bounded(wanted.items(), lambda each: self._look(*each), limit=AT_ONCE)
        return [each for each in found if each is not None and (each.groups or each.listings)]

    # --- plan ---

    async def _plan(self, request: Document) -> Document:
        wanted = await self._wanted(request)
        left = list(wanted)
        hours: list[HourMerge] = []
        looked: list[int] = []
        while left and len(hours) < HOURS_AT_ONCE:
            group, left = left[:AT_ONCE], left[AT_ONCE:]
            found = await map_bounded(group, lambda hour: self._look(hour, wanted[hour]), limit=AT_ONCE)
            hours += [each for each in found if each is not None]
            looked += group
        marks = {str(hour): wanted[hour] for hour in looked}
        return {"hours": [asdict(each) for each in hours], "marks": marks, "more": bool(left)}

    async def _wanted(self, request: Document) -> dict[int, list[str]]:
        """Hours to look at, with the marks that led there."""
        since, until = request.get("since_ns"), request.get("until_ns")
        if since is None and until is None:
            return await self._ripe()
        marked = await due.marks(self._store, layout.MERGE)
        found = {hour for hour in await ranges.hours(self._store, since, until) if ranges.within(hour, 1, since, until)}
        return self._closed({hour: marked.get(hour, []) for hour in sorted(found)})

    async def _ripe(self) -> dict[int, list[str]]:
        """Hours that are closed, with their marks."""
        marks: dict[int, list[str]] = defaultdict(list)
        after_ns, now_ns = self._options.merge_after_ns, self._env.ambient.clock.wall_ns()
        young: set[int] = set()
        async for page in self._store.list(layout.due_folder(layout.MERGE)):
            for entry in page.entries:
                mark = layout.due_in(entry.key)
                if mark is not None:
                    marks[mark[1]].append(entry.key)
                    if after_ns and entry.modified_ns + after_ns > now_ns:
                        young.add(mark[1])
        return self._closed({hour: keys for hour, keys in sorted(marks.items()) if hour not in young})

    def _closed(self, hours: dict[int, list[str]]) -> dict[int, list[str]]:
        return due.ripe(hours, layout.MERGE, self._options.merge_after_ns, self._env.ambient.clock.wall_ns())

    async def _look(self, hour: int, marks: Iterable[str]) -> HourMerge | None:
        """What is to be done of an hour; None if nothing, or if it cannot be read."""
        try:
            current = await read_generation(self._store, Kind.ROLLUP, hour)
        except (Corrupt, Incompatible) as error:
            log.warning("%s; its hour is not merged", error)
            return None
        keys = await listing.listings(self._store, hour)
        parts = listing.ids(keys)
        held = max((merged[0] for key in keys if (merged := derived.merged_in(key)) is not None), default=1)
        found = HourMerge(hour, 0, listings=len(parts) if len(parts) > held else 0)
        if current is not None:
            asked = {ident for mark in map(layout.due_in, marks) if mark is not None for ident in mark[2:]}
            if asked and mark_of(current.key) not in asked:
                found = replace(found, remade=current.number)
            division = merge.division(current)
            if division is not None:
                weights = tuple(_weight(current, division, bucket) for bucket in division.groups)
                told = (current.number, division.buckets, division.groups, found.listings, len(current.units))
                found = HourMerge(hour, *told, found.remade, weights)
        return found if found.groups or found.listings or found.remade else None

    # --- stage, publish, verify ---

    async def _stage(self, plan: Document) -> Document:
        work = [each for hour in plan["hours"] for each in HourMerge.of(hour).work()]
        cores = await self._env.engine.cores() if work else 1
        groups = divide(work, lambda each: each["weight"], cores=cores, worth=WORTH)
        payloads = [json.dumps(group).encode() for group in groups]
        rows = await self._env.engine.run(self.name, merge_task, payloads, self._env.progress("merge: hours"))
        made: dict[str, list[str | None]] = defaultdict(list)
        for row in rows:
            if "unit" in row:
                made[str(row["hour"])].append(row["unit"])
        names = ("replaced", "chunks", "rows", "read_bytes", "wrote_bytes", "listings")
        counts = {name: sum(row.get(name, 0) for row in rows) for name in names}
        return {"made": dict(made), "listed": [row["hour"] for row in rows if row.get("listings")], "counts": counts}

    async def _publish(self, plan: Document, made: dict[str, list[str | None]]) -> Document:
        done: list[int] = []
        superseded: list[int] = []
        left: list[int] = []
        units = 0

        async def one(each: HourMerge) -> None:
            nonlocal units
            names = made.get(str(each.hour), [])
            if None in names:
                left.append(each.hour)
                return
            outcome = await publish(self._store, each, [name for name in names if name is not None])
            (superseded if outcome is None else done).append(each.hour)
            units += 0 if outcome is None else len(outcome.units)

        hours = [HourMerge.of(each) for each in plan["hours"]]
        await map_bounded([each for each in hours if each.groups], one, limit=AT_ONCE)
        counts = {"units": units, "published": len(done), "superseded": len(superseded), "left": len(left)}
        return {"done": sorted(done), "superseded": sorted(superseded), "counts": counts}

    async def _verify(self, plan: Document, published: Document) -> Document:
        """Days are made from units of hours, by name: a day whose hours have others is due."""
        for each in map(HourMerge.of, plan["hours"] if self._options.windows.daily else ()):
            number = each.base + 1 if each.hour in published["done"] else each.remade
            if number:
                key = derived.generation_key(each.hour, Kind.ROLLUP, number)
                await due.mark(
                    self._store, self._env.ambient, Kind.DAILY, each.hour // DAY_HOURS * DAY_HOURS, mark_of(key)
                )
        lost = {str(hour) for hour in published["superseded"]}
        await due.clear(self._store, [key for hour, keys in plan["marks"].items() if hour not in lost for key in keys])
        return {"verified": len(published["done"])}


async def publish(store: Store, asked: HourMerge, unit_ids: Iterable[str]) -> Generation | None:
    """Make these units the current ones; None if others were faster, with anything else than the same."""
    stored = await store.find(derived.generation_key(asked.hour, Kind.ROLLUP, asked.base))
    found = [await store.find(derived.unit_key(asked.hour, unit_id)) for unit_id in unit_ids]
    if stored is None:
        return None
    made = [UnitManifest.read(each) for each in found if each is not None]
    if len(made) < len(found):
        return None
    generation = merge.generation(Generation.read(stored), asked.division, made)
    body = generation.encode()
    outcome = await store.put(generation.key, body, CREATE)
    if isinstance(outcome, Lost):  # an earlier try, or whoever put the same together
        there = outcome.current or await store.find(generation.key)
        return generation if there is not None and there.body == body else None
    return generation


# --- tasks ---


async def merge_task(store: Store, payload: bytes) -> list[Document]:
    """A task: groups of units and listings of hours, one after the other."""
    rows: list[Document] = []
    for asked in json.loads(payload):
        hour = asked["hour"]
        if "base" not in asked:
            rows.append({"hour": hour, "listings": await _merge_listings(store, hour)})
            continue
        try:
            rows.append(await put_together(store, hour, asked["base"], asked["buckets"], asked["bucket"]))
        except NotFound:  # the hour has another generation since
            rows.append({"hour": hour, "unit": None})
        except (Corrupt, Incompatible) as error:
            log.warning("%s; its hour is not merged", error)
            rows.append({"hour": hour, "unit": None})
    return rows


async def _merge_listings(store: Store, hour: int) -> int:
    try:
        return await listing.merge(store, hour)
    except Corrupt as error:
        log.warning("%s; the listings of its hour are not merged", error)
        return 0


async def put_together(store: Store, hour: int, base: int, buckets: int, bucket: int) -> Document:
    """Make the unit of one group, if it is not there. Errors: ``NotFound`` if a part of it is gone."""
    current = Generation.read(await store.get(derived.generation_key(hour, Kind.ROLLUP, base)))
    members = Division(buckets, ()).members(bucket, current.units)
    keys = [derived.unit_key(hour, each.unit_id) for each in members]
    parts = [UnitManifest.read(found) for found in await map_bounded(keys, store.get, limit=READS)]
    unit = merge.together(current, buckets, bucket, parts)
    if unit is None:
        return {"hour": hour, "unit": None}
    joints = list(merge.joints(members, parts))
    replaced = sum(len(joint.refs) for joint in joints)
    told = {"hour": hour, "unit": unit.id, "replaced": replaced, "chunks": len(joints)}
    there = await store.find(unit.key)
    if there is not None:
        return {**told, "unit": unit.id if _same(UnitManifest.read(there), parts) else None}
    made = await map_bounded(joints, lambda joint: _put(store, unit, joint), limit=JOINTS)
    manifest = merge.manifest(unit, parts, made)
    await store.put(manifest.key, manifest.encode(), CREATE)
    read_bytes = sum(ref.bytes for joint in joints for ref in joint.refs)
    wrote = {"rows": sum(ref.rows for ref in made), "wrote_bytes": sum(ref.bytes for ref in made)}
    return {**told, **wrote, "read_bytes": read_bytes}


def _same(there: UnitManifest, parts: Iterable[UnitManifest]) -> bool:
    """Whether a unit of this name counts what its parts do, and was not derived while a batch could not be read."""
    return not there.unreadable and there.records == sum(each.records for each in parts)


async def _put(store: Store, unit: Unit, joint: Joint) -> ChunkRef:
    """One chunk from several. An existing key means done, as for whoever derives it."""

    async def one(ref: ChunkRef) -> bytes:
        body = (await store.get(ref.key)).body
        ref.check(body)
        return body

    bodies = await map_bounded(joint.refs, one, limit=READS)
    made = await blocking(_chunk, unit, joint, bodies)
    if isinstance(await store.put(made.ref.key, made.body, CREATE), Written):
        return made.ref
    body = (await store.get(made.ref.key)).body
    return replace(made.ref, bytes=len(body), crc32=zlib.crc32(body))


def _chunk(unit: Unit, joint: Joint, bodies: list[bytes]) -> Chunk:
    if len(bodies) == 1:  # the same rows under another name
        [ref] = joint.refs
        chunk_id = unit.chunk_id(Table.ROLLUP, joint.metric, joint.window_ns, joint.part)
        key = derived.rollup_key(joint.window_ns, unit.hour, joint.metric, chunk_id)
        return Chunk(replace(ref, key=key), bodies[0])
    rows = [chunk.decode(body, key=ref.key) for ref, body in zip(joint.refs, bodies, strict=True)]
    return merge.joined(unit, joint, rows)


def _weight(current: Generation, division: Division, bucket: int) -> int:
    refs = [ref for unit in division.members(bucket, current.units) for ref in unit.chunks]
    return sum(ref.bytes + EACH for ref in refs)
