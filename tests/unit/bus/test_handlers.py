"""Handlers that misbehave fail their own event alone; workers that stop hand back what they have not finished."""

import asyncio
import logging
import math
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest

from holdfast.base.errors import Corrupt
from holdfast.bus import Bus, Context, Event, Handler, Later, on
from holdfast.bus.errors import BadHandler
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import Object
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, recorder, turn


class Thing(Event):
    type_name: ClassVar[str] = "abuse.thing"
    thing: Any = None


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


class Base(BaseException):
    pass


def raises(error: BaseException) -> Callable[[Any], None]:
    def act(ctx: Any) -> None:
        raise error

    return act


DEEDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "exit": (raises(SystemExit(3)), "SystemExit: 3"),
    "base": (raises(Base("x")), "Base: x"),
    "generator": (raises(GeneratorExit()), "GeneratorExit"),
    "cancelled": (raises(asyncio.CancelledError()), "Cancelled: the handler was cancelled from within"),
    "itself": (lambda _: _cancel_itself(), "Cancelled: the handler was cancelled from within"),
    "mute": (raises(Mute()), "Mute: it cannot say what happened"),
    "surrogate": (raises(ValueError("\udcff")), "ValueError: \\udcff"),
    "group": (raises(BaseExceptionGroup("g", [Base()])), "BaseExceptionGroup: g (1 sub-exception)"),
    "stop": (raises(StopIteration()), "RuntimeError: "),
    "never": (lambda _: Later(seconds=float("inf")), "Invalid: an event cannot come back in inf s"),
    "past": (lambda _: Later(seconds=-1), "Invalid: an event cannot come back in -1 s"),
    "priority": (lambda ctx: ctx.emit(Thing(), priority="high"), "Invalid: 'high' is not a priority"),
    "huge": (lambda ctx: ctx.emit(Thing(), priority=10**400), "Invalid: 1000"),
    "order": (lambda ctx: ctx.emit(Thing(), order_key=5), "Invalid: '5' is not an ordering key"),
    "bytes": (lambda ctx: ctx.emit(Thing(thing="\ud800")), "Invalid: value has no JSON form"),
    "garbage": (lambda ctx: ctx.emissions.append("garbage"), "AttributeError"),
}


def _cancel_itself() -> None:
    task = asyncio.current_task()
    if task is not None:
        task.cancel()


@pytest.mark.parametrize("deed", DEEDS)
async def test_every_exception_of_a_handler_is_a_failed_try(deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("holdfast.bus"), "disabled", True)  # pytest-xdist cannot send a surrogate
    act, reason = DEEDS[deed]
    desk, seen = Desk(), []
    bus = desk.bus()

    @on(OrderPlaced, id="bill")
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        if event.order_id != "bad":
            seen.append(event.order_id)
            return
        act(ctx)
        await asyncio.sleep(0)

    bad = await bus.publish(OrderPlaced(order_id="bad"))
    for number in range(3):
        await bus.publish(OrderPlaced(order_id=str(number)))
    worked = await asyncio.wait_for(bus.run([bill], until_idle=True), 60)
    assert sorted(seen) == ["0", "1", "2"]
    assert (worked.handled, worked.failed, worked.dead) == (3, 3, 1)
    assert desk.claim(bad.id, "bill")["last_error"].startswith(reason)


@pytest.mark.parametrize("error", [SystemExit(3), Base("x"), StopIteration()])
async def test_every_exception_of_a_plain_function_is_a_failed_try(error: BaseException) -> None:
    desk = Desk()

    @on(OrderPlaced, id="bill")
    def bill(ctx: Context, event: OrderPlaced) -> None:
        raise error

    await desk.bus().publish(OrderPlaced(order_id="bad"))
    worked = await asyncio.wait_for(desk.bus().run([bill], until_idle=True), 60)
    assert (worked.handled, worked.failed, worked.dead) == (0, 3, 1)


async def test_a_handler_that_hangs_has_failed_when_its_time_is_over() -> None:
    desk, released = Desk(), threading.Event()
    bus = desk.bus()

    @on(OrderPlaced, id="hang", timeout=0.01)
    async def hang(ctx: Context, event: OrderPlaced) -> None:
        await asyncio.Event().wait()

    @on(OrderPlaced, id="block", timeout=0.01)
    def block(ctx: Context, event: OrderPlaced) -> None:
        released.wait()

    @on(OrderPlaced, id="slow", timeout=60)
    async def slow(ctx: Context, event: OrderPlaced) -> None:
        raise TimeoutError("of its own")

    order = await bus.publish(OrderPlaced(order_id="o1"))
    try:
        worked = await asyncio.wait_for(bus.run([hang, block, slow], until_idle=True), 60)
    finally:
        released.set()
    assert worked.dead == 3
    assert desk.claim(order.id, "hang")["last_error"] == "TimedOut: the handler was not done after 0.01 s"
    assert desk.claim(order.id, "block")["last_error"] == "TimedOut: the handler was not done after 0.01 s"
    assert desk.claim(order.id, "slow")["last_error"] == "TimeoutError: of its own"


