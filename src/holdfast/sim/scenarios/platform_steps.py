"""Events that a run's steps emit: callers that crash, are paused and lose answers between entry and event."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.bus import Event
from holdfast.platform.durable import BusCourier
from holdfast.runs.engine.calls import Outcome
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.outbox import carried_by
from holdfast.runs.engine.workflow import Workflow, workflow
from holdfast.sim.checkers.steps import events_follow_steps
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

NAMESPACE = "sim"
ROUNDS = 200


class SimStepped(Event):
    type_name: ClassVar[str] = "sim.stepped"
    token: str


@dataclass(frozen=True, kw_only=True)
class PlatformSteps(Scenario):
    """Steps emit events; each that is recorded is published once, after its entry, whoever goes on with the run."""

    name: ClassVar[str] = "platform-steps"
    explorable: ClassVar[bool] = False
    courier: ClassVar[type[BusCourier]] = BusCourier

    callers: int = 2
    runs: int = 1
    steps: int = 2
    events: int = 2
    failing: float = 0.0

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            callers=rng.randint(1, 3),
            runs=rng.randint(1, 2),
            steps=rng.randint(1, 3),
            events=rng.randint(1, 2),
            failing=rng.choice((0.0, 0.3)),
            faults=Faults.drawn(rng, lost_response=rng.choice((0.0, 0.1))),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.callers):
            world.start(f"caller{number + 1}", self.caller)

    async def caller(self, process: Process) -> None:
        """Calls every run until all have succeeded, and once more when the trouble is over."""
        for _ in range(ROUNDS):
            quiet = self._is_quiet(process.world)
            told = [
                await process.perform(
                    "start",
                    self.call(process, f"run{number}"),
                    key=f"run{number}",
                    argument=quiet,
                    show=lambda outcome: outcome.status,
                )
                for number in range(self.runs)
            ]
            if quiet and all(each == Done("success") for each in told):
                process.note("is done", "every run has succeeded")
                return
            await asyncio.sleep(process.rng.random())
        process.world.failures.append(f"{process.name} could not bring its runs to an end in {ROUNDS} rounds")

    async def call(self, process: Process, run_id: str) -> Outcome:
        store = process.store
        with carried_by(self.courier(process.store, process.ambient)):
            outcome = await self.workflow(process).start(store, run_id=run_id)
            if outcome.status == "failed" and outcome.finished:
                outcome = await self.workflow(process).retry_failed(store, run_id)
            return outcome

    def workflow(self, process: Process) -> Workflow:
        @workflow(version="1", name="teller")
        async def teller(ctx: Context) -> None:
            for number in range(self.steps):
                await ctx.step(f"tell{number}", tell, ctx, number)

        async def tell(ctx: Context, number: int) -> None:
            mark = process.ambient.ids.attempt()
            for position in range(self.events):
                token = f"{ctx.run_id}/tell{number}/{position}/{mark}"
                ctx.emit(SimStepped(token=token), namespace=NAMESPACE)
                await asyncio.sleep(process.rng.random() * 0.1)
            if process.rng.random() < self.failing:
                raise ValueError("as drawn")

        return teller

    def _is_quiet(self, world: World) -> bool:
        return world.loop.time() > (self.troubles.within_ms + self.troubles.pause_ms) / 1000 + 10

    def check(self, world: World) -> Iterator[Violation]:
        complete = any(event.what == "is done" for event in world.trace.events)
        yield from events_follow_steps(world.landings, SimStepped.type_name, complete=complete)
