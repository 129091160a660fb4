"""Events that become visible with a commit, with a handler's ack, or with a step of a run."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from holdfast.bus import Bus, Event, Handler, Options, Retry, on
from holdfast.bus import Context as BusContext
from holdfast.bus.worker.runner import Runner
from holdfast.ontology import Entity, Field
from holdfast.ontology.session import Options as SessionOptions
from holdfast.platform.durable import BusCourier
from holdfast.platform.handlers import Context, Desk
from holdfast.platform.outbox import Outbox
from holdfast.platform.session import Session
from holdfast.runs import Context as RunContext
from holdfast.runs.engine.calls import Outcome
from holdfast.runs.engine.outbox import carried_by
from holdfast.runs.engine.workflow import Workflow, workflow
from holdfast.sim.checkers.bus import claims_are_kept
from holdfast.sim.checkers.platform import (
    events_follow_commits,
    events_follow_steps,
    one_commit_each,
    told_of_their_commits,
)
from holdfast.sim.history import Done, Violation
from holdfast.sim.scenario import Scenario, surroundings, was_worked_off
from holdfast.sim.world import Process, World


class SimNote(Entity, name="SimNote"):
    id: Field[str] = Field(primary_key=True)


class SimNoted(Event):
    type_name: ClassVar[str] = "sim.noted"
    token: str


@dataclass(frozen=True, kw_only=True)
class PlatformOutbox(Scenario):
    """Sessions commit rows and events in one; what a crash left out is published by others, once."""

    name: ClassVar[str] = "platform-outbox"
    outbox: ClassVar[type[Outbox]] = Outbox
    session: ClassVar[type[Session]] = Session

    writers: int = 2
    commits: int = 2
    events: int = 2
    menders: int = 1
    lease_ttl_ms: int = 2_000

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            writers=rng.randint(1, 3),
            commits=rng.randint(1, 4),
            events=rng.randint(1, 3),
            menders=rng.randint(1, 2),
            lease_ttl_ms=rng.choice((200, 2_000)),
            **surroundings(rng, lost_response=rng.choice((0.0, 0.1))),
        )

    def begin(self, world: World) -> None:
        world.start_all("writer", self.writers, self.writer)
        world.start_all("mender", self.menders, self.mender)

    async def writer(self, process: Process) -> None:
        options = SessionOptions(process.name, lock_timeout_ms=500, lease_ttl_ms=self.lease_ttl_ms)
        outbox = self.outbox(process.store, process.ambient)
        onto = self.session(process.store, process.ambient, [SimNote], options, outbox=outbox)
        for number in range(self.commits):
            token = f"{process.name}/{number}"
            if process.rng.random() < 0.8:
                onto.ensure(SimNote(id=token))
            for position in range(self.events):
                onto.emit(SimNoted(token=f"{token}/{position}"))
            for _ in range(3):
                answer = await process.perform("commit", onto.commit(), key=token, show=str)
                if isinstance(answer, Done):
                    break
            onto.discard()
        await onto.close()

    async def mender(self, process: Process) -> None:
        await self.work_off(
            process,
            "mend",
            lambda: self.outbox(process.store, process.ambient).mend(),
            is_done=lambda _: True,
            behind="writer",
            after_s=10,
        )

    def check(self, world: World) -> Iterator[Violation]:
        complete = was_worked_off(world, "mend")
        yield from events_follow_commits(world.landings, SimNoted.type_name, complete=complete)


NAMESPACE = "sim"


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
            **surroundings(rng, lost_response=rng.choice((0.0, 0.1)), within_ms=rng.choice((2_000, 10_000))),
        )

    def begin(self, world: World) -> None:
        world.start("publisher", self.publisher)
        world.start_all("worker", self.workers, self.worker)

    def bus(self, process: Process) -> Bus:
        options = Options(lease_ms=self.lease_ms, retry=Retry(50, base_ms=20, max_ms=200, jitter_ms=20), poll_ms=200)
        outbox = Outbox(process.store, process.ambient)
        return Bus(process.store, process.ambient, NAMESPACE, options, outbox.mend)

    async def publisher(self, process: Process) -> None:
        bus = self.bus(process)
        for number in range(self.events):
            order = SimTaken(token=f"{process.name}/{number}")
            await process.perform("publish", bus.publish(order), key=NAMESPACE, show=lambda answer: answer.id)

    async def worker(self, process: Process) -> None:
        await self.work_off(
            process,
            "drain",
            lambda: self.drain(process),
            is_done=lambda waiting: waiting == 0,
            behind="publisher",
            after_s=10,
        )

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

    def check(self, world: World) -> Iterator[Violation]:
        complete = was_worked_off(world, "drain")
        yield from claims_are_kept(world.landings, 50)
        yield from one_commit_each(world.landings)
        yield from told_of_their_commits(world.landings, complete=complete)
        yield from events_follow_commits(world.landings, SimBilled.type_name, complete=complete)


class SimStepped(Event):
    type_name: ClassVar[str] = "sim.stepped"
    token: str


@dataclass(frozen=True, kw_only=True)
class PlatformSteps(Scenario):
    """Steps emit events; each that is recorded is published once, after its entry, also by another process."""

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
            **surroundings(rng, lost_response=rng.choice((0.0, 0.1))),
        )

    def begin(self, world: World) -> None:
        world.start_all("caller", self.callers, self.caller)

    async def caller(self, process: Process) -> None:
        """Calls every run until all have succeeded, and once more when the trouble has ended."""
        await self.work_off(
            process,
            "call",
            lambda: self.call_all(process),
            is_done=lambda outcomes: {each.status for each in outcomes} == {"success"},
            after_s=10,
        )

    async def call_all(self, process: Process) -> list[Outcome]:
        return [await self.call(process, f"run{number}") for number in range(self.runs)]

    async def call(self, process: Process, run_id: str) -> Outcome:
        store = process.store
        with carried_by(self.courier(process.store, process.ambient)):
            outcome = await self.workflow(process).start(store, run_id=run_id)
            if outcome.status == "failed" and outcome.finished:
                outcome = await self.workflow(process).retry_failed(store, run_id)
            return outcome

    def workflow(self, process: Process) -> Workflow:
        @workflow(version="1", name="teller")
        async def teller(ctx: RunContext) -> None:
            for number in range(self.steps):
                await ctx.step(f"tell{number}", tell, ctx, number)

        async def tell(ctx: RunContext, number: int) -> None:
            mark = process.ambient.ids.attempt()
            for position in range(self.events):
                token = f"{ctx.run_id}/tell{number}/{position}/{mark}"
                ctx.emit(SimStepped(token=token), namespace=NAMESPACE)
                await asyncio.sleep(process.rng.random() * 0.1)
            if process.rng.random() < self.failing:
                raise ValueError("as drawn")

        return teller

    def check(self, world: World) -> Iterator[Violation]:
        complete = was_worked_off(world, "call")
        yield from events_follow_steps(world.landings, SimStepped.type_name, complete=complete)
