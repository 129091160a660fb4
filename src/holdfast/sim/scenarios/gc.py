"""Garbage collection beside those who use what it judges: collectors, drivers, an ontology, runs."""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast.objects.store import CREATE, Store
from holdfast.ontology.format import layout as ontology_layout
from holdfast.ontology.maintain.compact import GRACE_NS
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc import leftovers, ontology, orphans
from holdfast.pipeline.gc.options import GcOptions
from holdfast.pipeline.gc.sweep import Ask, Sweep, begin
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited, Scope, latest_complete
from holdfast.pipeline.jobs.gc import Gc, Sweeper
from holdfast.pipeline.options import Env, Options
from holdfast.runs import layout as runs_layout
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.payload import put_payload
from holdfast.sim.checkers.gc import (
    Known,
    closed,
    counted_once,
    late,
    let_go,
    ontology_named,
    recorded,
    runs_named,
    whole,
)
from holdfast.sim.history import Violation, answers, left
from holdfast.sim.scenarios.ingest import IngestAccept
from holdfast.sim.scenarios.ontology_upkeep import OntologyCompact
from holdfast.sim.scenarios.pipeline import PipelineDerive, Small, Straight
from holdfast.sim.scenarios.runs_journal import PAYLOAD, SOURCE, RunsForkDelete
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import expired, layout
from holdfast.telemetry.accept.conflicts import Resolution, Resolutions
from holdfast.telemetry.accept.expired import Expired
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.rollup.layout import hour_path

IMPATIENT = GcOptions(horizon_ns=0, grace_ns=0)
"""No age keeps anything: what holds so holds whatever any clock says."""


@dataclass(frozen=True, kw_only=True)
class GcOrphans(IngestAccept):
    """Garbage collection without patience, beside collectors: every acknowledged batch has its bytes, or an expiry."""

    name: ClassVar[str] = "gc-orphans"

    collectors: int = 1
    keepers: int = 1
    audits: bool = True
    """An audit is recorded before each round; without one, nothing is touched."""
    proved: bool = False
    """There is an audit of the end of time already: fewer requests, for exploring."""
    expires: bool = False
    """What is accepted expires at once: a resend must not come to stay."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        base = vars(IngestAccept.drawn(rng)) | {"keepers": rng.randint(1, 2)}
        return cls(**base, expires=rng.random() < 0.5, audits=rng.random() < 0.9)

    async def keep(self, process: Process) -> None:
        for number in range(self.rounds):
            await process.perform("keep", self.collect(process, f"{process.name}-{number}"), key=layout.BLOBS)
            await process.rest(self.idle_ms)

    async def collect(self, process: Process, run_id: str) -> None:
        store = process.store
        if self.audits and not self.proved:
            await self.audit(process)
        if self.resolved:
            await self.resolve(process)
        proof = None if self.proved else await latest_complete(store, Scope.INGEST)
        proof_ns = 1 << 61 if self.proved else None if proof is None else proof.through_unix_ns
        out = Sweep(store, "orphans", Ask(run_id, True, 1 << 61, proof_ns, options=IMPATIENT))
        if self.expires:
            await self.expire(store, out)
        await self.sweep_orphans(process, out)
        await out.flush()

    async def sweep_orphans(self, process: Process, out: Sweep) -> None:
        """What the job's SQL chooses, by a plain listing: exploring every course takes thousands of sweeps."""
        store = process.store
        referred = {key.split("/")[5] async for key in store.keys(layout.ACCEPTED_BY_BLOB)}
        listed = [entry async for page in store.list(layout.BLOBS) for entry in page.entries]
        keeper = await orphans.keeper(store, process.ambient)
        await orphans.sweep(keeper, [each for each in listed if layout.blob_hash(each.key) not in referred], out)

    async def audit(self, process: Process) -> None:
        """As an audit does: through a moment of the store's before it looks."""
        ident = process.ambient.ids.unique()
        began = audited.began_key(ident)
        await process.store.put(began, b"{}", CREATE)
        through = (await process.store.head(began)).modified_ns
        [key async for key in process.store.keys(layout.ACCEPTED)]
        record = Audited(ident, ident, (Scope.INGEST,), audited.SCAN, 1, through, through, through)
        await process.store.put(record.key, record.encode(process.ambient.ids.write_id()), CREATE)

    async def resolve(self, process: Process) -> None:
        """Everything that is recorded as a conflict is decided."""
        resolutions = Resolutions(process.store, process.ambient)
        async for key in process.store.keys(layout.CONFLICTS):
            conflict = ConflictManifest.read(await process.store.get(key))
            await resolutions.decide(
                conflict.identity,
                conflict.submitted_frame_sha256,
                Resolution.EXISTING_IS_AUTHORITATIVE,
                by="operator",
                why="simulated",
            )

    async def expire(self, store: Store, out: Sweep) -> None:
        """The order of ``gc.batches``, of batches that are counted: the record, then the blob."""
        async for key in store.keys(layout.ACCEPTED):
            manifest = AcceptedManifest.read(await store.get(key))
            await self.let_go(store, manifest, out)

    async def let_go(self, store: Store, manifest: AcceptedManifest, out: Sweep) -> None:
        await expired.record(store, Expired.of_manifest(manifest, "simulated", ()))
        await out.remove(manifest.raw_blob_key, manifest.frame_bytes, "simulated")

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from recorded(world.landings)


