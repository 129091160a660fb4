"""Events through handlers: retries, dead letters, emissions, order, shutdown, other workers."""

import asyncio
from typing import Any

import pytest

from holdfast.bus import (
    AnyEvent,
    ChainTooDeep,
    ClaimLost,
    Context,
    DeadLetter,
    DeadLettered,
    Later,
    Retry,
    on,
)
from holdfast.bus.worker.claims import Busy, Hold, Over
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import AT_ONCE, Desk, InvoiceSent, recorder


async def test_handlers_may_be_blocking_or_async_and_each_gets_every_event_of_its_types() -> None:
    desk = Desk()
    seen: list[Any] = []
    bus = desk.bus()

    @on(OrderPlaced, id="plain")
    def plain(ctx: Context, event: OrderPlaced) -> None:
        seen.append(("plain", event.order_id, ctx.attempt))

    @on(OrderPlaced, InvoiceSent, id="both")
    async def both(ctx: Context, event: OrderPlaced | InvoiceSent) -> None:
        seen.append(("both", event.order_id, ctx.attempt))

    await bus.publish(OrderPlaced(order_id="o1"))
    await bus.publish(InvoiceSent(order_id="o2"))
    worked = await bus.run([plain, both], until_idle=True)
    assert sorted(seen) == [("both", "o1", 1), ("both", "o2", 1), ("plain", "o1", 1)]
    assert (worked.handled, worked.failed, worked.waiting) == (3, 0, 0)
    assert (await bus.run([plain, both], until_idle=True)).handled == 0
    assert desk.documents("sessions/") == {}


async def test_failures_are_tried_again_then_buried_with_lineage_and_an_event() -> None:
    desk, tries, answer = Desk(), [], []
    bus = desk.bus()

    @on(OrderPlaced, id="bill", retry=AT_ONCE)
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        tries.append(ctx.attempt)
        raise ValueError("card declined")

    @on(DeadLettered, id="pager")
    async def pager(ctx: Context, event: DeadLettered) -> None:
        answer.append((event.event_type, event.attempts, ctx.envelope.root_event_id, ctx.envelope.chain_depth))

    published = await bus.publish(OrderPlaced(order_id="o1"))
    await bus.publish(OrderPlaced(order_id="o2"))
    worked = await bus.run([bill, pager], until_idle=True)
    assert sorted(tries) == [1, 1, 2, 2, 3, 3]
    assert (worked.failed, worked.dead, worked.handled) == (6, 2, 2)
    assert ("order.placed", 3, published.id, 1) in answer
    letter = desk.documents(f"dead_letters/default/{published.id}/")[f"dead_letters/default/{published.id}/bill.json"]
    assert (letter["last_error"], letter["attempts"]) == ("ValueError: card declined", 3)
    assert (letter["event_type"], letter["root_event_id"]) == ("order.placed", published.id)


@pytest.mark.parametrize("error", [DeadLetter("never"), ChainTooDeep("loop")])
async def test_a_hopeless_failure_is_the_last(error: Exception) -> None:
    desk = Desk()
    bus = desk.bus()

    @on(OrderPlaced, id="bill", retry=Retry(attempts=10))
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        raise error

    await bus.publish(OrderPlaced(order_id="o1"))
    assert (await bus.run([bill], until_idle=True)).dead == 1


async def test_a_poison_event_does_not_stop_the_others() -> None:
    desk = Desk()
    seen: list[Any] = []
    bus = desk.bus()
    await bus.publish_raw("order.placed", {"order_id": 5})
    await bus.store.put("events/default/2020-01-01T00-00-00.000000+00-00_junk.json", b"not json")
    await bus.store.put("events/default/readme.txt", b"what are you looking at")
    await bus.publish(OrderPlaced(order_id="good"))
    worked = await bus.run([recorder(seen)], until_idle=True)
    assert seen == ["good"]
    assert (worked.dead, worked.handled) == (1, 1)
    (letter,) = await bus.dead_letters()
    assert "order_id" in letter["last_error"]
    assert letter["last_error"].startswith("BadPayload")


async def test_a_handler_of_everything_takes_types_without_a_class() -> None:
    desk = Desk()
    seen: list[Any] = []
    bus = desk.bus()
    await bus.publish_raw("unknown.type", {"a": 1})
    await bus.run([recorder(seen, AnyEvent)], until_idle=True)
    assert seen[0].model_dump() == {"a": 1}


async def test_emissions_become_visible_with_the_ack_alone() -> None:
    desk = Desk()
    bus = desk.bus()

    @on(OrderPlaced, id="bill")
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        ctx.emit(InvoiceSent(order_id=event.order_id), priority=7)
        if ctx.attempt == 1:
            raise ValueError("once")

    parent = await bus.publish(OrderPlaced(order_id="o1"))
    await bus.run([bill], until_idle=True)
    (child,) = [doc for doc in desk.documents("events/").values() if doc["type"] == "invoice.sent"]
    assert (child["root_event_id"], child["parent_event_id"], child["chain_depth"]) == (parent.id, parent.id, 1)
    assert child["priority"] == 7


async def test_loops_end_at_the_limit() -> None:
    desk, depths = Desk(), []
    bus = desk.bus(max_chain_depth=3)

    @on(OrderPlaced, id="loop")
    async def loop(ctx: Context, event: OrderPlaced) -> None:
        depths.append(ctx.envelope.chain_depth)
        ctx.emit(event)

    await bus.publish(OrderPlaced(order_id="o1"))
    assert (await bus.run([loop], until_idle=True)).dead == 1
    assert depths == [0, 1, 2, 3]


