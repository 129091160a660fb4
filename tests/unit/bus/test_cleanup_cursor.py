"""Cleanup stops at the first event that somebody has still to do, and nobody passes over it afterwards."""

from typing import Any

from holdfast.bus import on
from holdfast.bus.worker.digest import DigestShape
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk


async def test_an_event_that_nobody_has_seen_is_not_believed_to_be_done() -> None:
    desk = Desk()
    bus = desk.bus()
    seen: list[str] = []

    @on(OrderPlaced, id="bill")
    async def bill(ctx: Any, event: OrderPlaced) -> None:
        seen.append(event.order_id)

    await bus.publish(OrderPlaced(order_id="old"))
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=60)
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=60)
    new = await bus.publish(OrderPlaced(order_id="new"))
    cleaned = await bus.cleanup(before_ns=desk.watch.ns)
    assert cleaned.events == 1
    document = desk.documents("bus/")["bus/default/digest.json"]
    section = DigestShape().read(document, "digest").sections["bill"]
    assert section.cursor < new.envelope.name
    await bus.run([bill], until_idle=True)
    assert seen == ["old", "new"]
