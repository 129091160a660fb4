"""Drivers that derive, beside garbage collection and retention without patience, while batches come in late."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from holdfast.objects.store import Store
from holdfast.pipeline.derive import index_job
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc.options import GcOptions
from holdfast.pipeline.jobs.gc import Gc
from holdfast.pipeline.options import Env, Options
from holdfast.sim.checkers.gc import counted_once, let_go, recorded, whole
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done
from holdfast.sim.pipeline_kit import Straight
from holdfast.sim.scenarios.pipeline_derive import OPTIONS, PipelineDerive
from holdfast.sim.world import Process, World

NEVER = 1 << 61
"""A moment after everything, so that nothing is too young."""
IMPATIENT = GcOptions(horizon_ns=-NEVER, grace_ns=-NEVER, raw_batches_ns=-NEVER, logs_ns=-NEVER)


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

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        base = PipelineDerive.drawn(rng)
        settings = {each.name: getattr(base, each.name) for each in fields(base)}
        settings |= {"garbage": rng.randint(1, 2), "sweeps": rng.randint(1, 4), "expires": rng.random() < 0.7}
        return cls(**settings)

    def begin(self, world: World) -> None:
        super().begin(world)
        for number in range(self.garbage):
            world.start(f"gc{number + 1}", self.collecting)

    async def round(self, process: Process, name: str, *, full: bool = False) -> None:
        await super().round(process, name, full=full)
        env = Env(process.store, process.ambient, Inline(process.store), OPTIONS)
        while (await index_job(env).run(Straight(f"{name}-index"), {}))["superseded"]:
            pass

    async def collecting(self, process: Process) -> None:
        for turn in range(self.sweeps):
            run_id = f"{process.name}-{turn}"
            await process.perform("collect", self.collect(process, run_id), key="manifests/")
            await self._rest(process)

    async def collect(self, process: Process, run_id: str) -> None:
        store = type(self).seen_by_gc(process.store)
        env = Env(store, process.ambient, Inline(store), Options(gc=IMPATIENT))
        kinds = ["derived", *(["expire-batches"] if self.expires else [])]
        await Gc(env).run(Straight(run_id), {"kinds": kinds, "apply": True})

    def check(self, world: World) -> Iterator[Violation]:
        yield from whole(world.landings)
        yield from let_go(world.landings)
        yield from recorded(world.landings)
        if any(each.call == "close" and isinstance(each.outcome, Done) for each in world.operations):
            objects = {landing.key: landing.body for landing in world.landings}
            there = {key: body for key, body in objects.items() if body is not None}
            expected = [value for hour in self._expected(there).values() for value in hour.values()]
            yield from counted_once(there, expected)
