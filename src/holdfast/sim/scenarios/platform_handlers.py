"""Handlers that commit: workers that crash, pause past their lease and come back between claim, head and ack."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from holdfast.bus import Bus, Event, Handler, Options, Retry, on
from holdfast.bus import Context as BusContext
from holdfast.bus.runner import Runner
from holdfast.ontology import Entity, Field
from holdfast.ontology.session import Options as SessionOptions
from holdfast.platform.handlers import Context, Desk
from holdfast.platform.outbox import Outbox
from holdfast.sim.checkers.bus import claims_are_kept
from holdfast.sim.checkers.outbox import events_follow_commits, one_commit_each, told_of_their_commits
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

NAMESPACE = "sim"
ROUNDS = 200


class SimBill(Entity, name="SimBill"):
    id: Field[str] = Field(primary_key=True)
    times: Field[int]


class SimTaken(Event):
    type_name: ClassVar[str] = "sim.taken"
    token: str


class SimBilled(Event):
    type_name: ClassVar[str] = "sim.billed"
    token: str


@dataclass(frozen=True, kw_only=True)
class PlatformHandlers(Scenario):
    """Handlers commit rows and events; for every event one commit is made, however often its handler is called."""

    name: ClassVar[str] = "platform-handlers"
    context: ClassVar[type[Context]] = Context

    workers: int = 2
    events: int = 2
    parts: int = 1
    failing: float = 0.0
    dawdling: float = 0.0
    lease_ms: int = 1_000

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            workers=rng.randint(1, 3),
            events=rng.randint(1, 3),
            parts=rng.randint(1, 2),
            failing=rng.choice((0.0, 0.4)),
            dawdling=rng.choice((0.0, 0.3)),
            lease_ms=rng.choice((300, 2_000)),
            faults=Faults.drawn(rng, lost_response=rng.choice((0.0, 0.1))),
            troubles=Troubles.drawn(rng, within_ms=rng.choice((2_000, 10_000))),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        world.start("publisher", self.publisher)
        for number in range(self.workers):
            world.start(f"worker{number + 1}", self.worker)

    def bus(self, process: Process) -> Bus:
        options = Options(lease_ms=self.lease_ms, retry=Retry(50, base_ms=20, max_ms=200, jitter_ms=20), poll_ms=200)
        outbox = Outbox(process.store, process.ambient)
        return Bus(process.store, process.ambient, NAMESPACE, options, outbox.mend)

    async def publisher(self, process: Process) -> None:
        bus = self.bus(process)
        for number in range(self.events):
            order = SimTaken(token=f"{process.name}/{number}")
            await process.perform("publish", bus.publish(order), key=NAMESPACE, show=lambda told: told.id)

    async def worker(self, process: Process) -> None:
        for _ in range(ROUNDS):
            quiet = self._is_quiet(process.world)
            drained = await process.perform(
                "drain", self.drain(process), key=NAMESPACE, argument=quiet, show=lambda waiting: waiting
            )
            if quiet and drained == Done(0):
                return
            await asyncio.sleep(process.rng.random())
        process.world.failures.append(f"{process.name} drained {ROUNDS} times, and there is still something to do")

    async def drain(self, process: Process) -> int:
        options = SessionOptions(lock_timeout_ms=500, lease_ttl_ms=2_000)
        desk = Desk(process.store, process.ambient, options)
        runner: Runner = self.bus(process).runner([self.handler(process)], context=lambda given: self.over(given, desk))
        try:
            return (await runner.run(until_idle=True)).waiting
        finally:
            await desk.close()

    def over(self, given: BusContext, desk: Desk) -> Context:
        return self.context.over(given, desk)

    def handler(self, process: Process) -> Handler:
        @on(SimTaken, id="bill", concurrency=2)
        async def bill(ctx: Any, event: SimTaken) -> None:
            for part in range(self.parts):
                known = await ctx.get(SimBill, event.token)
                ctx.ensure(SimBill(id=event.token, times=1 + (0 if known is None else known.times)))
                ctx.emit(SimBilled(token=f"{event.token}/{process.name}/{ctx.hold.owner.generation}/{part}"))
                if process.rng.random() < self.dawdling:
                    await asyncio.sleep(self.lease_ms / 400)
                await ctx.commit({"part": part})
                if process.rng.random() < self.failing:
                    raise ValueError("as drawn")

        return bill

    def _is_quiet(self, world: World) -> bool:
        over_s = (self.troubles.within_ms + self.troubles.pause_ms) / 1000
        busy = any(each.working for each in world.processes if each.family == "publisher")
        return not busy and world.loop.time() > over_s + 10

    def check(self, world: World) -> Iterator[Violation]:
        complete = any(
            operation.call == "drain" and operation.argument and operation.outcome == Done(0)
            for operation in world.operations
        )
        yield from claims_are_kept(world.landings, 50)
        yield from one_commit_each(world.landings)
        yield from told_of_their_commits(world.landings, complete=complete)
        yield from events_follow_commits(world.landings, SimBilled.type_name, complete=complete)
