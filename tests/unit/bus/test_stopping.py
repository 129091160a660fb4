"""A worker that is told to stop, and what it tells while it works."""

import asyncio
from typing import Any

from holdfast.bus import Bus, Context, Handler, on
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import Object
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk


def recorder(log: list[Any]) -> Handler:
    @on(OrderPlaced, id="record")
    async def record(ctx: Context, event: OrderPlaced) -> None:
        log.append(event.order_id)

    return record


class Stuck(MemoryStore):
    """Answers no question for an event."""

    async def get(self, key: str) -> Object:
        if key.startswith("events/"):
            self.asked.set()
            await asyncio.Event().wait()
        return await super().get(key)

    asked: asyncio.Event


async def test_who_is_told_to_stop_leaves_a_long_look_and_claims_nothing() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"))
    stuck = Stuck(desk.shelf, clock=desk.watch)
    stuck.asked = asyncio.Event()
    runner = Bus(stuck, bus.ambient, "default", bus.options).runner([recorder([])])
    stop = asyncio.Event()
    working = asyncio.ensure_future(runner.run(stop=stop))
    await stuck.asked.wait()
    assert runner.is_healthy  # the store answers
    stop.set()
    assert (await working).handled == 0
    assert desk.documents("claims/") == {}


async def test_who_is_told_to_stop_while_it_looks_claims_nothing() -> None:
    desk = Desk()
    bus, stop = desk.bus(), asyncio.Event()

    async def stopping() -> None:
        stop.set()

    await bus.publish(OrderPlaced(order_id="o1"))
    runner = bus.runner([recorder([])])
    runner.mend = stopping  # it is the first thing that a worker does
    assert (await runner.run(stop=stop)).handled == 0
    assert desk.documents("claims/") == {}


async def test_a_worker_tells_how_many_events_wait() -> None:
    desk = Desk()
    bus, stop = desk.bus(), asyncio.Event()
    for number in range(5):
        await bus.publish(OrderPlaced(order_id=str(number)), delay=3_600 if number else 0)

    @on(OrderPlaced, id="wait")
    async def wait(ctx: Context, event: OrderPlaced) -> None:
        stop.set()

    runner = bus.runner([wait])
    await runner.run(stop=stop)
    assert runner.worked.waiting == 5  # as of the last look, which found all of them
