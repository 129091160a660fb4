"""Eight workers on one namespace, in virtual time: what an event costs when there is a crowd. Counted, and exact."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import pytest

from holdfast.bus import Bus, Options, on
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.run import simulate_drawn
from holdfast.sim.scenario import Scenario
from holdfast.sim.seed import Seed
from holdfast.sim.store import SimStore
from holdfast.sim.world import Process, World
from tests.fakes.orders import OrderPlaced

EVENTS = 300
DONE: list[str] = []


@on(OrderPlaced, id="bill", concurrency=16)
async def bill(ctx: Any, event: OrderPlaced) -> None:
    DONE.append(event.order_id)


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


@pytest.mark.parametrize(
    ("crowd", "above_floor"),
    [(Crowd(workers=1), 70), (Crowd(), 560), (Crowd(ranked=True), 560)],
    ids=["alone", "eight", "eight with priorities"],
)
def test_in_a_crowd_an_event_costs_little_more_than_the_floor(
    crowd: Crowd, above_floor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The floor is three per event: its body, its claim, its ack. What is above it grows with the workers."""
    counted: Counter[str] = Counter()
    ask = SimStore._ask

    async def counting(self: SimStore, verb: str, *given: Any, **options: Any) -> Any:
        counted[verb] += 1
        return await ask(self, verb, *given, **options)

    monkeypatch.setattr(SimStore, "_ask", counting)
    DONE.clear()
    run = simulate_drawn(crowd, Seed(1))
    assert run.violations == []
    assert sorted(DONE, key=int) == [str(number) for number in range(EVENTS)]
    # Pages of listings are tiny in the simulator, so they are left out; elsewhere there is one per poll.
    spent = sum(count for verb, count in counted.items() if verb != "list") - EVENTS
    assert spent <= 3 * EVENTS + above_floor
