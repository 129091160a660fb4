"""Objects of the bus as they were written once: read for ever, and what is written now has the same shape."""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.base import codec
from holdfast.base.errors import NotFound
from holdfast.bus import DeadLetter, Event, Schedule, on
from holdfast.bus.claim import Claim
from holdfast.bus.event import Envelope
from holdfast.bus.schedule import Ticker
from holdfast.bus.sessions import Session
from holdfast.bus.worker.digest import DigestShape
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


class OrderCreated(Event):
    order: str


GOLDEN = Path(__file__).parents[2] / "golden" / "bus"


def document(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / kind / f"{name}.json").read_text(encoding="utf-8"))
    return found


def newest(name: str) -> dict[str, Any]:
    """As it is written since it last changed."""
    return document(max(path.parent.name for path in GOLDEN.glob(f"v*/{name}.json")), name)


async def test_the_same_story_gives_the_same_bytes() -> None:
    written = await produce()
    assert {path.stem for path in GOLDEN.glob("v*/*")} == written.keys()
    assert {name.partition("-")[0] for name in written} == SHAPES.keys()
    for name, body in written.items():
        assert codec.encode(newest(name)) == body, name


def test_golden_objects_are_read_and_written_back_as_they_are() -> None:
    event = document("v1", "event")
    assert Envelope.parse(event, key="event").document() == event
    for name in ("claim-acked", "claim-dead"):
        claim = document("v1", name)
        written = Claim.parse(claim, key=name).document(write_id=claim["write_id"])
        assert codec.encode(written) == codec.encode(claim)
    digest = document("v1", "digest")
    written = DigestShape().write(DigestShape().read(digest, "digest"), digest)
    assert codec.encode(written) == codec.encode(digest)


def test_plain_objects_are_read_and_keep_their_fields() -> None:
    event, claim = document("plain", "event"), document("plain", "claim")
    assert Envelope.parse(event, key="event").document() == event
    read = Claim.parse(claim, key="claim")
    assert (read.generation, read.attempts, read.lost_leases) == (0, 2, 0)
    assert claim.items() <= read.document(write_id="w").items()


async def test_a_plain_store_is_worked_on() -> None:
    """An event and an expired claim of another program: it is claimed again, and its attempts are kept."""
    seen: list[int] = []

    @on(OrderCreated, id="billing.handle_order")
    async def handle(ctx: Any, event: Any) -> None:
        seen.append(ctx.attempt)

    desk = Desk()
    bus = desk.bus()
    for key, name in (
        ("events/default/2026-02-11T12-00-00.000000+00-00_5f3c.json", "event"),
        ("claims/default/5f3c/billing.handle_order.json", "claim"),
        ("sessions/default/s1.json", "session"),
        ("dead_letters/default/5f3c/other.json", "dead_letter"),
    ):
        await bus.store.put(key, json.dumps(document("plain", name)).encode())
    assert (await bus.run([handle], until_idle=True)).handled == 1
    assert seen == [3]
    assert desk.claim("5f3c", "billing.handle_order")["attempts"] == 2
    (letter,) = await bus.dead_letters()
    assert letter["type"] == ""


async def test_letters_of_every_age_are_listed_and_replayed_if_they_can_be() -> None:
    bus = Desk().bus()
    for kind in ("plain", "v1", "v2"):
        letter = document(kind, "dead_letter")
        await bus.store.put(f"dead_letters/default/{kind}/bill.json", json.dumps(letter).encode())
    assert sorted(letter["event_id"] for letter in await bus.dead_letters()) == ["plain", "v1", "v2"]
    assert (await bus.replay_dead_letter("v2", "bill")).envelope.payload == {"order_id": "bad"}
    with pytest.raises(NotFound, match="the letter has no copy"):
        await bus.replay_dead_letter("v1", "bill")
    assert sorted(letter["event_id"] for letter in await bus.dead_letters()) == ["plain", "v1"]
