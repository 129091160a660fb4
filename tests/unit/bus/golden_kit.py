"""A small story that leaves one object of every shape behind."""

from typing import Any

from holdfast.bus import DeadLetter, Schedule, on
from holdfast.bus.schedule import Ticker
from holdfast.bus.sessions import Session
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, InvoiceSent

SHAPES = {
    "event": "events/default/",
    "claim": "claims/default/",
    "dead_letter": "dead_letters/default/",
    "session": "sessions/default/",
    "digest": "bus/default/digest.json",
    "boundary": "bus/default/boundary.json",
    "key": "bus/default/keys/",
    "schedule": "bus/default/schedules/",
}


@on(OrderPlaced, id="bill")
async def bill(ctx: Any, event: OrderPlaced) -> None:
    if event.order_id == "bad":
        raise DeadLetter("no such order")
    ctx.emit(InvoiceSent(order_id=event.order_id), delay=60, order_key="k")


async def produce() -> dict[str, bytes]:
    """One object of every shape, by its shape; of claims, one acked and one dead."""
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="old"))
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=8 * 86_400)
    await bus.run([bill], until_idle=True)
    await bus.cleanup()
    await bus.publish(OrderPlaced(order_id="good"), key="good", priority=7)
    await bus.publish(OrderPlaced(order_id="bad"))
    desk.watch.advance(seconds=1)
    await bus.run([bill], until_idle=True)
    await Session(bus.store, "default", "s1", bus.ambient, {"hostname": "h", "pid": 1}).register()
    runner = bus.runner([bill])
    ticker = Ticker(bus.store, runner.publisher, bus.ambient, [Schedule("0 3 * * *", OrderPlaced(order_id="tick"))])
    await ticker.fire_due()
    found: dict[str, bytes] = {}
    for shape, folder in SHAPES.items():
        for key, document in desk.documents(folder).items():
            name = shape
            if shape == "claim":
                name = "claim-dead" if document["dead_lettered_at"] else "claim-acked"
            if shape == "event" and document["type"] != "invoice.sent":
                continue
            found[name] = desk.shelf.objects[key].body
    return found
