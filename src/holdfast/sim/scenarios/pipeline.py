"""Drivers of the pipeline on one store: deriving, and finding what collectors accepted, however they end.

Batches come in late, overlapping, and with or without references.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, ClassVar, Self

from holdfast.objects.layer import Layer
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, Store, Written
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.jobs.derive import Derive
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.pipeline.options import Env, Options
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.pipeline import counted, generations, listed_ids
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Violation, answers, left
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.accept import submission_of
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.record_times import RecordTimes
from holdfast.telemetry.accept.references import HORIZON_NS
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup.layout import Windows, hour_path

HOUR_NS = 3_600 * 1_000_000_000
BOOT = "boot"
AGENTS = ("agent-0", "agent-3", "agent-2")


@dataclass(frozen=True, slots=True)
class Small:
    """One batch: records of one metric, each with its own number as its value."""

    agent: str
    start: int
    end: int
    hour: int
    crosses: bool = False
    """Its last record is in the next hour."""

    @property
    def hours(self) -> dict[int, int]:
        """The hour of each sequence number."""
        last = self.hour + 1 if self.crosses else self.hour
        return {seq: last if seq == self.end else self.hour for seq in range(self.start, self.end + 1)}

    def body(self) -> bytes:
        records = [Sequenced(seq, Gauge("m", float(seq), hour * HOUR_NS + seq, {})) for seq, hour in self.hours.items()]
        return encode(pack_sequenced(self.agent, BOOT, records))

    def manifest(self, now_ns: int, write_id: str) -> AcceptedManifest:
        body = self.body()
        return submission_of(body, decode(body)).manifest(
            accepted_at_unix_ns=max(0, now_ns), collector_id="sim", authority_id=None, write_id=write_id
        )

    @property
    def id(self) -> str:
        return BatchIdentity(self.agent, BOOT, self.start, self.end).manifest_id

    @property
    def key(self) -> str:
        path = layout.boot_path(self.agent, BOOT)
        return f"{layout.ACCEPTED}{path}{self.start:020d}-{self.end:020d}.json"


async def accept(store: Store, batch: Small, manifest: AcceptedManifest, *, refer: bool) -> AcceptedManifest:
    """As a collector does; without ``refer``, as a plain writer that writes no references. The stored manifest."""
    await store.put(manifest.raw_blob_key, batch.body(), ADDRESSED)
    if refer:
        reference = references.by_time(manifest, write_id=manifest.write_id or "")
        await store.put(reference.key, reference.body, CREATE)
    outcome = await store.put(manifest.key, manifest.encode(), CREATE)
    if isinstance(outcome, Lost):  # an earlier life had accepted it
        manifest = AcceptedManifest.read(outcome.current or await store.get(manifest.key))
    if refer:
        await references.refer(store, manifest, (await store.head(manifest.key)).modified_ns)
    return manifest


@dataclass(frozen=True, slots=True)
class Straight:
    """Steps that are done and not recorded: a driver that forgets everything when it dies."""

    run_id: str

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        return await function(*args)


NEVER = 1 << 62
FOUND = "what was acknowledged is found without a full scan"
QUIET_S = 60
TRIES_TO_SEND = 2
TRIES = 200
"""How often the last driver continues against a store that fails it."""
OPTIONS = Options(windows=Windows.of(["1h"]), records_per_unit=8)


@dataclass(frozen=True, kw_only=True)
class PipelineDerive(Scenario):
    """Drivers derive hours from batches as they come; none is lost, none counts twice, and no hour is seen in part."""

    name: ClassVar[str] = "pipeline-derive"
    explorable: ClassVar[bool] = False
    reconcile: ClassVar[Callable[[Env], Any]] = Reconcile
    derive: ClassVar[Callable[[Env], Derive]] = Derive

    drivers: int = 2
    rounds: int = 2
    batches: int = 4
    unreferred: bool = False
    """Some batches have no references: the last driver lists every manifest."""
    idle_ms: float = 50.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            drivers=rng.randint(1, 3),
            rounds=rng.randint(1, 3),
            batches=rng.randint(2, 6),
            unreferred=rng.random() < 0.3,
            idle_ms=rng.choice((0.0, 50.0, 400.0)),
            faults=Faults.drawn(rng, lost_response=0.05),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def small(self, number: int) -> Small:
        """Batches of three agents, two of them in one bucket, in turns of two hours; every third shares numbers with
        the one before it, and claims another hour for them.
        """
        start = 10 * number - (8 if number % 3 == 2 else 0)
        return Small(AGENTS[number // 3 % 3], start, 10 * number + 4, number % 2, crosses=number % 4 == 1)

    def begin(self, world: World) -> None:
        world.start("acceptor", self.accepting)
        world.start_all("driver", self.drivers, self.driving)
        world.start("last", self.closing)

    async def accepting(self, process: Process) -> None:
        for number in range(self.batches):
            batch = self.small(number)
            refer = not (self.unreferred and number % 2)
            await process.perform("accept", self.accept(process, batch, refer=refer), key=batch.key)
            await self._rest(process)

    async def accept(self, process: Process, batch: Small, *, refer: bool) -> None:
        manifest = batch.manifest(process.ambient.clock.wall_ns(), process.ambient.ids.write_id())
        await accept(process.store, batch, manifest, refer=refer)

    async def driving(self, process: Process) -> None:
        for turn in range(self.rounds):
            await process.perform("drive", self.round(process, f"{process.name}-{turn}"), key="manifests/")
            await self._rest(process)

    async def round(self, process: Process, name: str, *, full: bool = False) -> None:
        """In some rounds hours are finished, and are divided into fewer units."""
        options = replace(OPTIONS, merge_after_ns=process.rng.choice((0, NEVER)))
        env = Env(process.store, process.ambient, Inline(), options)
        began_ns = await Checkpoints(process.store, process.ambient).store_now() if full else 0
        request = {"full": True, "began_ns": began_ns} if full else {}
        job = type(self).reconcile(env)
        if full or await job.is_due():
            await job.run(Straight(f"{name}-reconcile"), request)
        while True:
            run_id = f"{name}-{process.ambient.ids.unique()}"
            summary = await type(self).derive(env).run(Straight(run_id), {})
            if not summary["superseded"]:
                return

    async def closing(self, process: Process) -> None:
        """When all others are done, continue until a round has come to its end."""
        quiet_s = 0
        while quiet_s < QUIET_S:  # a process that has crashed may come back
            await asyncio.sleep(1)
            quiet_s = 0 if self._others_work(process) else quiet_s + 1
        for turn in range(TRIES):
            outcome = await process.perform(
                "close", self.round(process, f"{process.name}-{turn}", full=self.unreferred), key="manifests/"
            )
            if isinstance(outcome, Done):
                return

    def _others_work(self, process: Process) -> bool:
        return any(each.working for each in process.world.processes if each.family != process.family)

    async def _rest(self, process: Process) -> None:
        await process.rest(self.idle_ms)

    def check(self, world: World) -> Iterator[Violation]:
        yield from generations(world.landings)
        if not any(answers(world.operations, "close")):
            return
        there = left(world.landings)
        accepted, found = self._accepted(there), listed_ids(there)
        acknowledged = {each.key for each, _ in answers(world.operations, "accept")}
        for batch in accepted:
            if batch.key in acknowledged and batch.id not in found:
                yield Violation(FOUND, f"{batch.key} was acknowledged, and no hour lists it")
        # A batch that was accepted and never acknowledged may have been found, or not.
        yield from counted(there, self._expected(there))

    def _accepted(self, objects: dict[str, bytes]) -> list[Small]:
        return [each for each in map(self.small, range(self.batches)) if each.key in objects]

    def _expected(self, objects: dict[str, bytes]) -> dict[str, dict[tuple[str, int], float]]:
        """Records of batches that can be found: by hour, each number once, in the hour that the lowest range gives."""
        found = listed_ids(objects)
        batches = [each for each in self._accepted(objects) if self.unreferred or each.id in found]
        winners: dict[tuple[str, int], int] = {}
        for batch in sorted(batches, key=lambda each: (each.agent, each.start)):
            for seq, hour in batch.hours.items():
                winners.setdefault((batch.agent, seq), hour)
        expected: dict[str, dict[tuple[str, int], float]] = {}
        for (agent, seq), hour in winners.items():
            expected.setdefault(hour_path(hour).rstrip("/"), {})[agent, seq] = float(seq)
        return expected


PAUSE_S = 3 * HORIZON_NS / 1_000_000_000
LOOKS_S = 60
"""How often drivers look while collectors work."""


class Delayed(Layer):
    """The way to the store of a collector that is paused before it writes a manifest."""

    def __init__(self, inner: Store, pause_s: Callable[[], float]) -> None:
        super().__init__(inner)
        self._pause_s = pause_s

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith(layout.ACCEPTED):
            await asyncio.sleep(self._pause_s())
        return await super().put(key, body, mode)


@dataclass(frozen=True, kw_only=True)
class PipelineSilence(PipelineDerive):
    """Whatever was acknowledged is derived without a full scan, however its collector ended.

    However long a collector was paused between its writes, too.
    """

    name: ClassVar[str] = "pipeline-silence"
    collector: ClassVar[type[Collector]] = Collector
    collectors: int = 2
    slow: bool = False
    """Collectors are paused before manifests, and rest for minutes between batches."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        settings = dict(vars(PipelineDerive.drawn(rng)))
        settings |= {"unreferred": False, "collectors": rng.randint(1, 3), "slow": rng.random() < 0.5}
        return cls(**settings)

    def begin(self, world: World) -> None:
        world.start_all("collector", self.collectors, self.accepting)
        world.start_all("driver", self.drivers, self.driving)
        world.start("last", self.closing)

    async def accepting(self, process: Process) -> None:
        def pause_s() -> float:
            paused = self.slow and process.rng.random() < 0.5
            process.world.tally["paused before a manifest"] += paused
            return process.rng.uniform(0, PAUSE_S) if paused else 0.0

        options = CollectorOptions(process.name, RecordTimes(max_age_ns=None))  # records are of 1970
        collector = self.collector(Delayed(process.store, pause_s), process.ambient, kit.authority(), options)
        first = int(process.family.removeprefix("collector")) - 1
        for number in range(first, self.batches, self.collectors):
            batch = self.small(number)
            body = batch.body()
            sent = submission_of(body, decode(body))
            for _ in range(TRIES_TO_SEND):
                outcome = await process.perform("accept", collector.accept(sent), key=batch.key)
                if isinstance(outcome, Done):
                    break
            await asyncio.sleep(process.rng.uniform(0, PAUSE_S) if self.slow else 0)
            await self._rest(process)

    async def driving(self, process: Process) -> None:
        await super().driving(process)
        for turn in count(self.rounds):
            collectors = [each for each in process.world.processes if each.family.startswith("collector")]
            if not self.slow or not any(each.working for each in collectors):
                return
            await asyncio.sleep(LOOKS_S)
            await process.perform("drive", self.round(process, f"{process.name}-{turn}"), key="manifests/")
