"""Events that appear before the cursor: wrong clocks, repairs with old times, dead workers, a lost digest."""

from typing import Any

from holdfast.bus import Bus, on
from holdfast.bus.worker.runner import Runner
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, InvoiceSent, finish, recorder


def runner_of(bus: Bus, seen: list[str]) -> Runner:
    return bus.runner([recorder(seen)])


async def crowded(desk: Desk, seen: list[str]) -> Runner:
    """A worker whose cursor has passed the present by now."""
    bus = desk.bus()
    for number in range(30):
        await bus.publish(OrderPlaced(order_id=f"old{number}"))
    runner = runner_of(bus, seen)
    await finish(runner)
    desk.watch.advance(seconds=60)
    await bus.publish(OrderPlaced(order_id="newest"))
    desk.watch.advance(seconds=20)
    await finish(runner)
    await finish(runner)
    assert len(seen) == 31
    seen.clear()
    return runner


async def test_a_clock_that_is_far_behind_is_seen_by_the_sweep() -> None:
    desk = Desk()
    seen: list[Any] = []
    runner = await crowded(desk, seen)
    await desk.bus(skew_s=-45).publish(OrderPlaced(order_id="late"))
    await desk.bus(skew_s=-86_400).publish(OrderPlaced(order_id="very late"))
    await finish(runner)
    assert seen == []
    assert runner.sweep.is_due()
    assert await runner.sweep.run() == 2
    await finish(runner)
    assert seen == ["very late", "late"]
    assert await runner.sweep.run() == 0


async def test_a_sweep_with_nothing_to_find_reads_no_claims() -> None:
    desk = Desk()
    seen: list[Any] = []
    runner = await crowded(desk, seen)
    await runner.sweep.run()
    await runner.feed.flush()
    desk.spent()
    await runner.feed.sync()
    assert await runner.sweep.run() == 0
    await runner.feed.flush()
    assert desk.spent() == {"get": 1, "list": 1, "put": 1}  # the digest, history, the digest with its new time


async def test_one_worker_sweeps_for_all() -> None:
    desk = Desk()
    seen: list[Any] = []
    runner = await crowded(desk, seen)
    other = runner_of(desk.bus(), seen)
    await other.step()
    desk.watch.advance(seconds=31)
    assert other.sweep.is_due()
    await runner.sweep.run()
    await runner.feed.flush()
    await other.feed.read()
    assert not other.sweep.is_due()
    desk.watch.advance(seconds=31)
    assert other.sweep.is_due()


async def test_an_event_of_the_future_hides_no_other() -> None:
    desk = Desk()
    seen: list[Any] = []
    bus, ahead = desk.bus(), desk.bus(skew_s=3_600)
    runner = runner_of(bus, seen)
    for number in range(600):
        await ahead.publish(OrderPlaced(order_id=str(number)))
    await finish(runner)
    seen.clear()
    await bus.publish(OrderPlaced(order_id="now"))
    await finish(runner)
    assert seen == ["now"]


async def test_a_digest_that_is_gone_is_derived_anew() -> None:
    desk = Desk()
    seen: list[Any] = []
    await crowded(desk, seen)
    await desk.bus().publish(OrderPlaced(order_id="new"))
    desk.shelf.remove("bus/default/digest.json")
    await runner_of(desk.bus(), seen).run(until_idle=True)
    assert seen == ["new"]
    assert (await desk.bus().stats())[0].closed == 32


async def test_a_handler_that_takes_new_types_looks_at_history_again() -> None:
    desk = Desk()
    seen: list[Any] = []
    bus = desk.bus()
    await bus.publish(InvoiceSent(order_id="invoice"))
    await bus.publish(OrderPlaced(order_id="order"))
    await finish(runner_of(bus, seen))
    assert seen == ["order"]

    @on(OrderPlaced, InvoiceSent, id="record")
    async def both(ctx: Any, event: Any) -> None:
        seen.append(event.order_id)

    await bus.run([both], until_idle=True)
    assert seen == ["order", "invoice"]


async def test_a_section_that_another_worker_reset_loses_nothing() -> None:
    """Two versions of a handler run side by side for a while, each with its own types."""
    desk = Desk()
    seen: list[Any] = []
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="waits"), delay=600)
    desk.watch.advance(seconds=60)
    runner = runner_of(bus, seen)
    await finish(runner)
    await finish(runner)
    assert runner.feed.view("record").cursor

    @on(OrderPlaced, InvoiceSent, id="record")
    async def newer(ctx: Any, event: Any) -> None:
        seen.append(event.order_id)

    await bus.publish(OrderPlaced(order_id="o2"))
    desk.watch.advance(seconds=60)
    await runner.feed.poll()  # it knows of a new cursor, and has not written it
    await desk.bus().runner([newer]).feed.flush()
    await runner.feed.flush()
    newcomer = runner_of(desk.bus(), seen)
    for _ in range(4):  # the other workers, which would read some of them, do nothing
        await newcomer.feed.poll()
    assert len(newcomer.feed.view("record").open) == 2
