"""Durable handlers, and workflows that emit."""

import asyncio
from typing import Any

import pytest

from holdfast import runs
from holdfast.base.config import BusSection, Settings
from holdfast.base.errors import Invalid, Unavailable
from holdfast.bus import on
from holdfast.platform import durable
from holdfast.platform.durable import BusCourier, run_id_of
from holdfast.runs.engine.outbox import carried_by
from tests.unit.platform.kit import InvoiceDue, OrderTaken, platform, published


async def test_the_body_is_a_run_whose_steps_are_done_once() -> None:
    done: list[str] = []

    @on(OrderTaken, id="ship", durable=True)
    async def ship(ctx: runs.Context, event: OrderTaken) -> None:
        async def pack() -> str:
            done.append("pack")
            ctx.emit(InvoiceDue(order_id=event.order_id))
            return "box"

        assert await ctx.step("pack", pack) == "box"
        await ctx.sleep(seconds=0.01)
        await ctx.step("send", done.append, "send")
        if done.count("send") == 1 and "failed" not in done:
            done.append("failed")
            raise ValueError("once")

    async with platform() as hf:
        order = await hf.bus().publish(OrderTaken(order_id="o1"))
        worked = await hf.run([ship], until_idle=True)
        assert done == ["pack", "send", "failed"]
        assert (worked.handled, worked.failed) == (1, 1)
        assert worked.handed_back >= 1
        reported = await hf.call(runs.describe, run_id_of(order.id, "ship"))
        assert reported.status == "success"
        (event,) = await published(hf, "invoice.due")
        assert (event.parent_event_id, event.chain_depth) == (order.id, 1)


async def test_a_run_that_waits_is_looked_at_again() -> None:
    @on(OrderTaken, id="approve", durable=True)
    async def approve(ctx: runs.Context, event: OrderTaken) -> None:
        answer = await ctx.suspend("approval")
        await ctx.step("note", lambda: answer)

    async with platform() as hf:
        order = await hf.bus().publish(OrderTaken(order_id="o1"))
        async with hf.runner([approve]) as runner:
            await runner.step()
            await runner.drain_flight()
            assert runner.worked.handed_back == 1
        await hf.deliver(run_id_of(order.id, "approve"), "approval", "yes")
        assert (await hf.run([approve], until_idle=True)).handled == 1


async def test_a_run_that_keeps_failing_buries_its_event() -> None:
    @on(OrderTaken, id="hopeless", durable=True)
    async def hopeless(ctx: runs.Context, event: OrderTaken) -> None:
        raise ValueError("as always")

    settings = Settings(bus=BusSection(event_poll_ms=5, event_max_attempts=2, event_backoff_base_ms=1))
    async with platform(settings) as hf:
        await hf.bus().publish(OrderTaken(order_id="o1"))
        assert (await hf.run([hopeless], until_idle=True)).dead == 1
        (letter,) = await hf.bus().dead_letters()
        assert "as always" in letter["last_error"]


@runs.workflow
async def checkout(ctx: runs.Context, order_id: str) -> None:
    def charge() -> str:
        ctx.emit(InvoiceDue(order_id=order_id), namespace="billing")
        return "paid"

    await ctx.step("charge", charge)
    await ctx.step("thank", lambda: None)


class Crashing(BusCourier):
    async def publish(self, documents: Any) -> None:
        raise Unavailable("the process has died")


async def test_an_event_of_a_step_is_published_once_with_it_also_after_a_crash() -> None:
    async with platform() as hf:
        with carried_by(Crashing(hf.store, hf.ambient)), pytest.raises(Unavailable):
            await checkout.start(hf.store, "o1", run_id="r1")
        assert await published(hf, "invoice.due", "billing") == []
        assert (await hf.start(checkout, "o1", run_id="r1")).status == "success"
        (event,) = await published(hf, "invoice.due", "billing")
        assert event.payload == {"order_id": "o1"}
        puts = hf.store.usage.by_verb["put"]
        await hf.start(checkout, "o1", run_id="r1")
        assert hf.store.usage.by_verb["put"] == puts


