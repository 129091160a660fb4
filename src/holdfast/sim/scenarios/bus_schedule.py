"""Schedules: sessions with wrong clocks that come and go, all with the same schedule."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.bus import Event, Schedule
from holdfast.bus.publish import Boundary, Publisher
from holdfast.bus.schedule import Misfire, Ticker
from holdfast.sim.checkers.bus import every_tick, one_event_per_tick
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

NAMESPACE = "sim"


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
        for number in range(self.sessions):
            world.start(f"session{number + 1}", self.session)

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
        told = sum(each.outcome.value for each in world.operations if isinstance(each.outcome, Done))  # type: ignore[misc]  # counts
        yield from every_tick(world.landings, SimTick.type_name, told, gaps=self.misfire != "all")
