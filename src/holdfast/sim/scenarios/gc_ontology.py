"""Garbage collection of an ontology beside those who commit to it, compact it and read it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from holdfast.ontology.format import layout
from holdfast.ontology.maintain.compact import GRACE_NS
from holdfast.pipeline.gc import ontology
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep, begin, settle
from holdfast.pipeline.jobs.gc import Sweeper
from holdfast.sim.checkers.gc import ontology_named, recorded
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.scenarios.ontology_compact import OntologyCompact
from holdfast.sim.world import Process, World


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
        for number in range(self.garbage):
            world.start(f"gc{number + 1}", self.collecting)

    async def collecting(self, process: Process) -> None:
        for turn in range(self.sweeps):
            collecting = self.collect(process, f"{process.name}-{turn}")
            await process.perform("collect", collecting, key=layout.COMMITS, show=lambda _: None)
            await self._rest(process)

    async def collect(self, process: Process, run_id: str) -> None:
        now_ns = await begin(process.store, run_id, {}) + self.ahead_ns
        out = Sweep(process.store, Ask("ontology", ontology.EVERYTHING, run_id, True, now_ns, None))
        await type(self).sweep(process.store, process.ambient, out.ask, out)
        await out.flush()
        await settle(process.store, run_id)

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from ontology_named(world.landings)
        yield from recorded([each for each in world.landings if each.process.startswith("gc")])