LULL_S = 2.0
NEVER = 1 << 61
"""A moment after everything, so that nothing is too young."""
NOTHING_IS_KEPT = GcOptions(horizon_ns=-NEVER, grace_ns=-NEVER, raw_batches_ns=-NEVER, logs_ns=-NEVER)


@dataclass(frozen=True, kw_only=True)
class GcDerived(PipelineDerive):
    """Garbage collection and retention beside drivers: what is current stays whole, and every record counts once."""

    name: ClassVar[str] = "gc-derived"
    seen_by_gc: ClassVar[Callable[[Store], Store]] = staticmethod(lambda store: store)
    """The store as garbage collection has it."""

    garbage: int = 1
    """Collectors of garbage."""
    sweeps: int = 2
    expires: bool = True
    full: float = 0.7
    """How often a driver looks at all accepted batches."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        settings = dict(vars(PipelineDerive.drawn(rng)))
        settings |= {"garbage": rng.randint(1, 2), "sweeps": rng.randint(2, 8), "expires": rng.random() < 0.8}
        settings |= {"batches": rng.randint(4, 10), "rounds": rng.randint(3, 8)}
        return cls(**settings)

    def begin(self, world: World) -> None:
        super().begin(world)
        world.start_all("gc", self.garbage, self.collecting)

    async def round(self, process: Process, name: str, *, full: bool = False) -> None:
        """Hours are closed only after full scans. The last driver makes two, so every accepted batch is found, and
        closes what can be closed.
        """
        last = name.startswith("last")
        full = full or (self.expires and (last or process.rng.random() < self.full))
        await super().round(process, name, full=full)
        if last and self.expires:
            await super().round(process, f"{name}-again", full=True)
            await self.collect(process, f"{name}-gc")
            await super().round(process, f"{name}-late", full=True)

    async def _rest(self, process: Process) -> None:
        """Batches come while hours are closed: some come too late."""
        await super()._rest(process)
        if self.expires:
            await asyncio.sleep(process.rng.uniform(0, LULL_S))

    async def collecting(self, process: Process) -> None:
        for turn in range(self.sweeps):
            run_id = f"{process.name}-{turn}"
            await process.perform("collect", self.collect(process, run_id), key="manifests/")
            await self._rest(process)

    async def collect(self, process: Process, run_id: str) -> None:
        store = type(self).seen_by_gc(process.store)
        env = Env(store, process.ambient, Inline(), Options(gc=NOTHING_IS_KEPT))
        kinds = ["derived", *(["expire-batches"] if self.expires else [])]
        await Gc(env).run(Straight(run_id), {"kinds": kinds, "apply": True})

    def check(self, world: World) -> Iterator[Violation]:
        yield from whole(world.landings)
        yield from let_go(world.landings)
        yield from recorded(world.landings)
        batches = list(map(self.small, range(self.batches)))
        world.tally["closed"] += sum(b'"counted":' in (each.body or b"") for each in world.landings)
        world.tally["too late"] += sum("/too_late/" in each.key for each in world.landings)
        yield from closed(world.landings, {self._id(each): Known(each.key, self._hours(each)) for each in batches})
        if any(answers(world.operations, "close")):
            there = left(world.landings)
            yield from counted_once(there, self._countable(there))

    def _countable(self, objects: dict[str, bytes]) -> list[float]:
        """Every number of which there is a record that did not come too late."""
        if not self.expires:
            return [value for hour in self._expected(objects).values() for value in hour.values()]
        ends = late(objects)
        found: set[tuple[str, int]] = set()
        for batch in map(self.small, range(self.batches)):
            for seq, hour in batch.hours.items() if batch.key in objects else ():
                counted = ends.get(hour_path(hour).rstrip("/"))
                if counted is None or self._id(batch) in counted:
                    found.add((batch.agent, seq))
        return [float(seq) for _, seq in found]

    def _id(self, batch: Small) -> str:
        return batch.manifest(0, "").identity.manifest_id

    def _hours(self, batch: Small) -> frozenset[str]:
        return frozenset(hour_path(hour).rstrip("/") for hour in batch.hours.values())


@dataclass(frozen=True, kw_only=True)
class GcOntology(OntologyCompact):
    """Garbage collection beside committers, compactors and readers: what the chain and indexes name is always there."""

    name: ClassVar[str] = "gc-ontology"
    sweep: ClassVar[Sweeper] = staticmethod(ontology.sweep)

    garbage: int = 1
    """Collectors of garbage."""
    sweeps: int = 1
    ahead_ns: int = GRACE_NS
    """How far the time of now is ahead: superseded snapshots go at once, and what may still be published stays."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        drawn = replace(super().drawn(rng), janitors=0, lies=0)
        return replace(drawn, garbage=rng.randint(1, 2), sweeps=rng.randint(1, 5))

    def begin(self, world: World) -> None:
        super().begin(world)
        world.start_all("gc", self.garbage, self.collecting)

    async def collecting(self, process: Process) -> None:
        for turn in range(self.sweeps):
            collecting = self.collect(process, f"{process.name}-{turn}")
            await process.perform("collect", collecting, key=ontology_layout.COMMITS, show=lambda _: None)
            await process.rest(self.idle_ms)

    async def collect(self, process: Process, run_id: str) -> None:
        now_ns = await begin(process.store, run_id, {}) + self.ahead_ns
        out = Sweep(process.store, "ontology", Ask(run_id, True, now_ns))
        await type(self).sweep(ontology.EVERYTHING, out)
        await out.flush()

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from ontology_named(world.landings)
        yield from recorded([each for each in world.landings if each.process.startswith("gc")])