async def test_a_zombie_changes_nothing() -> None:
    desk = Desk()
    published = await desk.bus().publish(OrderPlaced(order_id="o1"))
    name = published.envelope.name
    zombie, heir = desk.bus().runner([recorder([])]), desk.bus().runner([recorder([])])
    old = await zombie.claims.take(name, "record")
    assert isinstance(old, Hold)
    assert isinstance(await heir.claims.take(name, "record"), Busy)
    desk.watch.advance(seconds=31)
    new = await heir.claims.take(name, "record")
    assert isinstance(new, Hold)
    assert (new.claim.generation, new.claim.attempts) == (2, 0)
    before = desk.claim(published.id, "record")
    for act in (zombie.claims.ack(old), zombie.claims.release(old), zombie.claims.fail(old, "x", AT_ONCE)):
        with pytest.raises(ClaimLost, match="generation 2"):
            await act
    with pytest.raises(ClaimLost):
        await zombie.claims.renew(old)
    assert desk.claim(published.id, "record") == before
    await heir.claims.ack(new)
    assert isinstance(await zombie.claims.take(name, "record"), Over)


async def test_stopping_lets_handlers_finish_and_hands_back_the_rest() -> None:
    desk, stop, seen = Desk(), asyncio.Event(), []
    bus = desk.bus()
    begun = asyncio.Event()

    @on(OrderPlaced, id="bill", concurrency=2)
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        if event.order_id == "slow":
            begun.set()
            await asyncio.Event().wait()
        seen.append(event.order_id)

    slow = await bus.publish(OrderPlaced(order_id="slow"))
    await bus.publish(OrderPlaced(order_id="quick"))
    running = asyncio.ensure_future(bus.run([bill], stop=stop, grace_ms=20))
    await begun.wait()
    stop.set()
    worked = await running
    assert seen == ["quick"]
    assert (worked.handled, worked.handed_back, worked.failed) == (1, 1, 0)
    claim = desk.claim(slow.id, "bill")
    assert (claim["attempts"], claim["ack_at"], claim["last_error"]) == (0, None, "handed back")
    await bus.run([recorder(seen)], until_idle=True)  # another handler: its claims are its own
    assert seen == ["quick", "slow", "quick"]


async def test_the_lease_is_renewed_while_a_handler_runs() -> None:
    desk = Desk()
    bus = desk.bus(lease_ms=30)
    leases = []

    @on(OrderPlaced, id="bill")
    async def bill(ctx: Context, event: OrderPlaced) -> None:
        for _ in range(3):
            leases.append(ctx.hold.claim.lease_ns)
            before = ctx.hold.claim.lease_ns
            desk.watch.advance(seconds=0.01)
            while ctx.hold.claim.lease_ns == before:
                await asyncio.sleep(0.001)

    await bus.publish(OrderPlaced(order_id="o1"))
    worked = await bus.run([bill], until_idle=True)
    assert (worked.handled, worked.lost) == (1, 0)
    assert leases == sorted(set(leases))


async def test_later_hands_back_without_blame() -> None:
    tries: list[int] = []

    @on(OrderPlaced, id="wait")
    async def wait(ctx: Context, event: OrderPlaced) -> None:
        tries.append(ctx.attempt)
        if len(tries) == 1:
            raise Later(seconds=3_600)

    desk = Desk()
    bus = desk.bus()
    answer = await bus.publish(OrderPlaced(order_id="o1"))
    worked = await bus.run([wait], until_idle=True)
    assert (worked.handed_back, worked.failed, worked.waiting) == (1, 0, 1)
    assert desk.claim(answer.id, "wait")["attempts"] == 0
    desk.watch.advance(seconds=3_601)
    assert (await bus.run([wait], until_idle=True)).handled == 1
    assert tries == [1, 1]


async def test_an_event_that_ends_every_worker_is_dead_and_its_neighbours_are_not() -> None:
    """Workers that end without a word: here, holds that are taken and forgotten."""
    seen: list[str] = []

    @on(OrderPlaced, id="bill")
    async def note(ctx: Context, event: OrderPlaced) -> None:
        seen.append(event.order_id)

    desk = Desk()
    bus = desk.bus(max_lost_leases=4)
    poison = await bus.publish(OrderPlaced(order_id="poison"))
    neighbour = await bus.publish(OrderPlaced(order_id="neighbour"))
    desk.watch.advance(seconds=1)
    for claims in range(5):
        crashing = desk.bus(max_lost_leases=4).runner([note])
        await crashing.feed.poll()
        for each in (poison, neighbour) if claims < 3 else (poison,):
            taken = await crashing.claims.take(each.envelope.name, "bill")
            assert isinstance(taken, Hold)
        desk.watch.advance(seconds=31)
    worked = await bus.run([note], until_idle=True)
    assert seen == ["neighbour"]
    assert (worked.handled, worked.dead) == (1, 1)
    (letter,) = await bus.dead_letters()
    assert (letter["event_id"], letter["last_error"].partition(":")[0]) == (poison.id, "Abandoned")
    assert desk.claim(neighbour.id, "bill")["attempts"] == 0
