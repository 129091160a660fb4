"""Handlers that commit: commit and events in one, once for every event, however often the handler is called."""

from typing import Any

import pytest

from holdfast.base.errors import Invalid
from holdfast.bus import BadHandler, on
from holdfast.ontology.chain.history import commits
from holdfast.platform.handlers import Context as PlatformContext
from holdfast.platform.open import Holdfast
from tests.unit.platform.kit import Invoice, InvoiceDue, OrderTaken, platform, published


async def numbers(hf: Holdfast) -> list[int]:
    return [manifest.commit_id async for manifest in commits(hf.store)]


@on(OrderTaken, id="bill")
async def bill(ctx: PlatformContext, event: OrderTaken) -> None:
    ctx.ensure(Invoice(id=event.order_id, amount=1))
    ctx.emit(InvoiceDue(order_id=event.order_id))
    await ctx.commit()


async def test_commit_and_event_in_one() -> None:
    async with platform() as hf:
        order = await hf.bus().publish(OrderTaken(order_id="o1"))
        worked = await hf.run([bill], until_idle=True)
        assert worked.handled == 1
        (event,) = await published(hf, "invoice.due")
        assert (event.parent_event_id, event.root_event_id, event.chain_depth) == (order.id, order.id, 1)
        async with hf.ontology(Invoice) as onto:
            assert [each.id for each in await onto.all(Invoice)] == ["o1"]
        (manifest,) = [manifest async for manifest in commits(hf.store)]
        assert manifest.metadata == {"event_id": order.id, "handler_id": "bill"}


async def test_a_handler_reads_the_ontology_by_queries() -> None:
    """Files are read once by the session of the worker; after that a read is one request, for the head."""
    spent: list[int] = []

    async with platform() as hf:

        @on(OrderTaken, id="look")
        async def look(ctx: PlatformContext, event: OrderTaken) -> None:
            for _ in range(3):
                before = hf.store.usage.requests("get", "meta"), hf.store.usage.requests("get", "commits")
                assert await ctx.get(Invoice, "i7") == Invoice(id="i7", amount=7)
                assert len(await ctx.all(Invoice)) == 10
                after = hf.store.usage.requests("get", "meta"), hf.store.usage.requests("get", "commits")
                spent.append(sum(after) - sum(before))

        async with hf.ontology(Invoice) as onto:
            for number in range(10):
                onto.ensure(Invoice(id=f"i{number}", amount=number))
                await onto.commit()
        await hf.bus().publish(OrderTaken(order_id="o1"))
        assert (await hf.run([look], until_idle=True)).handled == 1
    assert spent == [6, 2, 2], "head, manifest, index, two files, and the head once more; then the head for each read"


async def test_a_handler_that_fails_after_its_commit_does_not_commit_again() -> None:
    seen: list[Any] = []

    @on(OrderTaken, id="count")
    async def count(ctx: PlatformContext, event: OrderTaken) -> None:
        known = await ctx.get(Invoice, "total")
        ctx.ensure(Invoice(id="total", amount=1 + (known.amount if known is not None else 0)))
        ctx.emit(InvoiceDue(order_id=event.order_id))
        seen.append(await ctx.commit())
        if len(seen) < 3:
            raise ValueError("after the commit")

    async with platform() as hf:
        await hf.bus().publish(OrderTaken(order_id="o1"))
        await hf.run([count], until_idle=True)
        assert len(seen) == 3
        assert {each.commit_id for each in seen} == {1}
        assert len(await published(hf, "invoice.due")) == 1
        async with hf.ontology(Invoice) as onto:
            assert [each.amount for each in await onto.all(Invoice)] == [1]


async def test_commits_of_one_handler_are_distinguished() -> None:
    tries = 0

    @on(OrderTaken, id="twice")
    async def twice(ctx: PlatformContext, event: OrderTaken) -> None:
        nonlocal tries
        tries += 1
        ctx.ensure(Invoice(id="first", amount=tries))
        first = await ctx.commit()
        if tries == 1:
            raise ValueError("between the two")
        ctx.ensure(Invoice(id="second", amount=tries))
        second = await ctx.commit()
        assert first is not None
        assert second is not None
        assert second.commit_id == first.commit_id + 1

    async with platform() as hf:
        await hf.bus().publish(OrderTaken(order_id="o1"))
        assert (await hf.run([twice], until_idle=True)).handled == 1
        async with hf.ontology(Invoice) as onto:
            assert {each.id: each.amount for each in await onto.all(Invoice)} == {"first": 1, "second": 2}


async def test_what_is_ensured_and_not_committed_is_a_failure() -> None:
    @on(OrderTaken, id="careless")
    async def careless(ctx: PlatformContext, event: OrderTaken) -> None:
        ctx.ensure([Invoice(id="o1", amount=1)])

    async with platform() as hf:
        await hf.bus().publish(OrderTaken(order_id="o1"))
        worked = await hf.run([careless], until_idle=True)
        assert worked.dead == 1
        (letter,) = await hf.bus().dead_letters()
        assert "never committed" in letter["last_error"]
        assert await numbers(hf) == []


async def test_retract_and_all() -> None:
    @on(OrderTaken, id="drop")
    async def drop(ctx: PlatformContext, event: OrderTaken) -> None:
        for each in await ctx.all(Invoice):
            ctx.retract(Invoice, each.id)
        await ctx.commit()

    async with platform() as hf:
        async with hf.ontology(Invoice) as onto:
            onto.ensure(Invoice(id="o1", amount=1))
            await onto.commit()
        await hf.bus().publish(OrderTaken(order_id="o1"))
        await hf.run([drop], until_idle=True)
        async with hf.ontology(Invoice) as onto:
            assert await onto.all(Invoice) == []


async def test_a_durable_handler_needs_the_platform_and_an_async_function() -> None:
    @on(OrderTaken, id="durable", durable=True)
    async def durable(ctx: Any, event: OrderTaken) -> None:
        raise NotImplementedError

    def plain(ctx: Any, event: OrderTaken) -> None:
        raise NotImplementedError

    async with platform() as hf:
        with pytest.raises(BadHandler, match="needs the platform"):
            await hf.bus().run([durable], until_idle=True)
        with pytest.raises(BadHandler, match="not an async function"):
            on(OrderTaken, id="plain", durable=True)(plain)


async def test_ensure_refuses_values_that_are_not_objects() -> None:
    problems: list[str] = []

    @on(OrderTaken, id="wrong")
    async def wrong(ctx: PlatformContext, event: OrderTaken) -> None:
        for given in (7, [event]):
            with pytest.raises(Invalid) as caught:
                ctx.ensure(given)
            problems.append(str(caught.value))

    async with platform() as hf:
        await hf.bus().publish(OrderTaken(order_id="o1"))
        assert (await hf.run([wrong], until_idle=True)).handled == 1
    assert len(problems) == 2
