"""The bus: claims of one event, whole namespaces under trouble, and schedules."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Self

from holdfast.base.errors import HoldfastError
from holdfast.bus import Bus, Context, Event, Handler, Options, Retry, Schedule, on
from holdfast.bus.event import DEFAULT_PRIORITY, Envelope
from holdfast.bus.publish import Boundary, Publisher
from holdfast.bus.schedule import Misfire, Ticker
from holdfast.bus.worker.claims import Claims, Hold, Over
from holdfast.sim.checkers.bus import (
    ONCE_PER_KEY,
    Execution,
    by_owner,
    claims_are_kept,
    emitted_once,
    every_tick,
    in_order,
    letters_follow,
    none_lost,
    not_handed_out_again,
    once_each,
    one_event_per_tick,
)
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Violation, answers
from holdfast.sim.scenario import Scenario, retries, surroundings, was_worked_off
from holdfast.sim.world import Process, World

NAMESPACE = "sim"
EVENT = Envelope("e1", NAMESPACE, "sim.order", {}, 1_700_000_000 * 10**9, 100, "e1", 0)
HANDLER = "work"


@dataclass(frozen=True, kw_only=True)
class BusClaim(Scenario):
    """Workers claim one event, fail, retry, ack or bury it; each claim has one owner and settles once."""

    name: ClassVar[str] = "bus-claim"

    workers: int = 2
    turns: int = 2
    first_turns: int | None = None
    """Of the first worker, if it has fewer: a smaller world in which the other still sees everything."""
    attempts: int = 2
    acks: tuple[str, ...] = ("worker2",)
    """Who acks on its second turn; the others fail every time."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        workers = rng.randint(2, 4)
        return cls(
            workers=workers,
            turns=rng.randint(1, 6),
            attempts=rng.randint(1, 4),
            acks=tuple(f"worker{number + 1}" for number in range(workers) if rng.random() < 0.5),
            **surroundings(rng, lost_response=0.2),
        )

    def begin(self, world: World) -> None:
        world.start_all("worker", self.workers, self.worker)

    def claims(self, process: Process) -> Claims:
        # A lease of no length: any session may claim at any moment, and every owner may be a zombie.
        return Claims(process.store, NAMESPACE, process.name, process.ambient, lease_ms=0, max_chain_depth=20)

    async def worker(self, process: Process) -> None:
        claims = self.claims(process)
        retry = Retry(self.attempts, base_ms=0, max_ms=0, jitter_ms=0)
        first = process.family == "worker1" and self.first_turns is not None
        for turn in range(self.first_turns or 0) if first else range(self.turns):
            taken = await process.perform("take", claims.take(EVENT.name, HANDLER), key=HANDLER, show=str)
            if not isinstance(taken, Done):
                continue
            if isinstance(taken.result, Over):
                await process.perform("effects", claims.effects(taken.result.claim, EVENT), key=HANDLER)
            elif isinstance(taken.result, Hold):
                await process.perform(
                    "act", self.act(process, claims, taken.result, retry, turn), key=HANDLER, show=str
                )

    async def act(self, process: Process, claims: Claims, hold: Hold, retry: Retry, turn: int) -> str:
        if process.family in self.acks and turn > 0:
            await claims.ack(hold)
            return "acked"
        claim = await claims.fail(hold, "no", retry)
        if claim.dead_ns is not None:
            await claims.effects(claim, EVENT)
        return "failed"

    def check(self, world: World) -> Iterator[Violation]:
        yield from claims_are_kept(world.landings, self.attempts)
        yield from by_owner(world.landings)
        yield from letters_follow(world.landings, complete=False)
        yield from answer(world)


def answer(world: World) -> Iterator[Violation]:
    """A worker that was answered that it acked did: the claim that is left is acked, or there is none."""
    acks = [each for each in world.operations if each.call == "act" and each.outcome == Done("acked")]
    states = [landing.body for landing in world.landings if landing.key.startswith("claims/") and landing.body]
    if acks and not any(b'"ack_at":"' in body for body in states):
        yield Violation("an ack that was answered has landed", f"{acks}")


