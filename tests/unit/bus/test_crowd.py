"""Workers that share a backlog, in virtual time: how fast they are, and what an event costs. Counted, and exact."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from holdfast.bus import Bus, Options, on
from holdfast.objects.store import PAGE_SIZE
from holdfast.sim.history import Violation
from holdfast.sim.run import simulate_drawn
from holdfast.sim.scenario import Scenario
from holdfast.sim.store import SimStore
from holdfast.sim.wire import TimedWire
from holdfast.sim.world import Process, Seed, World
from tests.fakes.orders import OrderPlaced

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
