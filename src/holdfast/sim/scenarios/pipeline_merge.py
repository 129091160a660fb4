"""Drivers that derive and drivers that merge, beside garbage collection and retention, while batches come in late."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from holdfast.pipeline.engine import Inline
from holdfast.pipeline.merge import Merge
from holdfast.pipeline.options import Env
from holdfast.sim.checkers.pipeline import listings
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.pipeline_kit import Small, Straight
from holdfast.sim.scenarios.gc_derived import GcDerived
from holdfast.sim.scenarios.pipeline_derive import OPTIONS
from holdfast.sim.world import Process, World

PAUSE_S = 0.5
AGENTS = ("agent-0", "agent-3", "agent-2")
CLOSED = replace(OPTIONS, merge_after_ns=0)
"""Every hour is closed as soon as it is derived."""


@dataclass(frozen=True, slots=True)
class Slowly(Straight):
    """Steps between which others have time to work."""

    rest: Callable[[], Awaitable[None]]

    async def step(self, name: str, function: Callable[..., Any], *args: Any) -> Any:
        found = await function(*args)
        await self.rest()
        return found


@dataclass(frozen=True, kw_only=True)
class PipelineMerge(GcDerived):
    """Merging beside drivers, garbage collection and retention: inputs only grow, and every record counts once."""

    name: ClassVar[str] = "pipeline-merge"
    merge: ClassVar[Callable[[Env], Merge]] = Merge

    mergers: int = 1
    merges: int = 3

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        base = GcDerived.drawn(rng)
        settings = {each.name: getattr(base, each.name) for each in fields(base)}
        settings |= {"mergers": rng.randint(1, 2), "merges": rng.randint(3, 12), "garbage": rng.randint(0, 1)}
        settings |= {"batches": rng.randint(4, 10), "rounds": rng.randint(3, 8), "sweeps": rng.randint(2, 8)}
        return cls(**settings)

    def small(self, number: int) -> Small:
        """Batches of three agents, two of them in one bucket, in turns of two hours; every sixth shares numbers with
        the one before it.
        """
        start = 10 * number - (8 if number % 6 == 5 else 0)
        return Small(AGENTS[number // 2 % 3], start, 10 * number + 4, number % 2, crosses=number % 4 == 1)

    def begin(self, world: World) -> None:
        super().begin(world)
        for number in range(self.mergers):
            world.start(f"merger{number + 1}", self.merging)

    async def merging(self, process: Process) -> None:
        for turn in range(self.merges):
            await self._rest(process)
            await process.perform("merge", self.merge_once(process, f"{process.name}-{turn}"), key="manifests/")

    async def merge_once(self, process: Process, run_id: str) -> None:
        env = Env(process.store, process.ambient, Inline(process.store), CLOSED)
        steps = Slowly(run_id, lambda: asyncio.sleep(process.rng.uniform(0, PAUSE_S)))
        await type(self).merge(env).run(steps, {})

    async def round(self, process: Process, name: str, *, full: bool = False) -> None:
        """The last driver merges too, when all is derived."""
        await super().round(process, name, full=full)
        if name.startswith("last"):
            await self.merge_once(process, f"{name}-merge")

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from listings(world.landings)
