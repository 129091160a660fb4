"""Drivers of the pipeline on one store: deriving, and finding what dead collectors left.

Batches come in late, overlapping, and with or without references.
"""

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import Any, ClassVar, Self

from holdfast.base.errors import Ambiguous, HoldfastError, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, Store, Written
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.jobs.derive import Derive
from holdfast.pipeline.options import Env, Options
from holdfast.pipeline.reconcile import Reconcile
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.pipeline import counted, generations
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Violation
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.accept import Answer, Submission
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.heard import SKEW_NS
from holdfast.telemetry.accept.layout import GATHERINGS
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.marks import Marked, Marks
from holdfast.telemetry.accept.record_times import RecordTimes
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup.layout import hour_path
from holdfast.telemetry.rollup.windows import Windows

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
    """Its last record lies in the next hour."""

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
    def key(self) -> str:
        path = layout.boot_path(self.agent, BOOT)
        return f"{layout.ACCEPTED}{path}{self.start:020d}-{self.end:020d}.json"


async def accept(store: Store, batch: Small, manifest: AcceptedManifest, *, refer: bool) -> AcceptedManifest:
    """As a collector does; without ``refer``, as one that dies right after. The manifest that stands."""
    await store.put(manifest.raw_blob_key, batch.body(), ADDRESSED)
    outcome = await store.put(manifest.key, manifest.encode(), CREATE)
    if isinstance(outcome, Lost):  # an earlier life had accepted it
        manifest = AcceptedManifest.read(outcome.current or await store.get(manifest.key))
    if refer:
        for reference in references.of_accepted(manifest):
            await references.write(store, reference)
    return manifest


async def gather(store: Store, manifests: Sequence[AcceptedManifest], now_ns: int) -> None:
    """What a collector writes of batches that it accepted within a moment."""
    for piece in references.pieces(manifests):
        for reference in references.made_from(piece, max(0, now_ns)):
            await references.write(store, reference)


@dataclass(frozen=True, slots=True)
class Straight:
    """Steps that are done and not recorded: a driver that forgets everything when it dies."""

    run_id: str

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        return await function(*args)


NEVER = 1 << 62
QUIET_S = 60
TRIES = 200
"""How often the last driver goes on against a store that fails it."""
OPTIONS = Options(windows=Windows.of(["1h"]), records_per_unit=8, overlap_ns=600 * 1_000_000_000)


