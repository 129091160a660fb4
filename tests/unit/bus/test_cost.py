"""What the bus costs in requests, and how fast workers share a backlog: counted, exact, in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import pytest

from holdfast.bus import Bus, Handler, Options, on
from holdfast.bus.worker.runner import Runner
from holdfast.objects.store import PAGE_SIZE
from holdfast.sim.history import Violation
from holdfast.sim.run import simulate_drawn
from holdfast.sim.scenario import Scenario
from holdfast.sim.store import SimStore
from holdfast.sim.wire import TimedWire
from holdfast.sim.world import Process, Seed, World
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, InvoiceSent, finish, turn


async def handle(ctx: Any, event: Any) -> None:
    pass


def runner_of(bus: Bus, concurrency: int = 1_000) -> Runner:
    return bus.runner([on(OrderPlaced, id="bill", concurrency=concurrency)(handle)])


async def publish(desk: Desk, bus: Bus, events: int) -> None:
    for number in range(events):
        await bus.publish(OrderPlaced(order_id=str(number)))
    desk.watch.advance(seconds=1)  # a publisher dates its events apart, so time must pass here too


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
        await finish(runner_of(bus), leaving=True)
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
        await finish(runner_of(bus), leaving=True)
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
    # The digest, and again before it is written: after the first batch, and at the end, for other workers.
    assert desk.spent() == {"get": 2 + 20, "list": 1, "put": 2}
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


async def test_a_retry_is_two_puts() -> None:
    desk = Desk()
    bus = desk.bus()

    @on(OrderPlaced, id="bill")
    async def fail(ctx: Any, event: Any) -> None:
        raise ValueError("no")

    await bus.publish(OrderPlaced(order_id="o1"))
    runner = bus.runner([fail])
    await turn(runner)
    desk.spent()
    assert await runner._claim() == 1
    await runner.drain_flight()
    assert desk.spent() == {"put": 2}


async def test_the_floor_is_three_puts_per_event_and_handler() -> None:
    desk = Desk()
    bus = desk.bus(claim_limit=1_000)
    await publish(desk, bus, 500)
    await finish(runner_of(bus), leaving=True)
    put = desk.spent()["put"]
    assert 1_500 <= put <= 1_500 + 6  # and the digest, a few times


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
    await finish(runner_of(bus), leaving=True)
    desk.spent()
    assert await ListsHistory().poll(bus) == 0
    assert desk.spent() == {"list": 1, "get": 200}


EVENTS = 2_000
HISTORY = 30
ACTIVE_S, CALM_S = 55.0, 1_200.0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The requests to the simulated store, by verb."""
    made: Counter[str] = Counter()
    ask = SimStore._ask

    async def counting(self: SimStore, verb: str, *given: Any, **options: Any) -> Any:
        made[verb] += 1
        return await ask(self, verb, *given, **options)

    monkeypatch.setattr(SimStore, "_ask", counting)
    monkeypatch.setattr(TimedWire, "page_size", lambda self: PAGE_SIZE)
    return made


@dataclass(frozen=True, kw_only=True)
class Watched(Scenario):
    """Notes which events were handled, and when."""

    done: list[tuple[str, float]] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls()

    def check(self, world: World) -> Iterator[Violation]:
        return iter(())

    def handler(self) -> Handler:
        @on(OrderPlaced, id="bill", concurrency=16)
        async def bill(ctx: Any, event: OrderPlaced) -> None:
            self.done.append((event.order_id, asyncio.get_running_loop().time()))

        return bill


@dataclass(frozen=True, kw_only=True)
class Crowd(Watched):
    """A backlog, and workers that start together and go home when it is done."""

    name: ClassVar[str] = "crowd"
    workers: int = 8

    def begin(self, world: World) -> None:
        published = asyncio.Event()

        async def publish(process: Process) -> None:
            bus = Bus(process.store, process.ambient)
            for number in range(EVENTS):
                await bus.publish(OrderPlaced(order_id=str(number)))
            published.set()

        async def work(process: Process) -> None:
            await published.wait()
            await Bus(process.store, process.ambient, options=Options()).run([self.handler()], until_idle=True)

        world.start("publisher", publish)
        for number in range(self.workers):
            world.start(f"worker{number}", work)


def drained(workers: int, counted: Counter[str], seed: int = 1) -> tuple[int, float]:
    """The requests of the workers alone, and the seconds from the first event that was handled to the last."""
    crowd = Crowd(workers=workers)
    counted.clear()
    assert simulate_drawn(crowd, Seed(seed)).violations == []
    assert sorted(int(order) for order, _ in crowd.done) == list(range(EVENTS))
    times = [at for _, at in crowd.done]
    return counted.total() - EVENTS, max(times) - min(times)  # the publisher made one request for each event


def test_four_workers_are_three_times_as_fast_as_one_at_the_same_price(counted: Counter[str]) -> None:
    """The floor is three requests per event: its body, its claim, its ack."""
    alone, alone_s = drained(1, counted)
    assert alone <= 3.1 * EVENTS
    for seed in range(1, 4):
        four, four_s = drained(4, counted, seed)
        assert four <= 3.18 * EVENTS
        assert four_s < alone_s / 3


@dataclass(frozen=True, kw_only=True)
class Idle(Watched):
    """A worker with nothing to do, after some history; then its process publishes an event."""

    name: ClassVar[str] = "idle"
    requests: Counter[str] = field(compare=False, repr=False)
    spans: list[Counter[str]] = field(default_factory=list, compare=False, repr=False)
    """The requests of each span of time."""

    def begin(self, world: World) -> None:
        world.start("worker", self.work)

    async def work(self, process: Process) -> None:
        bus, loop = Bus(process.store, process.ambient), asyncio.get_running_loop()
        for number in range(HISTORY):
            await bus.publish(OrderPlaced(order_id=str(number)))
        working = asyncio.ensure_future(bus.run([self.handler()]))
        await asyncio.sleep(10)
        for span_s in (ACTIVE_S, 60.0, CALM_S):
            self.requests.clear()
            await asyncio.sleep(span_s)
            self.spans.append(self.requests.copy())
        await bus.publish(OrderPlaced(order_id=str(loop.time())))
        await asyncio.sleep(5)
        working.cancel()
        with suppress(asyncio.CancelledError):
            await working


def test_an_idle_worker_makes_one_request_per_second_then_one_in_five_and_wakes_at_once(counted: Counter[str]) -> None:
    idle = Idle(requests=counted)
    assert simulate_drawn(idle, Seed(1)).violations == []
    soon, _, calm = idle.spans
    assert soon.total() <= ACTIVE_S
    assert calm.total() <= CALM_S / 5
    assert calm["list"] >= CALM_S / 10  # it polls: not at most every ten seconds
    assert len(idle.done) == HISTORY + 1
    published, handled = idle.done[-1]
    assert handled - float(published) < 0.5  # what its own process publishes: not the eight seconds between two polls
