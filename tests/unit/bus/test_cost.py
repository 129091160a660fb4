"""What the bus costs in requests, and how fast workers share a backlog: counted, exact, in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from holdfast.bus import Bus, Options, on
from holdfast.bus.worker.runner import Runner
from holdfast.objects.store import PAGE_SIZE
from holdfast.sim.history import Violation
from holdfast.sim.run import simulate_drawn
from holdfast.sim.scenario import Scenario
from holdfast.sim.store import SimStore
from holdfast.sim.wire import TimedWire
from holdfast.sim.world import Process, Seed, World
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, InvoiceSent


async def handle(ctx: Any, event: Any) -> None:
    pass


def runner_of(bus: Bus, concurrency: int = 1_000) -> Runner:
    return bus.runner([on(OrderPlaced, id="bill", concurrency=concurrency)(handle)])


async def publish(desk: Desk, bus: Bus, events: int) -> None:
    for number in range(events):
        await bus.publish(OrderPlaced(order_id=str(number)))
    desk.watch.advance(seconds=1)  # a publisher dates its events apart, so time must pass here too


async def settle_all(runner: Runner) -> None:
    while await runner.step():
        await runner.drain_flight()
    await runner.feed.flush(leaving=True)


async def test_publishing_is_one_put() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"))
    assert desk.spent() == {"get": 1, "put": 1}  # the boundary, once a minute
    await bus.publish(OrderPlaced(order_id="o2"))
    assert desk.spent() == {"put": 1}
    await bus.publish(OrderPlaced(order_id="o3"), key="o3")
    assert desk.spent() == {"put": 2}
    await bus.publish(OrderPlaced(order_id="o3"), key="o3")
    assert desk.spent()["put"] == 2  # the dedupe object and the event, both found taken


async def test_an_idle_poll_is_one_request_however_long_the_history() -> None:
    for events in (0, 10, 1_500):
        desk = Desk()
        bus = desk.bus(claim_limit=1_000)
        await publish(desk, bus, events)
        await settle_all(runner_of(bus))
        newcomer = runner_of(desk.bus())
        await newcomer.step()
        desk.spent()
        assert await newcomer.step() == 0
        spent = desk.spent()
        assert spent == {"list": 1}


async def test_claiming_k_of_n_is_k_puts_and_the_digest_however_many_are_settled() -> None:
    seen = []
    for settled, pending in ((0, 40), (1_200, 40), (1_200, 400)):
        desk = Desk()
        bus = desk.bus(claim_limit=1_000)
        await publish(desk, bus, settled)
        await settle_all(runner_of(bus))
        await publish(desk, bus, pending)
        first = runner_of(bus)
        await first.feed.poll()
        await first.feed.flush()
        other = runner_of(desk.bus(), concurrency=7)
        await other.feed.flush()
        desk.spent()
        assert await other.step() == 7
        seen.append(desk.spent())
        await other.drain_flight()
        assert desk.spent() == {"get": 7, "put": 7}  # bodies that it had not read itself, and acks
    assert seen == [{"get": 1, "list": 1, "put": 7}] * 3  # boundary, new keys, claims


async def test_each_event_is_read_once_for_all_workers_and_handlers() -> None:
    desk = Desk()
    bus = desk.bus()
    await publish(desk, bus, 20)
    both = [on(OrderPlaced, id="bill")(handle), on(OrderPlaced, InvoiceSent, id="audit")(handle)]
    first = bus.runner(both)
    desk.spent()
    await first.feed.poll()
    assert desk.spent() == {"get": 2 + 20, "list": 1}  # the digest, again after the first eight
    await first.feed.flush()
    assert desk.spent() == {"get": 1, "put": 1}
    second = desk.bus().runner(both)
    await second.feed.poll()
    assert desk.spent() == {"get": 1, "list": 1}
    assert len(second.feed.view("bill").open) == len(second.feed.view("audit").open) == 20


async def test_workers_that_start_together_share_the_reading_and_the_claims() -> None:
    desk = Desk()
    await publish(desk, desk.bus(), 600)
    workers = [runner_of(desk.bus(claim_limit=1_000)) for _ in range(4)]
    for worker in workers:
        await worker.feed.flush()  # they have greeted
    for worker in workers:
        await worker.feed.read()
    desk.spent()
    for worker in workers:
        await worker._poll()
    read = desk.spent()
    assert read["get"] <= 600 + 4 * 6  # each event once; the digest after 8, 24, 56, ... of them
    started = [await worker._claim() for worker in workers]
    assert sum(started) == 600
    assert min(started) > 100
    for worker in workers:
        await worker.drain_flight()
    # Claims and acks: no worker tried what another had, each claimed what it had read itself; the boundary.
    assert desk.spent() == {"get": 4, "put": 1_200}


async def test_a_lone_worker_and_one_whose_fellows_are_gone_leave_nothing() -> None:
    desk = Desk()
    bus = desk.bus()
    gone = runner_of(desk.bus())
    await gone.feed.flush()
    await publish(desk, bus, 40)
    worked = await runner_of(bus).run(until_idle=True)
    assert worked.handled == 40
    assert runner_of(desk.bus()).feed.is_mine("2026-01-01T00-00-00.000000+00-00_e")


async def test_a_retry_is_two_puts() -> None:
    desk = Desk()
    bus = desk.bus()

    @on(OrderPlaced, id="bill")
    async def fail(ctx: Any, event: Any) -> None:
        raise ValueError("no")

    await bus.publish(OrderPlaced(order_id="o1"))
    runner = bus.runner([fail])
    await runner.step()
    await runner.drain_flight()
    desk.spent()
    assert await runner._claim() == 1
    await runner.drain_flight()
    assert desk.spent() == {"put": 2}


async def test_the_floor_is_three_puts_per_event_and_handler() -> None:
    desk = Desk()
    bus = desk.bus(claim_limit=1_000)
    await publish(desk, bus, 500)
    await settle_all(runner_of(bus))
    put = desk.spent()["put"]
    assert 1_500 <= put <= 1_500 + 5  # and the digest, a few times


class ListsHistory:
    """The specification's way: every poll lists and reads all events and their claims."""

    async def poll(self, bus: Bus) -> int:
        pending = 0
        async for key in bus.store.keys("events/default/"):
            event_id = key.rpartition("_")[2].removesuffix(".json")
            await bus.store.get(key)
            claim = await bus.store.find(f"claims/default/{event_id}/bill.json")
            pending += claim is None
        return pending