WORK = "work"
NO_GRACE = GcOptions(grace_ns=0)


@dataclass(frozen=True, kw_only=True)
class GcRuns(RunsForkDelete):
    """Garbage collection without patience beside forks, deletions and sessions: no run loses what it refers to."""

    name: ClassVar[str] = "gc-runs"
    sweep: ClassVar[Sweeper] = staticmethod(leftovers.sweep_runs)

    garbage: int = 1
    """Collectors of garbage."""
    sweeps: int = 1
    workers: int = 0
    """Sessions of one run, each with a payload, each of which ends it."""
    sessions: int = 1
    late: int = 0
    """Payloads that come to the source whether it is deleted or not."""
    idle_ms: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        settings = dict(vars(RunsForkDelete.drawn(rng)))
        settings |= {"garbage": rng.randint(1, 2), "sweeps": rng.randint(1, 5), "workers": rng.randint(0, 2)}
        settings |= {"sessions": rng.randint(1, 3), "late": rng.randint(0, 2), "idle_ms": rng.choice((0.0, 100.0))}
        return cls(**settings)

    def begin(self, world: World) -> None:
        super().begin(world)
        for key in (PAYLOAD, runs_layout.journal_key(SOURCE)):
            world.landed("origin", key, world.truth.shelf.objects[key].body, None)
        world.start_all("gc", self.garbage, self.collecting)
        world.start_all("worker", self.workers, self.working)
        world.start_all("zombie", self.late, self.zombie)

    async def collecting(self, process: Process) -> None:
        for turn in range(self.sweeps):
            collecting = self.collect(process, f"{process.name}-{turn}")
            await process.perform("collect", collecting, key=runs_layout.ROOT, show=lambda _: None)
            await process.rest(self.idle_ms)

    async def collect(self, process: Process, run_id: str) -> None:
        for shard in await leftovers.run_ranges(process.store):
            out = Sweep(process.store, "runs", Ask(run_id, True, NEVER, options=NO_GRACE))
            await type(self).sweep(shard, out)
            await out.flush()

    async def working(self, process: Process) -> None:
        for turn in range(self.sessions):
            working = self.work(process, f"{process.name}/{turn}")
            await process.perform("work", working, key=WORK, show=lambda _: None)
            await process.rest(self.idle_ms)

    async def work(self, process: Process, token: str) -> None:
        """Goes on with the run, whatever became of it, and ends it."""
        store, ambient = process.store, process.ambient
        history = await read_history(store, WORK)
        start = {"workflow": WORK, **({} if history is None else {"reopen": True})}
        journal = await Journal.begin(store, ambient, WORK, history, start)
        reference = await put_payload(store, ambient, WORK, token.encode())
        await journal.append(Draft("step", {"stepId": token, "payload": reference}))
        await journal.append(Draft("complete", {}))

    async def zombie(self, process: Process) -> None:
        await process.rest(self.idle_ms)
        await process.perform("late", put_payload(process.store, process.ambient, SOURCE, b"late"), key=SOURCE)

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from runs_named(world.landings)
        yield from recorded([each for each in world.landings if each.process.startswith("gc")])