@dataclass(frozen=True, kw_only=True)
class PipelineDerive(Scenario):
    """Drivers derive hours from batches as they come; none is lost, none counts twice, and nobody sees half an hour."""

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
    gathered: int = 1
    """How many batches the acceptor gathers before it refers to them; what it holds when it dies nobody refers to."""

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
            gathered=rng.randint(1, 3),
        )

    def small(self, number: int) -> Small:
        """Batches of three agents, two of them in one bucket, in turns of two hours; every third shares numbers with
        the one before it, and claims another hour for them.
        """
        start = 10 * number - (8 if number % 3 == 2 else 0)
        return Small(AGENTS[number // 3 % 3], start, 10 * number + 4, number % 2, crosses=number % 4 == 1)

    def begin(self, world: World) -> None:
        world.start("acceptor", self.accepting)
        for number in range(self.drivers):
            world.start(f"driver{number + 1}", self.driving)
        world.start("last", self.closing)

    async def accepting(self, process: Process) -> None:
        owed: list[AcceptedManifest] = []
        for number in range(self.batches):
            batch = self.small(number)
            refer = not (self.unreferred and number % 2)
            await process.perform("accept", self.accept(process, batch, owed, refer=refer), key=batch.key)
            if len(owed) >= self.gathered or (owed and number == self.batches - 1):
                now_ns = process.ambient.clock.wall_ns()
                outcome = await process.perform("gather", gather(process.store, owed, now_ns), key=GATHERINGS)
                owed = [] if isinstance(outcome, Done) else owed
            await self._rest(process)

    async def accept(self, process: Process, batch: Small, owed: list[AcceptedManifest], *, refer: bool) -> None:
        manifest = batch.manifest(process.ambient.clock.wall_ns(), process.ambient.ids.write_id())
        alone = self.gathered == 1
        stands = await accept(process.store, batch, manifest, refer=refer and alone)
        if refer and not alone:
            owed.append(stands)

    async def driving(self, process: Process) -> None:
        for turn in range(self.rounds):
            await process.perform("drive", self.round(process, f"{process.name}-{turn}"), key="manifests/")
            await self._rest(process)

    async def round(self, process: Process, name: str, *, full: bool = False) -> None:
        """In some rounds hours are finished, and are divided into fewer units."""
        options = replace(OPTIONS, merge_after_ns=process.rng.choice((0, NEVER)))
        env = Env(process.store, process.ambient, Inline(process.store), options)
        began_ns = await Checkpoints(process.store, process.ambient).store_now() if full else 0
        request = {"full": True, "began_ns": began_ns} if full else {}
        await type(self).reconcile(env).run(Straight(f"{name}-reconcile"), request)
        while True:
            run_id = f"{name}-{process.ambient.ids.unique()}"
            summary = await type(self).derive(env).run(Straight(run_id), {})
            if not summary["superseded"]:
                return

    async def closing(self, process: Process) -> None:
        """When all others are done, go on until a round has come to its end."""
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
        if self.idle_ms:
            await asyncio.sleep(process.rng.uniform(0, self.idle_ms) / 1000)

    def check(self, world: World) -> Iterator[Violation]:
        yield from generations(world.landings)
        closed = any(each.call == "close" and isinstance(each.outcome, Done) for each in world.operations)
        if closed:
            objects = {landing.key: landing.body for landing in world.landings}
            there = {key: body for key, body in objects.items() if body is not None}
            yield from counted(there, self._expected(there))

    def _expected(self, objects: dict[str, bytes]) -> dict[str, dict[tuple[str, int], float]]:
        """Records of batches that were accepted, and can be found: by hour, each number once, in the hour that the
        lowest range gives it.

        A collector that died between manifest and reference left a batch that only a full scan finds, or the look at
        what overlaps.
        """
        winners: dict[tuple[str, int], int] = {}
        for batch in sorted(map(self.small, range(self.batches)), key=lambda each: (each.agent, each.start)):
            if batch.key in objects and (self.unreferred or self._referred(objects, batch)):
                for seq, hour in batch.hours.items():
                    winners.setdefault((batch.agent, seq), hour)
        expected: dict[str, dict[tuple[str, int], float]] = {}
        for (agent, seq), hour in winners.items():
            expected.setdefault(hour_path(hour).rstrip("/"), {})[agent, seq] = float(seq)
        return expected

    def _referred(self, objects: dict[str, bytes], batch: Small) -> bool:
        ident = batch.manifest(0, "").identity.manifest_id
        if any(key.startswith("accepted-by-time/") and key.endswith(f"{ident}.json") for key in objects):
            return True
        bodies = [body for key, body in objects.items() if key.startswith("acceptances/")]
        return (batch.agent, batch.start, batch.end) in {
            (each["agent_id"], each["seq_start"], each["seq_end"])
            for body in bodies
            for each in json.loads(body)["accepted_manifests"]
        }


FOUND = "what was acknowledged is found without a full scan"
AWAY_S = 1.5 * SKEW_NS / 1_000_000_000
LOOKS_S = 60
"""How often drivers look while somebody is cut off."""


class Severed(Layer):
    """The way to the store of one that may be cut off: then a batch still gets there, but no answer comes back."""

    cut = False

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if self.cut and not key.startswith((layout.BLOBS, layout.ACCEPTED)):
            raise Unavailable(f"{key}: cut off")
        outcome = await super().put(key, body, mode)
        if self.cut and key.startswith(layout.ACCEPTED):
            raise Ambiguous(f"{key}: cut off")
        return outcome


@dataclass(frozen=True, kw_only=True)
class PipelineSilence(PipelineDerive):
    """What any collector acknowledged is derived by a plain run, however the collector ended."""

    name: ClassVar[str] = "pipeline-silence"
    marks: ClassVar[type[Marks]] = Marks
    collectors: int = 2
    every_ms: int = 5_000
    lingers_ms: float = 0.0
    """How long a collector goes on telling after its last batch."""
    severed: bool = False
    """The first collector is cut off before its last batch."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        base = PipelineDerive.drawn(rng)
        settings = {each.name: getattr(base, each.name) for each in fields(base)}
        settings |= {"unreferred": False, "collectors": rng.randint(1, 3), "every_ms": rng.choice((500, 5_000))}
        settings |= {"lingers_ms": rng.choice((0.0, 3_000.0)), "severed": rng.random() < 0.2}
        if settings["severed"]:
            settings |= {"collectors": 2, "troubles": replace(base.troubles, crashes=0)}
        return cls(**settings)

    def begin(self, world: World) -> None:
        for number in range(self.collectors):
            world.start(f"collector{number + 1}", self.accepting)
        for number in range(self.drivers):
            world.start(f"driver{number + 1}", self.driving)
        world.start("last", self.closing)

    async def accepting(self, process: Process) -> None:
        def owe(manifest: AcceptedManifest, _: Submission) -> None:
            if manifest.accepted_at_unix_ns >= process.ambient.clock.wall_ns() - SKEW_NS:
                collector.references.owe(manifest)

        store = Severed(process.store)
        options = CollectorOptions(process.name, RecordTimes(max_age_ns=None))  # records are of 1970
        collector = Collector(store, process.ambient, kit.authority(), options, on_duplicate=owe)
        marks = self.marks(
            store,
            process.ambient,
            collector.references,
            collector_id=process.name,
            every_ms=self.every_ms,
        )
        try:
            async with marks:
                telling = asyncio.create_task(collector.references.run())
                await self.serve(process, Marked(collector, marks), marks, store)
                telling.cancel()
        except HoldfastError:
            return  # its mark could not be begun: it has accepted nothing

    async def serve(self, process: Process, acceptor: Marked, marks: Marks, way: Severed) -> None:
        first = int(process.family.removeprefix("collector")) - 1
        numbers = range(first, self.batches, self.collectors)
        for number in numbers:
            if self.severed and first == 0 and number == numbers[-1]:
                way.cut = True
                process.world.tally["severed"] += 1
                await asyncio.sleep(process.rng.uniform(0, 2 * LOOKS_S))
            await self.send(process, acceptor, marks, number)
            await self._rest(process)
        if way.cut:
            await asyncio.sleep(AWAY_S)
            way.cut = False
            while marks.lapsed:
                await marks.renew()
        elif self.severed:
            await asyncio.sleep(AWAY_S + 3 * LOOKS_S)  # the other is back
            for number in range(0, self.batches, self.collectors):
                await self.send(process, acceptor, marks, number)
        await asyncio.sleep(self.lingers_ms / 1_000)

    async def send(self, process: Process, acceptor: Marked, marks: Marks, number: int) -> None:
        batch = self.small(number)
        body = batch.body()
        work = self.answer(acceptor, marks, submission_of(body, decode(body)))
        await process.perform("accept", work, key=batch.key)

    async def driving(self, process: Process) -> None:
        await super().driving(process)
        for turn in count(self.rounds):
            collectors = [each for each in process.world.processes if each.family.startswith("collector")]
            if not self.severed or not any(each.working for each in collectors):
                return
            await asyncio.sleep(LOOKS_S)
            await process.perform("drive", self.round(process, f"{process.name}-{turn}"), key="manifests/")

    async def answer(self, acceptor: Marked, marks: Marks, submission: Submission) -> Answer:
        """One that others may have given up, and that cannot say otherwise, answers nobody here. A real one does: that
        batches are accepted counts for more."""
        answer = await acceptor.accept(submission)
        if marks.lapsed:
            raise Unavailable("its mark cannot be written", maybe_applied=True)
        return answer

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        if not any(each.call == "close" and isinstance(each.outcome, Done) for each in world.operations):
            return
        objects = {landing.key: landing.body for landing in world.landings}
        there = {key: body for key, body in objects.items() if body is not None}
        acknowledged = {
            each.key for each in world.operations if each.call == "accept" and isinstance(each.outcome, Done)
        }
        for batch in map(self.small, range(self.batches)):
            if batch.key in acknowledged and not self._referred(there, batch):
                yield Violation(FOUND, f"{batch.key} was acknowledged, and nothing refers to it")