async def test_polling_history_costs_two_requests_per_settled_event() -> None:
    desk = Desk()
    bus = desk.bus()
    await publish(desk, bus, 100)
    await settle_all(runner_of(bus))
    desk.spent()
    assert await ListsHistory().poll(bus) == 0
    assert desk.spent() == {"list": 1, "get": 200}


EVENTS = 2_000
DONE: list[str] = []
TIMES: list[float] = []


@on(OrderPlaced, id="bill", concurrency=16)
async def bill(ctx: Any, event: OrderPlaced) -> None:
    DONE.append(event.order_id)
    TIMES.append(asyncio.get_running_loop().time())


@dataclass(frozen=True, kw_only=True)
class Crowd(Scenario):
    """A backlog, and workers that start together and go home when it is done."""

    name: ClassVar[str] = "crowd"
    workers: int = 8
    ranked: bool = False

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(ranked=rng.random() < 0.5)

    def check(self, world: World) -> Iterator[Violation]:
        handled = {landing.key for landing in world.landings if landing.key.startswith("claims/")}
        if len(handled) != EVENTS:
            yield Violation("every event is claimed", f"{len(handled)} are")

    def begin(self, world: World) -> None:
        published = asyncio.Event()

        async def publish(process: Process) -> None:
            bus = Bus(process.store, process.ambient)
            for number in range(EVENTS):
                await bus.publish(OrderPlaced(order_id=str(number)), priority=100 + number % 3 * self.ranked)
            published.set()

        async def work(process: Process) -> None:
            await published.wait()
            await Bus(process.store, process.ambient, options=Options()).run([bill], until_idle=True)

        world.start("publisher", publish)
        for number in range(self.workers):
            world.start(f"worker{number}", work)


