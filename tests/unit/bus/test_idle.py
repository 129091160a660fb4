"""What an idle worker costs, and how soon it handles what its own process publishes: counted, in virtual time."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from holdfast.bus import Bus, on
from holdfast.objects.store import PAGE_SIZE
from holdfast.sim.history import Violation
from holdfast.sim.run import simulate_drawn
from holdfast.sim.scenario import Scenario
from holdfast.sim.store import SimStore
from holdfast.sim.wire import TimedWire
from holdfast.sim.world import Process, Seed, World
from tests.fakes.orders import OrderPlaced

HISTORY = 30
ACTIVE_S, CALM_S = 55.0, 1_200.0
COUNTS: list[Counter[str]] = []
DELAYS: list[float] = []


@on(OrderPlaced, id="bill")
async def bill(ctx: Any, event: OrderPlaced) -> None:
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
        working = asyncio.ensure_future(bus.run([bill]))
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
