"""Garbage collection of runs beside forks, deletions and sessions that go on with runs that were over."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import ClassVar, Self

from holdfast.pipeline.gc import leftovers
from holdfast.pipeline.gc.options import Ask, GcOptions
from holdfast.pipeline.gc.record import Sweep, settle
from holdfast.pipeline.jobs.gc import Sweeper
from holdfast.runs import layout
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_history
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.payload import put_payload
from holdfast.sim.checkers.gc import recorded, runs_named
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.scenarios.gc_derived import NEVER
from holdfast.sim.scenarios.runs_fork_delete import PAYLOAD, SOURCE, RunsForkDelete
from holdfast.sim.world import Process, World

WORK = "work"
IMPATIENT = GcOptions(grace_ns=0)


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
        base = RunsForkDelete.drawn(rng)
        settings = {each.name: getattr(base, each.name) for each in fields(base)}
        settings |= {"garbage": rng.randint(1, 2), "sweeps": rng.randint(1, 5), "workers": rng.randint(0, 2)}
        settings |= {"sessions": rng.randint(1, 3), "late": rng.randint(0, 2), "idle_ms": rng.choice((0.0, 100.0))}
        return cls(**settings)

    def begin(self, world: World) -> None:
        super().begin(world)
        for key in (PAYLOAD, layout.journal_key(SOURCE)):
            world.landed("origin", key, world.truth.shelf.objects[key].body, None)
        for name, count, actor in (
            ("gc", self.garbage, self.collecting),
            ("worker", self.workers, self.working),
            ("zombie", self.late, self.zombie),
        ):
            for number in range(count):
                world.start(f"{name}{number + 1}", actor)

    async def collecting(self, process: Process) -> None:
        for turn in range(self.sweeps):
            collecting = self.collect(process, f"{process.name}-{turn}")
            await process.perform("collect", collecting, key=layout.ROOT, show=lambda _: None)
            await self._rest(process)

    async def collect(self, process: Process, run_id: str) -> None:
        for shard in await leftovers.run_ranges(process.store):
            out = Sweep(process.store, Ask("runs", shard, run_id, True, NEVER, None, None, IMPATIENT))
            await type(self).sweep(process.store, process.ambient, out.ask, out)
            await out.flush()
        await settle(process.store, run_id)

    async def working(self, process: Process) -> None:
        for turn in range(self.sessions):
            working = self.work(process, f"{process.name}/{turn}")
            await process.perform("work", working, key=WORK, show=lambda _: None)
            await self._rest(process)

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
        await self._rest(process)
        await process.perform("late", put_payload(process.store, process.ambient, SOURCE, b"late"), key=SOURCE)

    async def _rest(self, process: Process) -> None:
        if self.idle_ms:
            await asyncio.sleep(process.rng.random() * self.idle_ms / 1000)

    def check(self, world: World) -> Iterator[Violation]:
        yield from super().check(world)
        yield from runs_named(world.landings)
        yield from recorded([each for each in world.landings if each.process.startswith("gc")])
