"""Garbage collection and retention. The job ``gc``, which runs when it is named; nothing is removed without ``apply``.

    objects  := scan(blobs, references by blob, derived data)    key, size, modified_ns
    named    := map(the newest generations, Named)               what the current state of each hour names
    chosen   := blobs ANTI JOIN references, derived objects ANTI JOIN named, and what has no joins (``subjects``)
    swept    := map(chosen, Remove)                              judged by reading, fenced, recorded, removed

The SQL only saves work: ``Remove`` judges each row by the store as it is then, so a row that should not have been
chosen costs a read and removes nothing. Everything is listed before any fence is made (``gc.derived``).

Steps: *begin* (the store's own time, the audit that orphans rest on), *sweep* (the relational part, staged), *end*
(remove staged tables). A driver that was killed leaves its run to the next one, which removes again what the same
snapshot chose: removing twice changes nothing. ``preview`` does the same without a run; a dry run writes staged tables,
which it removes, and nothing else.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import pyarrow as pa

from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.objects.store import Entry, Store
from holdfast.pipeline.engine import staged
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import Relations, Step, relations
from holdfast.pipeline.gc import batches, derived, leftovers, ontology, orphans
from holdfast.pipeline.gc.options import KINDS
from holdfast.pipeline.gc.sweep import EXAMPLES, Ask, Sweep, begin
from holdfast.pipeline.job import Steps, latest
from holdfast.pipeline.jobs.audit import below
from holdfast.pipeline.jobs.audited import Scope, latest_complete
from holdfast.pipeline.options import Env
from holdfast.pipeline.tables.objects import OBJECTS, ObjectsTable
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.rollup import layout as rollup

JOINED: Mapping[str, tuple[str, ...]] = {
    "orphans": (ingest.BLOBS, ingest.ACCEPTED_BY_BLOB),
    "derived": (rollup.MANIFESTS, rollup.ROLLUP, rollup.INDEX),
}
"""Kinds whose objects are found by joining listings, and the prefixes that they need."""

Parts = Callable[[Store], Awaitable[list[str]]]
Sweeper = Callable[[str, Sweep], Awaitable[None]]
SUBJECTS: Mapping[str, tuple[Parts, Sweeper]] = {
    "ontology": (ontology.shards, ontology.sweep),
    "runs": (leftovers.run_ranges, leftovers.sweep_runs),
    "records": (leftovers.one_part, leftovers.expire_records),
    "expire-batches": (batches.shards, batches.expire),
    "expire-rollups": (derived.days, derived.expire_windows),
    "expire-runs": (leftovers.one_part, leftovers.expire_runs),
    "expire-events": (leftovers.namespaces, leftovers.expire_events),
}
"""Kinds that need no join: how each is divided into parts, and the function for a part."""

PARTS = pa.schema([("kind", pa.string()), ("part", pa.string())])
NAMED = pa.schema([("key", pa.string())])
SWEPT = pa.schema(
    [("kind", pa.string()), ("outcome", pa.string()), ("why", pa.string()), ("key", pa.string()), ("n", pa.int64())]
)
PART_WORK = 500
"""The work of a part, as a number of checks of one object."""
BY_PART = Spread(by=("kind", "part"), worth=1_000, order=("key",), work="work")
NEWEST = "SELECT key FROM newest"
CHOSEN = "SELECT * FROM chosen"
UNREADABLE = "an object that decides about the others cannot be read"


class Gc:
    name = "gc"
    version = "3"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options = env.store, env.options.gc

    async def is_due(self) -> bool:
        """Whether the last run began at least the set interval ago."""
        last = await latest(self._store, self.name)
        now_ns = self._env.ambient.clock.wall_ns()
        return last is None or now_ns - last.started_ms * 1_000_000 >= self._options.every_ns

    async def split(self, request: Document) -> list[Document]:
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        begun = await ctx.step("begin", self._begin, request, ctx.run_id)
        kinds = await ctx.step("sweep", self._sweep, begun, ctx.run_id)
        await ctx.step("end", self._end, ctx.run_id)
        removed = sum(sum(found["removed"].values()) for found in kinds.values())
        size = sum(found["bytes"] for found in kinds.values())
        asked = {"apply": begun["apply"], "off": begun.get("off", {})}
        return {**asked, "removed": removed, "bytes": size, "kinds": kinds}

    async def preview(self, request: Document) -> Document:
        """What a run would do. Ages are judged by this machine's clock."""
        begun = await self._begin({**request, "apply": False}, "")
        run_id = f"preview-{self._env.ambient.ids.unique()}"
        try:
            return {**begun, "kinds": await self._sweep(begun, run_id)}
        finally:
            await staged.remove(self._store, run_id)

    async def explain(self, request: Document) -> list[Step]:
        """The relational steps as the engine would run them. Reads nothing, and writes nothing."""
        kinds = self._asked(request)["kinds"]
        listed = [prefix for kind in kinds for prefix in JOINED.get(kind, ())]
        alone = [kind for kind in kinds if kind in SUBJECTS]
        async with relations(self._store, self._env.engine, "explain", self._watch) as work:
            for name, schema in (("objects", OBJECTS), ("subjects", PARTS), ("named", NAMED)):
                work.declare(name, schema)
            define(work, kinds)
            steps = [
                Step("objects", f"list {', '.join(listed) or 'nothing'}"),
                Step("subjects", f"find the parts of {', '.join(alone) or 'nothing'}"),
            ]
            if "derived" in kinds:
                steps.append(await work.explain("named", "read each of these generations: what it names", NEWEST))
            return [*steps, await work.explain("swept", "judge each of these; remove what may go", CHOSEN)]

    def _asked(self, request: Document) -> Document:
        wanted = list(request.get("kinds") or [])
        for kind in wanted:
            if kind not in KINDS:
                raise Invalid(f"there is no kind of garbage {kind!r}", remedy=f"use {', '.join(KINDS)}")
        kinds = self._options.wanted(wanted)
        return {
            "kinds": kinds,
            "off": {kind: setting for kind, setting in self._options.off().items() if kind in kinds},
            "apply": bool(request.get("apply", self._options.apply)),
            "limit": request.get("limit"),
        }

    async def _begin(self, request: Document, run_id: str) -> Document:
        asked = self._asked(request)
        audit = await latest_complete(self._store, Scope.INGEST)
        proof_ns = None if audit is None else audit.through_unix_ns
        now_ns = self._env.ambient.clock.wall_ns()
        if asked["apply"]:
            proof = None if audit is None else {"audit": audit.key, "through_unix_ns": proof_ns}
            now_ns = await begin(self._store, run_id, {**asked, "proof": proof})
            await staged.sweep(self._store, now_ns)
        return {**asked, "now_ns": now_ns, "proof_ns": proof_ns}

    async def _sweep(self, begun: Document, run_id: str) -> Document:
        kinds, limit = begun["kinds"], begun["limit"]
        ask = Ask(run_id, begun["apply"], begun["now_ns"], begun["proof_ns"], limit, self._options)
        async with relations(self._store, self._env.engine, run_id, self._watch) as work:
            await work.scan("objects", ObjectsTable(tuple(p for kind in kinds for p in JOINED.get(kind, ()))))
            await work.put("subjects", PARTS, self._subjects(kinds))
            define(work, kinds)
            if "derived" in kinds:
                await work.map("named", NEWEST, Named(), Spread(by=("key",), worth=500))
            # With a limit there is one task, which counts.
            spread = BY_PART if limit is None else replace(BY_PART, worth=1 << 62)
            await work.map("swept", CHOSEN, Remove(ask), spread)
            return summary(kinds, await work.rows(COUNTS), await work.rows(EXAMPLES_OF))

    async def _end(self, run_id: str) -> None:
        await staged.remove(self._store, run_id)

    def _watch(self, step: str) -> Any:
        return self._env.progress(f"gc: {step}")

    async def _subjects(self, kinds: Sequence[str]) -> AsyncIterator[pa.RecordBatch]:
        for kind in kinds:
            if kind in SUBJECTS:
                rows = [{"kind": kind, "part": part} for part in await SUBJECTS[kind][0](self._store)]
                yield pa.RecordBatch.from_pylist(rows, PARTS)


