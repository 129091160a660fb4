"""Collectors that keep marks, and die at any moment; a reconciler that hears of it looks for what they left.

In some worlds nobody dies, and the first collector is cut off from the store for longer than a reconciler remembers
what is over. What it had sent lands after it was given up; its sender asks another collector, so late that this one
tells nobody.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import count
from typing import ClassVar, Self

from holdfast.base.errors import Ambiguous, HoldfastError, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done
from holdfast.sim.scenarios.pipeline_derive import PipelineDerive
from holdfast.sim.world import Process, World
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Answer, Submission
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.heard import SKEW_NS
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.marks import Marked, Marks
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.frame import decode

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
        options = CollectorOptions(process.name)
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