class SimOrder(Event):
    type_name: ClassVar[str] = "sim.order"
    token: str
    key: str | None = None


class SimReceipt(Event):
    type_name: ClassVar[str] = "sim.receipt"
    token: str


@dataclass(frozen=True, kw_only=True)
class BusEvents(Scenario):
    """Publishers, workers and a cleaner share a namespace; every event is settled once and none is lost."""

    name: ClassVar[str] = "bus"

    publishers: int = 1
    workers: int = 2
    events: int = 2
    keyed: float = 0.0
    spread_s: float = 0.0
    """Publishers pause up to this long between events."""
    failing: float = 0.0
    dawdling: float = 0.0
    """How often a handler takes longer than its lease."""
    attempts: int = 2
    lease_ms: int = 1_000
    order_keys: int = 0
    """Events have one of so many ordering keys, and handlers are ordered; 0 is without."""
    priorities: int = 1
    """Events have one of so many."""
    delayed: float = 0.0
    """How often an event is delayed by up to ten seconds."""
    cleaner: bool = False
    retention_s: float = 60.0
    executions: list[Execution] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        troubles = Troubles.drawn(rng, within_ms=rng.choice((2_000, 20_000)))
        return cls(
            publishers=rng.randint(1, 3),
            workers=rng.randint(1, 3),
            events=rng.randint(1, 6),
            keyed=rng.choice((0.0, 0.5)),
            spread_s=rng.choice((0.0, 2.0, 20.0)),
            failing=rng.choice((0.0, 0.3, 0.9)),
            dawdling=rng.choice((0.0, 0.2)),
            attempts=rng.randint(1, 4),
            lease_ms=rng.choice((300, 2_000)),
            order_keys=rng.choice((0, 0, 1, 2)),
            cleaner=rng.random() < 0.5,
            # Beyond all wrong clocks: a publisher that is behind by more than the retention cannot be helped.
            retention_s=1.0 if troubles.skew_ms < 100 else 40.0,
            faults=Faults.drawn(rng, lost_response=rng.choice((0.0, 0.05, 0.2))),
            troubles=troubles,
            retry=retries(rng),
            priorities=rng.choice((1, 1, 3)),
        )

    def begin(self, world: World) -> None:
        world.start_all("publisher", self.publishers, self.publisher)
        world.start_all("worker", self.workers, self.worker)
        if self.cleaner:
            world.start("cleaner", self.clean)

    def bus(self, process: Process) -> Bus:
        options = Options(
            lease_ms=self.lease_ms,
            retry=Retry(self.attempts, base_ms=20, max_ms=500, jitter_ms=20),
            heartbeat_ms=5_000,
            poll_ms=200,
        )
        return Bus(process.store, process.ambient, NAMESPACE, options)

    async def publisher(self, process: Process) -> None:
        bus = self.bus(process)
        for number in range(self.events):
            token = f"{process.name}/{number}"
            if process.rng.random() < self.keyed:
                await self.publish_keyed(process, bus, token)
            else:
                order_key, priority = self.order_key(process), self.priority(process)
                delay = process.rng.random() * 10 if self.delayed and process.rng.random() < self.delayed else 0.0
                order = SimOrder(token=token)
                publishing = bus.publish(order, order_key=order_key, priority=priority, delay=delay)
                await process.perform("publish", publishing, key=NAMESPACE, show=lambda answer: answer.id)
            await asyncio.sleep(process.rng.random() * self.spread_s)

    async def publish_keyed(self, process: Process, bus: Bus, token: str) -> None:
        """Until it is certain, as the key allows."""
        order_key, priority = self.order_key(process), self.priority(process)
        for _ in range(5):
            order = SimOrder(token=token, key=token)
            outcome = await process.perform(
                "publish",
                bus.publish(order, key=self.key_of(token), order_key=order_key, priority=priority),
                key=NAMESPACE,
                show=lambda answer: answer.id,
            )
            if isinstance(outcome, Done) and process.rng.random() < 0.7:
                return

    def order_key(self, process: Process) -> str | None:
        return f"k{process.rng.randrange(self.order_keys)}" if self.order_keys else None

    def priority(self, process: Process) -> int:
        return DEFAULT_PRIORITY + (process.rng.randrange(self.priorities) if self.priorities > 1 else 0)

    def key_of(self, token: str) -> str | None:
        return token

    async def worker(self, process: Process) -> None:
        handler = self.handler(process)
        await self.work_off(
            process,
            "drain",
            lambda: self.bus(process).run([handler], until_idle=True),
            is_done=lambda worked: worked.waiting == 0,
            behind="publisher",
            pause_s=2,
        )

    @property
    def is_ordered(self) -> bool:
        return self.order_keys > 0

    def handler(self, process: Process) -> Handler:
        @on(SimOrder, id=HANDLER, concurrency=process.rng.randint(1, 4), ordered=self.is_ordered)
        async def work(ctx: Context, event: SimOrder) -> None:
            owner = ctx.hold.owner
            position = process.note("handles", event.token, owner.generation)
            self.executions.append(Execution(position, ctx.event_id, HANDLER, owner.session_id, owner.generation))
            if process.rng.random() < self.dawdling:
                await asyncio.sleep(self.lease_ms / 400)
            if process.rng.random() < self.failing:
                raise ValueError("as drawn")
            ctx.emit(SimReceipt(token=event.token))

        return work

    async def clean(self, process: Process) -> None:
        bus = self.bus(process)
        for _ in range(8):
            await asyncio.sleep(process.rng.random() * 10)
            before_ns = process.clock.wall_ns() - int(self.retention_s * 1e9)
            try:
                await bus.cleanup(before_ns=before_ns)
            except HoldfastError as error:
                process.note("will clean later", str(error))

    def check(self, world: World) -> Iterator[Violation]:
        landings = world.landings
        yield from claims_are_kept(landings, self.attempts)
        yield from not_handed_out_again(landings, self.executions)
        yield from in_order(landings, HANDLER)
        complete = was_worked_off(world, "drain")
        yield from letters_follow(landings, complete=complete)
        yield from emitted_once(landings, SimReceipt.type_name, complete=complete)
        if complete:
            published = [event_id for _, event_id in answers(world.operations, "publish")]
            yield from none_lost(landings, published, HANDLER)
        if not self.cleaner:
            yield from once_each(landings, ONCE_PER_KEY, "key")


