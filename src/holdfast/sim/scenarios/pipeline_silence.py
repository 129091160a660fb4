"""Collectors that keep marks, and die at any moment; a reconciler that hears of it looks for what they left."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from holdfast.base.errors import HoldfastError, Unavailable
from holdfast.ingest.accept import Answer, Submission
from holdfast.ingest.collector import Collector, CollectorOptions
from holdfast.ingest.frame import decode
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.ingest.marks import Marked, Marks
from holdfast.ingest.submit import submission_of
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done
from holdfast.sim.scenarios.pipeline_derive import PipelineDerive
from holdfast.sim.world import Process, World

FOUND = "what was acknowledged is found without a full scan"


@dataclass(frozen=True, kw_only=True)
class PipelineSilence(PipelineDerive):
    """What any collector acknowledged is derived by a plain run, however the collector ended."""

    name: ClassVar[str] = "pipeline-silence"
    collectors: int = 2
    every_ms: int = 5_000
    lingers_ms: float = 0.0
    """How long a collector goes on telling after its last batch."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        base = PipelineDerive.drawn(rng)
        settings = {each.name: getattr(base, each.name) for each in fields(base)}
        settings |= {"unreferred": False, "collectors": rng.randint(1, 3), "every_ms": rng.choice((500, 5_000))}
        return cls(**settings, lingers_ms=rng.choice((0.0, 3_000.0)))

    def begin(self, world: World) -> None:
        for number in range(self.collectors):
            world.start(f"collector{number + 1}", self.accepting)
        for number in range(self.drivers):
            world.start(f"driver{number + 1}", self.driving)
        world.start("last", self.closing)

    async def accepting(self, process: Process) -> None:
        def owe(manifest: AcceptedManifest, _: Submission) -> None:
            collector.references.owe(manifest)

        options = CollectorOptions(process.name)
        collector = Collector(process.store, process.ambient, kit.authority(), options, on_duplicate=owe)
        marks = Marks(
            process.store,
            process.ambient,
            collector.references,
            collector_id=process.name,
            every_ms=self.every_ms,
        )
        try:
            async with marks:
                telling = asyncio.create_task(collector.references.run())
                await self.serve(process, Marked(collector, marks), marks)
                telling.cancel()
        except HoldfastError:
            return  # its mark could not be begun: it has accepted nothing

    async def serve(self, process: Process, acceptor: Marked, marks: Marks) -> None:
        first = int(process.family.removeprefix("collector")) - 1
        for number in range(first, self.batches, self.collectors):
            batch = self.small(number)
            body = batch.body()
            work = self.answer(acceptor, marks, submission_of(body, decode(body)))
            await process.perform("accept", work, key=batch.key)
            await self._rest(process)
        await asyncio.sleep(self.lingers_ms / 1_000)

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
