"""Handlers that commit and durable handlers, by workers side by side, on memory, a folder and a real S3 server."""

import asyncio

import pytest

import holdfast
from holdfast import runs
from holdfast.bus import on
from holdfast.ontology.chain.history import commits
from holdfast.platform.handlers import Context
from tests.integration.run_places import Place
from tests.unit.platform.kit import Invoice, InvoiceDue, OrderTaken

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)

ORDERS = 8


async def test_every_order_is_committed_once_and_what_follows_happens_once(place: Place) -> None:
    sent: list[str] = []
    failed: set[str] = set()

    @on(OrderTaken, id="bill", concurrency=2)
    async def bill(ctx: Context, event: OrderTaken) -> None:
        ctx.ensure(Invoice(id=event.order_id, amount=1))
        ctx.emit(InvoiceDue(order_id=event.order_id))
        await ctx.commit()
        if event.order_id not in failed:
            failed.add(event.order_id)
            raise ValueError("after the commit")

    @on(InvoiceDue, id="send", durable=True)
    async def send(ctx: runs.Context, event: InvoiceDue) -> None:
        await ctx.step("send", sent.append, event.order_id)

    async with holdfast.open(place.uri, settings=place.settings) as hf:
        for number in range(ORDERS):
            await hf.bus().publish(OrderTaken(order_id=f"o{number}"))
        worked = await asyncio.gather(*(hf.run([bill, send], until_idle=True) for _ in range(2)))
        assert sum(each.handled for each in worked) == 2 * ORDERS
        assert sorted(sent) == [f"o{number}" for number in range(ORDERS)]
        assert len([manifest async for manifest in commits(hf.store)]) == ORDERS
        async with hf.ontology(Invoice) as onto:
            assert len(await onto.all(Invoice)) == ORDERS