async def test_a_handler_that_refuses_to_be_cancelled_keeps_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bus.worker.delivery.STUBBORN_S", 0.01)
    desk, stop, released = Desk(), asyncio.Event(), asyncio.Event()

    @on(OrderPlaced, id="stubborn")
    async def stubborn(ctx: Context, event: OrderPlaced) -> None:
        stop.set()
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue

    order = await desk.bus().publish(OrderPlaced(order_id="o1"))
    worked = await asyncio.wait_for(desk.bus().run([stubborn], stop=stop, grace_ms=0), 60)
    released.set()
    assert worked.handed_back == 1
    assert desk.claim(order.id, "stubborn")["last_error"] == "handed back"


async def test_later_without_a_time_is_the_next_poll() -> None:
    desk, calls = Desk(), []
    bus = desk.bus(poll_ms=5_000)

    @on(OrderPlaced, id="wait")
    async def wait(ctx: Context, event: OrderPlaced) -> None:
        calls.append(ctx.attempt)
        raise Later

    order = await bus.publish(OrderPlaced(order_id="o1"))
    runner = bus.runner([wait])
    await turn(runner)
    assert await runner.step() == 0
    desk.watch.advance(seconds=6)
    assert await runner.step() == 1
    await runner.drain_flight()
    assert calls == [1, 1]
    assert desk.claim(order.id, "wait")["attempts"] == 0


def two(ctx: Any, event: Any) -> None: ...
def one(ctx: Any) -> None: ...
def three(ctx: Any, event: Any, more: Any) -> None: ...
def needs(ctx: Any, event: Any, *, more: Any) -> None: ...
def spread(*args: Any, **more: Any) -> None: ...
def yields(ctx: Any, event: Any) -> Iterator[int]:
    yield 1


async def streams(ctx: Any, event: Any) -> AsyncIterator[int]:
    yield 1


class Callme:
    async def __call__(self, ctx: Any, event: Any) -> None:
        raise ValueError("it was called")


@pytest.mark.parametrize("function", [one, three, needs, yields, streams, 5, partial(two), lambda: None])
def test_a_function_that_cannot_handle_is_refused_when_it_is_declared(function: Any) -> None:
    with pytest.raises(BadHandler, match=r"called|yield|generator|has no name"):
        on(OrderPlaced)(function)


@pytest.mark.parametrize("options", [{"concurrency": 0}, *({"timeout": each} for each in (0, -1, math.nan, math.inf))])
def test_an_option_out_of_range_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadHandler, match=r"concurrency|cannot be given"):
        on(OrderPlaced, **options)
    with pytest.raises(BadHandler, match="classes"):
        on()


@pytest.mark.parametrize("function", [two, spread, partial(three, more=1), Callme(), print])
def test_a_function_that_can_is_not(function: Any) -> None:
    assert on(OrderPlaced, id="h")(function).id == "h"


async def test_an_object_that_can_be_called_is_called() -> None:
    desk = Desk()
    handler: Handler = on(OrderPlaced, id="h")(Callme())
    order = await desk.bus().publish(OrderPlaced(order_id="o1"))
    await desk.bus().run([handler], until_idle=True)
    assert desk.claim(order.id, "h")["last_error"] == "ValueError: it was called"


async def test_a_boundary_that_cannot_be_read_costs_no_event_a_lease() -> None:
    desk = Desk()
    handler = on(OrderPlaced, id="h")(two)
    order = await desk.bus().publish(OrderPlaced(order_id="o1"))
    bus = desk.bus()
    await bus.store.put("bus/default/boundary.json", b"garbage")
    with pytest.raises(Corrupt, match="boundary"):
        await bus.run([handler], until_idle=True)
    claim = desk.claim(order.id, "h")
    assert (claim["last_error"], claim.get("lost_leases", 0), claim["attempts"]) == ("handed back", 0, 0)
    desk.shelf.remove("bus/default/boundary.json")
    assert (await bus.run([handler], until_idle=True)).handled == 1


class Stuck(MemoryStore):
    """Answers no question for an event."""

    async def get(self, key: str) -> Object:
        if key.startswith("events/"):
            self.asked.set()
            await asyncio.Event().wait()
        return await super().get(key)

    asked: asyncio.Event


async def test_a_stopped_worker_leaves_a_long_poll_and_claims_nothing() -> None:
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


async def test_a_worker_reports_how_many_events_wait() -> None:
    desk = Desk()
    bus, stop = desk.bus(), asyncio.Event()
    for number in range(5):
        await bus.publish(OrderPlaced(order_id=str(number)), delay=3_600 if number else 0)

    @on(OrderPlaced, id="wait")
    async def wait(ctx: Context, event: OrderPlaced) -> None:
        stop.set()

    runner = bus.runner([wait])
    await runner.run(stop=stop)
    assert runner.worked.waiting == 4
