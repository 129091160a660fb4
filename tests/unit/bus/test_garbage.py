"""What others put among the bus's objects: it is named, and hides nothing else; advice that is spoilt is made anew."""

import asyncio
import json
from typing import Any

import pytest

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.bus import Context, on
from holdfast.bus.browse import Tail
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, turn

MOMENT = "2027-01-15T07-59-00.000000+00-00"
DAY = 86_400


@on(OrderPlaced, id="bill")
async def bill(ctx: Any, event: OrderPlaced) -> None:
    if event.order_id.startswith("bad"):
        raise ValueError("no")


DIGEST = {"format": "holdfast.bus.digest", "version": 1, "handlers": {}, "swept_ns": 0, "swept_to": "", "write_id": "w"}
SECTION: dict[str, Any] = {
    "types": ["order.placed"], "cursor": "", "recent": [], "open": {}, "folded": {}, "seen_ns": 0,
}  # fmt: skip
SPOILT = {
    "bytes": b"\xff\x00",
    "list": b"[]",
    "foreign": b"{}",
    "text": json.dumps({**DIGEST, "handlers": 5}).encode(),
    "rows": json.dumps({**DIGEST, "handlers": {"bill": {**SECTION, "open": {"x": [1]}}}}).encode(),
    "endless": json.dumps({**DIGEST, "swept_ns": float("inf")}).encode(),
    "log": json.dumps({**DIGEST, "log": []}).encode(),
    "future": json.dumps({**DIGEST, "handlers": {"bill": {**SECTION, "cursor": "9999-12-31T00-00"}}}).encode(),
    "names": json.dumps({**DIGEST, "handlers": {"bill": {**SECTION, "open": {"zzz": [1, "t", 0, None]}}}}).encode(),
    "ghosts": json.dumps({**DIGEST, "workers": ["a", "b", "c"]}).encode(),
}


@pytest.mark.parametrize("kind", SPOILT)
async def test_a_spoilt_digest_is_derived_anew(kind: str) -> None:
    desk = Desk()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="o1"))
    assert (await bus.run([bill], until_idle=True)).handled == 1
    await bus.publish(OrderPlaced(order_id="o2"))
    await bus.store.put("bus/default/digest.json", SPOILT[kind])

    async def time_passes() -> None:
        while True:
            await asyncio.sleep(0.001)
            desk.watch.advance(seconds=0.1)

    passing = asyncio.ensure_future(time_passes())
    worked = await asyncio.wait_for(bus.run([bill], until_idle=True), 60)
    passing.cancel()
    assert worked.handled == 1
    (stats,) = await bus.stats()
    assert (stats.handler_id, stats.open) == ("bill", 0)


async def test_a_digest_that_is_spoilt_under_a_worker_is_derived_anew() -> None:
    desk = Desk()
    bus = desk.bus()
    runner = bus.runner([bill])
    for kind, body in SPOILT.items():
        await bus.publish(OrderPlaced(order_id=kind))
        await bus.store.put("bus/default/digest.json", body)
        desk.watch.advance(seconds=1)
        await turn(runner)
        await runner.feed.flush()
    await asyncio.wait_for(runner.run(until_idle=True), 60)
    assert {each.status for each in await bus.events()} == {"acked"}


async def test_a_newer_digest_is_left_alone() -> None:
    bus = Desk().bus()
    newer = json.dumps({**DIGEST, "version": 2}).encode()
    await bus.store.put("bus/default/digest.json", newer)
    with pytest.raises(Incompatible, match="newer"):
        await bus.run([bill], until_idle=True)
    assert (await bus.store.get("bus/default/digest.json")).body == newer


async def test_what_cannot_be_read_is_shown_and_hides_nothing() -> None:
    desk = Desk()
    bus = desk.bus()
    good = await bus.publish(OrderPlaced(order_id="o1"))
    await bus.publish(OrderPlaced(order_id="bad"))
    await bus.run([bill], until_idle=True)
    odd = await bus.publish(OrderPlaced(order_id="o2"))
    for key in (
        f"events/default/{MOMENT}_spoilt.json",
        "events/default/readme.txt",
        f"claims/default/{odd.id}/bill.json",
        "sessions/default/spoilt.json",
        "dead_letters/default/spoilt/bill.json",
        "dead_letters/default/readme.txt",
    ):
        await bus.store.put(key, b"\xff\x00")
    listed = {each.envelope.id: each.status for each in await bus.events() if each.envelope.type != "event.dead_letter"}
    assert listed[good.id] == "acked"
    assert listed[odd.id] == "unreadable"
    assert listed["spoilt"] == "pending"
    assert [each.envelope.id for each in await bus.events(status="unreadable")] == [odd.id]
    assert "not JSON" in (await bus.inspect(odd.id)).claims[0]["unreadable"]
    assert [(each.session_id, each.is_dead) for each in await bus.sessions()] == [("spoilt", True)]
    letters = await bus.dead_letters()
    assert sorted(letter["handler_id"] for letter in letters) == ["bill", "bill"]
    assert "not JSON" in next(letter["last_error"] for letter in letters if letter["event_id"] == "spoilt")
    assert (await bus.namespaces())[0].events == 5
    with pytest.raises(Corrupt, match="spoilt"):
        await bus.replay("spoilt")
    replayed = await bus.replay_many(status="pending")
    assert [each.envelope.type for each in replayed] == ["event.dead_letter"]
    await bus.drop_dead_letter("spoilt", "bill")