# --- the SQL ---

COUNTS = "SELECT kind, outcome, why, sum(n) AS n FROM outcomes GROUP BY kind, outcome, why"
EXAMPLES_OF = f"""
    SELECT kind, why, key FROM (
        SELECT *, row_number() OVER (PARTITION BY kind, why ORDER BY key) AS place FROM swept WHERE outcome = 'example'
    ) AS numbered WHERE place <= {EXAMPLES} ORDER BY kind, why, key"""


def define(work: Relations, kinds: Sequence[str]) -> None:
    """Tables: objects, subjects; named once it is staged; swept."""
    chosen = [f"SELECT kind, part, '' AS key, 0 AS size, 0 AS modified_ns, {PART_WORK} AS work FROM subjects"]
    looked = ["SELECT kind, outcome, why, n FROM swept WHERE outcome <> 'example'"]
    if "orphans" in kinds:
        hashed = "split_part(split_part(key, '/', 6), '.', 1) AS sha256"
        work.view("blobs", f"SELECT *, {hashed} FROM objects WHERE {below(ingest.BLOBS)}")
        work.view("referred", f"SELECT {hashed} FROM objects WHERE {below(ingest.ACCEPTED_BY_BLOB)}")
        work.view("orphaned", "SELECT blobs.* FROM blobs ANTI JOIN referred ON blobs.sha256 = referred.sha256")
        chosen.append("SELECT 'orphans', substr(sha256, 1, 4), key, size, modified_ns, 5 FROM orphaned")
        looked.append("SELECT 'orphans', 'looked', '', count(*) FROM blobs")
    if "derived" in kinds:
        hour = "regexp_extract(key, 'date=[0-9-]+/hour=[0-9]+/', 0)"
        prefixes = below(rollup.MANIFESTS, rollup.ROLLUP, rollup.INDEX)
        work.view("derived", f"SELECT *, {hour} AS hour FROM objects WHERE {prefixes} AND {hour} <> ''")
        work.view(
            "newest",
            "SELECT max(key) AS key FROM derived "
            f"WHERE {below(rollup.MANIFESTS)} AND key NOT LIKE '{rollup.MANIFESTS}%/unit-%' "
            "GROUP BY hour, split_part(split_part(key, '/', 5), '-', 1)",
        )
        work.view("unnamed", "SELECT derived.* FROM derived ANTI JOIN named ON derived.key = named.key")
        chosen.append("SELECT 'derived', hour, key, size, modified_ns, 2 FROM unnamed")
        looked.append("SELECT 'derived', 'looked', '', count(*) FROM derived")
    work.view("chosen", "\nUNION ALL\n".join(chosen))
    work.view("outcomes", "\nUNION ALL\n".join(looked))


