"""Act 4: events that are committed with the data, a worker that is killed, and an event whose handler fails."""

from holdfast.bus import Context, Retry, on
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.victim import NAMESPACE, ORDER_STEPS, ORDERS, ParcelOrdered
from holdfast.cli.demo.work import check_steps, victim
from holdfast.ontology import Entity, Field

ATTEMPTS = 3


class Order(Entity):
    id: Field[str] = Field(primary_key=True)


async def are_handled(stage: Stage) -> None:
    async with stage.open() as hf:
        async with hf.ontology(Order) as onto:
            for order_id in ORDERS:
                stage.wait_for(f"{order_id} is committed")
                onto.ensure(Order(id=order_id))
                onto.emit(ParcelOrdered(order_id=order_id), namespace=NAMESPACE)
                await onto.commit()
        listed = await hf.bus(NAMESPACE).events()
    stage.check(f"{len(ORDERS)} commits of an order brought an event each", len(listed) == len(ORDERS), listed)

    first, _ = await victim(stage, "work", len(ORDER_STEPS) - 1)
    stage.say(f"  a worker: {', '.join(first)}, killed with SIGKILL")
    second, said = await victim(stage, "work")
    stage.say(f"  another worker: {', '.join(second)}")
    stage.check(f"the other worker handled all {len(ORDERS)} events", said["result"] == len(ORDERS), said)
    check_steps(stage, first + second, {f"{step} {order_id}" for order_id in ORDERS for step in ORDER_STEPS}, 1)

    tries = 0

    @on(ParcelOrdered, id="invoice", retry=Retry(attempts=ATTEMPTS, base_ms=1, max_ms=10))
    async def invoice(ctx: Context, event: ParcelOrdered) -> None:
        nonlocal tries
        if event.order_id == ORDERS[0]:
            tries += 1
            raise ValueError("this order has no address")

    stage.wait_for("a handler that fails for one order")
    async with stage.open() as hf:
        worked = await hf.run([invoice], namespace=NAMESPACE, until_idle=True)
        letters = await hf.bus(NAMESPACE).dead_letters()
    claim = f"a handler failed {tries} times for one event, now a dead letter, and handled {worked.handled} others"
    stage.check(claim, (tries, worked.handled, worked.dead, len(letters)) == (ATTEMPTS, 2, 1, 1), worked)