def event(**fields: Any) -> bytes:
    whole = {"id": "x", "namespace": "default", "type": "order.placed", "payload": {"order_id": "x"}, "priority": 1}
    return json.dumps({**whole, "created_at": "2027-01-15T07:59:00+00:00", **fields}).encode()


GARBAGE = {
    f"events/default/{MOMENT}_deep.json": b"[" * 100_000,
    f"events/default/{MOMENT}_order.json": event(order_key=["a"]),
    f"events/default/{MOMENT}_endless.json": event(priority=float("inf")),
    f"events/default/{MOMENT}_when.json": event(created_at=5),
}
CLAIMS = [b"[]", b'{"a":' * 100_000, b'{"claimed_at": 5}']


async def test_garbage_stops_no_worker_and_leads_to_no_other_namespace() -> None:
    seen: list[tuple[str, str]] = []

    @on(OrderPlaced, id="note", ordered=True)
    async def note(ctx: Context, event: OrderPlaced) -> None:
        seen.append((event.order_id, ctx.namespace))

    desk = Desk()
    bus = desk.bus()
    orders = [await bus.publish(OrderPlaced(order_id=str(number))) for number in range(len(CLAIMS) + 1)]
    for order, body in zip(orders, CLAIMS, strict=False):
        await bus.store.put(f"claims/default/{order.id}/note.json", body)
    for key, body in GARBAGE.items():
        await bus.store.put(key, body)
    await bus.store.put(f"events/default/{MOMENT}_stray.json", event(namespace="a/../b", payload={"order_id": "stray"}))
    worked = await asyncio.wait_for(bus.run([note], until_idle=True), 60)
    assert sorted(seen) == [("3", "default"), ("stray", "default")]
    assert (worked.handled, worked.waiting) == (2, len(CLAIMS))
    assert [desk.shelf.objects[key].body for key in GARBAGE] == list(GARBAGE.values())


async def test_a_letter_outlives_its_event() -> None:
    desk = Desk()
    bus = desk.bus()
    bad = await bus.publish(OrderPlaced(order_id="bad"), priority=7, order_key="k")
    await bus.run([bill], until_idle=True)
    desk.watch.advance(seconds=8 * DAY)
    await bus.run([bill], until_idle=True)
    assert (await bus.cleanup()).events == 2
    again = (await bus.replay_dead_letter(bad.id, "bill")).envelope
    assert (again.payload, again.priority, again.order_key) == ({"order_id": "bad"}, 7, "k")
    assert await bus.dead_letters() == []


async def test_a_tail_shows_each_event_once_whatever_clocks_say() -> None:
    desk = Desk()
    bus = desk.bus()
    for number in range(5):
        await bus.publish(OrderPlaced(order_id=str(number)))
        desk.watch.advance(seconds=10)
    tail = Tail(bus.store, "default", bus.ambient)

    def orders(envelopes: list[Any]) -> list[str]:
        return [each.payload.get("order_id", each.type) for each in envelopes]

    assert orders(await tail.begin(lines=2)) == ["3", "4"]
    assert orders(await tail.begin(lines=0)) == []
    assert orders(await tail.begin(lines=None, since_ns=desk.watch.ns - 25 * 10**9)) == ["3", "4"]
    assert orders(await tail.begin(lines=1, since_ns=desk.watch.ns - 25 * 10**9)) == ["4"]
    await desk.bus(skew_s=-30).publish(OrderPlaced(order_id="behind"))
    await desk.bus(skew_s=DAY).publish(OrderPlaced(order_id="ahead"))
    await bus.store.put(f"events/default/{MOMENT.replace('07-59', '08-00')}_spoilt.json", b"garbage")
    await bus.store.put("events/default/readme.txt", b"garbage")
    desk.spent()
    assert orders([each async for each in tail.look()]) == ["unreadable", "behind", "ahead"]
    assert desk.spent()["list"] == 1
    await bus.publish(OrderPlaced(order_id="now"))
    assert orders([each async for each in tail.look()]) == ["now"]
    assert orders([each async for each in tail.look()]) == []


async def test_a_key_that_is_taken_by_other_content_is_reported() -> None:
    desk = Desk()
    bus = desk.bus()
    first = await bus.publish(OrderPlaced(order_id="o1"), key="k")
    same = await bus.publish(OrderPlaced(order_id="o1"), key="k", priority=1)
    assert (same.id, same.duplicate, same.differs) == (first.id, True, False)
    other = await bus.publish(OrderPlaced(order_id="o2"), key="k")
    assert (other.id, other.duplicate, other.differs) == (first.id, True, True)
    assert other.envelope.payload == {"order_id": "o1"}
    assert (await bus.publish_raw("other.type", {"order_id": "o1"}, key="k")).differs
    assert len(desk.documents("events/")) == 1
