"""The job ``gc``: plan shards, sweep them, settle what a task that was cut short has left open.

A run is durable: a driver that is killed leaves it to the next one, which sweeps again the shards of the step at which
it stood. Sweeping twice removes nothing more. Nothing is removed without ``apply``; then a run writes nothing at all
but for its own journal, and ``preview`` not even that.

What a driver holds is the names of shards and sums: its memory does not grow with what is looked at.
"""

from collections.abc import Awaitable, Callable

from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.objects.store import Store
from holdfast.pipeline.gc import batches, derived, events, gatherings, ontology, orphans, record, records, runs, windows
from holdfast.pipeline.gc.options import KINDS, Ask
from holdfast.pipeline.gc.proof import latest_proof
from holdfast.pipeline.gc.record import Tally
from holdfast.pipeline.gc.task import gc_task
from holdfast.pipeline.job import Steps, latest
from holdfast.pipeline.options import Env

AT_ONCE = 256
"""Shards that are handed to the engine together."""

Planner = Callable[[Store], Awaitable[list[str]]]
PLANNERS: dict[str, Planner] = {
    "orphans": orphans.shards,
    "derived": derived.shards,
    "gatherings": gatherings.shards,
    "ontology": ontology.shards,
    "runs": runs.shards,
    "records": records.shards,
    "expire-batches": batches.shards,
    "expire-rollups": windows.shards,
    "expire-runs": runs.expiring,
    "expire-events": events.shards,
}


class Gc:
    name = "gc"
    version = "1"

    def __init__(self, env: Env) -> None:
        self._env = env
        self._store, self._options = env.store, env.options.gc

    async def is_due(self) -> bool:
        """Whether the last run is long enough ago."""
        last = await latest(self._store, self.name)
        now_ns = self._env.ambient.clock.wall_ns()
        return last is None or now_ns - last.started_ms * 1_000_000 >= self._options.every_ns

    async def split(self, request: Document) -> list[Document]:
        return [request]

    async def run(self, ctx: Steps, request: Document) -> Document:
        begun = await ctx.step("begin", self._begin, request, ctx.run_id)
        total, kinds = Tally(), {}
        left: int | None = begun["limit"]
        for kind in begun["kinds"]:
            shards = await ctx.step(f"plan {kind}", self._plan, kind)
            found = await ctx.step(f"sweep {kind}", self._sweep, {**begun, "limit": left}, kind, shards, ctx.run_id)
            total.add(found)
            kinds[kind] = found
            left = None if left is None else max(0, left - sum(found["removed"].values()))
        settled = await ctx.step("settle", self._settle, begun, ctx.run_id)
        removed = sum(total.removed.values())
        told = {"apply": begun["apply"], "off": begun.get("off", {})}
        return {**told, "removed": removed, "bytes": total.bytes, "kinds": kinds, **settled}

    async def preview(self, request: Document) -> Document:
        """What a run would do. Reads alone; ages are judged by this machine's clock."""
        asked = self._asked(request)
        proof = await latest_proof(self._store)
        begun = {**asked, "apply": False, "now_ns": self._env.ambient.clock.wall_ns()}
        begun["proof_ns"] = None if proof is None else proof.through_ns
        kinds: Document = {}
        for kind in asked["kinds"]:
            kinds[kind] = await self._sweep(begun, kind, await self._plan(kind), "preview")
        return {**begun, "kinds": kinds}

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
        proof = await latest_proof(self._store)
        now_ns = self._env.ambient.clock.wall_ns()
        if asked["apply"]:
            now_ns = await record.begin(
                self._store, run_id, {**asked, "proof": None if proof is None else proof.document()}
            )
        return {**asked, "now_ns": now_ns, "proof_ns": None if proof is None else proof.through_ns}

    async def _plan(self, kind: str) -> list[str]:
        return await PLANNERS[kind](self._store)

    async def _sweep(self, begun: Document, kind: str, shards: list[str], run_id: str) -> Document:
        """All shards, some at a time; one at a time if there is a limit to what may be removed."""
        tally = Tally()
        left: int | None = begun["limit"]
        group = AT_ONCE if left is None else 1
        for start in range(0, len(shards), group):
            if left is not None and left <= 0:
                tally.more = True
                break
            payloads = [
                Ask(
                    kind,
                    shard,
                    run_id,
                    begun["apply"],
                    begun["now_ns"],
                    begun["proof_ns"],
                    left,
                    self._options,
                ).payload()
                for shard in shards[start : start + group]
            ]
            for row in await self._env.engine.run(f"gc {kind}", gc_task, payloads, self._progress(kind, start, shards)):
                tally.add(row)
            left = None if begun["limit"] is None else begun["limit"] - sum(tally.removed.values())
        return tally.document()

    def _progress(self, kind: str, start: int, shards: list[str]) -> Callable[[int, int], None]:
        return lambda done, total: self._env.say(f"gc: {kind}", start + done, len(shards))

    async def _settle(self, begun: Document, run_id: str) -> Document:
        """Conclude what a task of this run was about to do when it was cut short."""
        return {"settled": await record.settle(self._store, run_id) if begun["apply"] else 0}