def drained(crowd: Crowd, monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], float]:
    """The requests of the workers alone, and the seconds from the first event that was handled to the last."""
    counted: Counter[str] = Counter()
    ask = SimStore._ask

    async def counting(self: SimStore, verb: str, *given: Any, **options: Any) -> Any:
        counted[verb] += 1
        return await ask(self, verb, *given, **options)

    monkeypatch.setattr(SimStore, "_ask", counting)
    monkeypatch.setattr(TimedWire, "page_size", lambda self: PAGE_SIZE)
    DONE.clear()
    TIMES.clear()
    run = simulate_drawn(crowd, Seed(1))
    assert run.violations == []
    assert sorted(DONE, key=int) == [str(number) for number in range(EVENTS)]
    counted["put"] -= EVENTS  # the publisher
    return counted, max(TIMES) - min(TIMES)


def test_four_workers_are_three_times_as_fast_as_one_at_the_same_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor is three requests per event: its body, its claim, its ack."""
    alone, alone_s = drained(Crowd(workers=1), monkeypatch)
    assert alone.total() <= 3.15 * EVENTS
    four, four_s = drained(Crowd(workers=4), monkeypatch)
    assert four.total() <= 3.2 * EVENTS
    assert four_s < alone_s / 3


def test_priorities_cost_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked, _ = drained(Crowd(workers=4, ranked=True), monkeypatch)
    assert ranked.total() <= 3.2 * EVENTS


HISTORY = 30
ACTIVE_S, CALM_S = 55.0, 1_200.0
COUNTS: list[Counter[str]] = []
DELAYS: list[float] = []


@on(OrderPlaced, id="bill")
async def timed_bill(ctx: Any, event: OrderPlaced) -> None:
    DELAYS.append(asyncio.get_running_loop().time() - float(event.order_id))


@dataclass(frozen=True, kw_only=True)
class Idle(Scenario):
    """A worker with nothing to do, after some history; then its process publishes an event."""

    name: ClassVar[str] = "idle"

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls()

    def check(self, world: World) -> Iterator[Violation]:
        return iter(())

    def begin(self, world: World) -> None:
        world.start("worker", self.work)

    async def work(self, process: Process) -> None:
        bus, loop = Bus(process.store, process.ambient), asyncio.get_running_loop()
        for _ in range(HISTORY):
            await bus.publish(OrderPlaced(order_id=str(loop.time())))
        working = asyncio.ensure_future(bus.run([timed_bill]))
        await asyncio.sleep(10)
        for span_s in (ACTIVE_S, 60.0, CALM_S):
            COUNTED.clear()
            await asyncio.sleep(span_s)
            COUNTS.append(COUNTED.copy())
        DELAYS.clear()
        await bus.publish(OrderPlaced(order_id=str(loop.time())))
        await asyncio.sleep(5)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


COUNTED: Counter[str] = Counter()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = SimStore._ask

    async def counting(self: SimStore, verb: str, *given: Any, **options: Any) -> Any:
        COUNTED[verb] += 1
        return await ask(self, verb, *given, **options)

    monkeypatch.setattr(SimStore, "_ask", counting)
    monkeypatch.setattr(TimedWire, "page_size", lambda self: PAGE_SIZE)
    COUNTS.clear()
    DELAYS.clear()


def test_an_idle_worker_makes_one_request_per_second_then_one_in_five(counted: None) -> None:
    assert simulate_drawn(Idle(), Seed(1)).violations == []
    soon, _, calm = COUNTS
    assert soon.total() <= ACTIVE_S
    assert calm.total() <= CALM_S / 5
    assert calm["list"] >= CALM_S / 10  # it polls: not at most every ten seconds


def test_what_the_own_process_publishes_is_handled_at_once(counted: None) -> None:
    assert simulate_drawn(Idle(), Seed(1)).violations == []
    assert len(DELAYS) == 1
    assert DELAYS[0] < 0.5  # a few requests, and not the eight seconds between two polls
