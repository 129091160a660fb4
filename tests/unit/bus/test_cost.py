"""What the bus costs, in requests: counted, exact."""

from typing import Any

from holdfast.bus import Bus, on
from holdfast.bus.worker.runner import Runner
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, InvoiceSent


async def handle(ctx: Any, event: Any) -> None:
    pass


def runner_of(bus: Bus, concurrency: int = 1_000) -> Runner:
    return bus.runner([on(OrderPlaced, id="bill", concurrency=concurrency)(handle)])


async def publish(desk: Desk, bus: Bus, events: int) -> None:
    for number in range(events):
        await bus.publish(OrderPlaced(order_id=str(number)))
    desk.watch.advance(seconds=1)  # a publisher dates its events apart, so time must pass here too


async def settle_all(runner: Runner) -> None:
    while await runner.step():
        await runner.drain_flight()
    await runner.feed.flush(leaving=True)


async def test_publishing_is_one_put() -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"))
    assert desk.spent() == {"get": 1, "put": 1}  # the boundary, once a minute
    await bus.publish(OrderPlaced(order_id="o2"))
    assert desk.spent() == {"put": 1}
    await bus.publish(OrderPlaced(order_id="o3"), key="o3")
    assert desk.spent() == {"put": 2}
    await bus.publish(OrderPlaced(order_id="o3"), key="o3")
    assert desk.spent()["put"] == 2  # the dedupe object and the event, both found taken


async def test_an_idle_poll_is_one_request_however_long_the_history() -> None:
    for events in (0, 10, 1_500):
        desk = Desk()
        bus = desk.bus(claim_limit=1_000)
        await publish(desk, bus, events)
        await settle_all(runner_of(bus))
        newcomer = runner_of(desk.bus())
        await newcomer.step()
        desk.spent()
        assert await newcomer.step() == 0
        spent = desk.spent()
        assert spent == {"list": 1}


async def test_claiming_k_of_n_is_k_puts_and_the_digest_however_many_are_settled() -> None:
    seen = []
    for settled, pending in ((0, 40), (1_200, 40), (1_200, 400)):
        desk = Desk()
        bus = desk.bus(claim_limit=1_000)
        await publish(desk, bus, settled)
        await settle_all(runner_of(bus))
        await publish(desk, bus, pending)
        first = runner_of(bus)
        await first.feed.poll()
        await first.feed.flush()
        other = runner_of(desk.bus(), concurrency=7)
        await other.feed.flush()
        desk.spent()
        assert await other.step() == 7
        seen.append(desk.spent())
        await other.drain_flight()
        assert desk.spent() == {"get": 7, "put": 7}  # bodies that it had not read itself, and acks
    assert seen == [{"get": 1, "list": 1, "put": 7}] * 3  # boundary, new keys, claims


async def test_each_event_is_read_once_for_all_workers_and_handlers() -> None:
    desk = Desk()
    bus = desk.bus()
    await publish(desk, bus, 20)
    both = [on(OrderPlaced, id="bill")(handle), on(OrderPlaced, InvoiceSent, id="audit")(handle)]
    first = bus.runner(both)
    desk.spent()
    await first.feed.poll()
    assert desk.spent() == {"get": 2 + 20, "list": 1}  # the digest, again after the first eight
    await first.feed.flush()
    assert desk.spent() == {"get": 1, "put": 1}
    second = desk.bus().runner(both)
    await second.feed.poll()
    assert desk.spent() == {"get": 1, "list": 1}
    assert len(second.feed.view("bill").open) == len(second.feed.view("audit").open) == 20


async def test_workers_that_start_together_share_the_reading_and_the_claims() -> None:
    desk = Desk()
    await publish(desk, desk.bus(), 600)
    workers = [runner_of(desk.bus(claim_limit=1_000)) for _ in range(4)]
    for worker in workers:
        await worker.feed.flush()  # they have greeted
    for worker in workers:
        await worker.feed.read()
    desk.spent()
    for worker in workers:
        await worker._poll()
    read = desk.spent()
    assert read["get"] <= 600 + 4 * 6  # each event once; the digest after 8, 24, 56, ... of them
    started = [await worker._claim() for worker in workers]
    assert sum(started) == 600
    assert min(started) > 100
    for worker in workers:
        await worker.drain_flight()
    # Claims and acks: nobody tried what another had, everybody claimed what it had read itself; the boundary.
    assert desk.spent() == {"get": 4, "put": 1_200}


async def test_a_lone_worker_and_one_whose_fellows_are_gone_leave_nothing() -> None:
    desk = Desk()
    bus = desk.bus()
    gone = runner_of(desk.bus())
    await gone.feed.flush()
    await publish(desk, bus, 40)
    worked = await runner_of(bus).run(until_idle=True)
    assert worked.handled == 40
    assert runner_of(desk.bus()).feed.is_mine("2026-01-01T00-00-00.000000+00-00_e")


async def test_a_retry_is_two_puts() -> None:
    desk = Desk()
    bus = desk.bus()

    @on(OrderPlaced, id="bill")
    async def fail(ctx: Any, event: Any) -> None:
        raise ValueError("no")

    await bus.publish(OrderPlaced(order_id="o1"))
    runner = bus.runner([fail])
    await runner.step()
    await runner.drain_flight()
    desk.spent()
    assert await runner._claim() == 1
    await runner.drain_flight()
    assert desk.spent() == {"put": 2}


async def test_the_floor_is_three_puts_per_event_and_handler() -> None:
    desk = Desk()
    bus = desk.bus(claim_limit=1_000)
    await publish(desk, bus, 500)
    await settle_all(runner_of(bus))
    put = desk.spent()["put"]
    assert 1_500 <= put <= 1_500 + 5  # and the digest, a few times


class ListsHistory:
    """The specification's way: every poll lists and reads all events and their claims."""

    async def poll(self, bus: Bus) -> int:
        pending = 0
        async for key in bus.store.keys("events/default/"):
            event_id = key.rpartition("_")[2].removesuffix(".json")
            await bus.store.get(key)
            claim = await bus.store.find(f"claims/default/{event_id}/bill.json")
            pending += claim is None
        return pending


async def test_polling_history_costs_two_requests_per_settled_event() -> None:
    desk = Desk()
    bus = desk.bus()
    await publish(desk, bus, 100)
    await settle_all(runner_of(bus))
    desk.spent()
    assert await ListsHistory().poll(bus) == 0
    assert desk.spent() == {"list": 1, "get": 200}