async def test_a_try_that_fails_emits_nothing() -> None:
    tries = 0

    @runs.workflow
    async def flaky(ctx: runs.Context) -> None:
        def work() -> None:
            nonlocal tries
            tries += 1
            ctx.emit(InvoiceDue(order_id=str(tries)))
            if tries == 1:
                raise ValueError("the first time")

        await ctx.step("work", work, retry=runs.Retry(attempts=2, base_ms=0))

    async with platform() as hf:
        await hf.start(flaky, run_id="r1")
        assert [event.payload for event in await published(hf, "invoice.due")] == [{"order_id": "2"}]


async def test_emitting_elsewhere_is_refused() -> None:
    @runs.workflow
    async def outside(ctx: runs.Context) -> None:
        ctx.emit(InvoiceDue(order_id="o1"))

    async with platform() as hf:
        with pytest.raises(Invalid, match="outside a step"):
            await hf.start(outside, run_id="r1")
        outcome = await checkout.start(hf.store, "o1", run_id="r2")
        assert "provides no way to publish" in str(outcome.error)


async def test_a_loop_that_continues_as_new_emits_every_time() -> None:
    @runs.workflow
    async def loop(ctx: runs.Context, count: int) -> None:
        def say() -> None:
            ctx.emit(InvoiceDue(order_id=str(count)))

        await ctx.step("say", say)
        if count < 3:
            ctx.continue_as_new(count + 1)

    async with platform() as hf:
        await hf.start(loop, 1, run_id="r1")
        events = await published(hf, "invoice.due")
        assert sorted(event.payload["order_id"] for event in events) == ["1", "2", "3"]
        assert len({event.id for event in events}) == 3


def test_long_names_make_run_ids_that_fit() -> None:
    assert run_id_of("e", "h") == "e.h"
    assert len(run_id_of("e" * 36, "h" * 200)) <= 200
    assert durable.SHORTEST_WAIT_S < durable.LONGEST_WAIT_S


async def _exits(ctx: runs.Context) -> None:
    raise SystemExit(4)


async def _exits_in_a_step(ctx: runs.Context) -> None:
    def leave() -> None:
        raise SystemExit(4)

    await ctx.step("leave", leave)


@pytest.mark.parametrize(
    ("deed", "reason"),
    [(_exits, "SystemExit: 4"), (_exits_in_a_step, "SystemExit: 4")],
)
async def test_a_durable_handler_that_misbehaves_buries_its_event_alone(deed: Any, reason: str) -> None:
    done: list[str] = []

    @on(OrderTaken, id="odd", durable=True)
    async def odd(ctx: runs.Context, event: OrderTaken) -> None:
        if event.order_id == "bad":
            await deed(ctx)
        done.append(event.order_id)

    settings = Settings(bus=BusSection(event_poll_ms=5, event_max_attempts=2, event_backoff_base_ms=1))
    async with platform(settings) as hf:
        for order in ("bad", "o1"):
            await hf.bus().publish(OrderTaken(order_id=order))
        worked = await asyncio.wait_for(hf.run([odd], until_idle=True), 60)
        assert (worked.handled, worked.dead, done) == (1, 1, ["o1"])
        (letter,) = await hf.bus().dead_letters()
        assert reason in letter["last_error"]


async def test_a_durable_handler_that_hangs_has_failed_when_its_time_is_over() -> None:
    @on(OrderTaken, id="hang", durable=True, timeout=0.05)
    async def hang(ctx: runs.Context, event: OrderTaken) -> None:
        await ctx.step("hang", asyncio.Event().wait)

    settings = Settings(bus=BusSection(event_poll_ms=5, event_max_attempts=2, event_backoff_base_ms=1))
    async with platform(settings) as hf:
        await hf.bus().publish(OrderTaken(order_id="o1"))
        assert (await asyncio.wait_for(hf.run([hang], until_idle=True), 60)).dead == 1
        (letter,) = await hf.bus().dead_letters()
        assert letter["last_error"] == "TimedOut: the handler was not done after 0.05 s"