class SimTick(Event):
    type_name: ClassVar[str] = "sim.tick"


@dataclass(frozen=True, kw_only=True)
class BusSchedule(Scenario):
    """Sessions share a schedule; each tick becomes one event, and with ``misfire="all"`` every tick does."""

    name: ClassVar[str] = "bus-schedule"
    ticker: ClassVar[type[Ticker]] = Ticker

    sessions: int = 2
    looks: int = 4
    every_s: float = 30.0
    misfire: Misfire = "all"

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            sessions=rng.randint(1, 4),
            looks=rng.randint(2, 30),
            every_s=rng.choice((5.0, 30.0, 200.0)),
            misfire=rng.choice(("skip", "once", "all", "all")),
            faults=Faults.drawn(rng, lost_response=rng.choice((0.0, 0.2))),
            troubles=Troubles.drawn(rng, within_ms=rng.choice((2_000, 400_000))),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        world.start_all("session", self.sessions, self.session)

    async def session(self, process: Process) -> None:
        boundary = Boundary(process.store, NAMESPACE, process.ambient)
        publisher = Publisher(process.store, NAMESPACE, process.ambient, boundary=boundary)
        schedule = Schedule("* * * * *", SimTick(), name="minutely", misfire=self.misfire)
        ticker = self.ticker(process.store, publisher, process.ambient, [schedule])
        for _ in range(self.looks):
            await process.perform("fire", self.fire(ticker), key=NAMESPACE)
            await asyncio.sleep(process.rng.random() * self.every_s)

    async def fire(self, ticker: Ticker) -> int:
        return await ticker.fire_due()

    def check(self, world: World) -> Iterator[Violation]:
        yield from one_event_per_tick(world.landings, SimTick.type_name)
        fired = sum(count for _, count in answers(world.operations, "fire"))
        yield from every_tick(world.landings, SimTick.type_name, fired, gaps=self.misfire != "all")