def summary(kinds: Sequence[str], counts: Sequence[Document], examples: Sequence[Document]) -> Document:
    """For each kind, how many objects were checked, removed, repaired and kept, and why, with the first keys."""
    found: Document = {}
    for kind in kinds:
        own = [row for row in counts if row["kind"] == kind]
        by_outcome = {
            outcome: {row["why"]: int(row["n"]) for row in own if row["outcome"] == outcome}
            for outcome in ("removed", "kept", "did")
        }
        totals = {name: sum(int(row["n"]) for row in own if row["outcome"] == name) for name in ("looked", "bytes")}
        keys: dict[str, list[str]] = {}
        for row in examples:
            if row["kind"] == kind:
                keys.setdefault(row["why"], []).append(row["key"])
        more = any(row["outcome"] == "more" for row in own)
        found[kind] = {**totals, "more": more, "examples": keys, **by_outcome}
    return found


# --- kernels ---


@dataclass(frozen=True)
class Named:
    """The keys that generations refer to: their own, and those of their units and chunks. A generation that cannot be
    read gives none, so all objects of its hour are chosen, and ``derived`` reports it.
    """

    schema: pa.Schema = NAMED

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            for key in batch.column("key").to_pylist():
                names = [{"key": name} for name in await derived.named_by(store, key)]
                yield pa.RecordBatch.from_pylist(names, NAMED)


@dataclass(frozen=True)
class Remove:
    """Judges what was chosen, and removes what may go, recorded first. It may run twice, at once or much later."""

    ask: Ask
    schema: pa.Schema = SWEPT

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        out: Sweep | None = None
        keeper: orphans.Keeper | None = None
        async for kind, part, entries in _parts(given):
            if out is None or out.kind != kind:
                if out is not None:
                    yield await _counted(out)
                limit = self.ask.limit if out is None else out.left
                out = Sweep(store, kind, replace(self.ask, limit=limit))
            if out.exhausted():
                continue
            try:
                if kind == "orphans":
                    keeper = keeper if keeper is not None else await orphans.keeper(store, out.ambient)
                    await orphans.sweep(keeper, entries, out)
                elif kind == "derived":
                    await derived.sweep(entries, out)
                else:
                    await SUBJECTS[kind][1](part, out)
            except (Corrupt, Incompatible) as error:  # nothing is proved, so the rest of this part stays
                out.keep(UNREADABLE, str(error))
        if out is not None:
            yield await _counted(out)


async def _parts(given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[tuple[str, str, list[Entry]]]:
    """Rows of one part together: they come in order, and a part is a few hundred objects."""
    at, entries = ("", ""), list[Entry]()
    async for batch in given:
        for place, rows in groupby(batch.to_pylist(), lambda row: (row["kind"], row["part"])):
            if at not in (place, ("", "")):
                yield *at, entries
                entries = []
            at = place
            entries += [Entry(row["key"], row["size"], row["modified_ns"]) for row in rows]
    if at != ("", ""):
        yield *at, entries


async def _counted(out: Sweep) -> pa.RecordBatch:
    await out.flush()
    rows = [
        {"kind": out.kind, "outcome": outcome, "why": why, "key": "", "n": count}
        for (outcome, why), count in out.counts.items()
    ]
    rows += [
        {"kind": out.kind, "outcome": "example", "why": why, "key": key, "n": 0}
        for why, keys in out.examples.items()
        for key in keys
    ]
    return pa.RecordBatch.from_pylist(rows, SWEPT)
