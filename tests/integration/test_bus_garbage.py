"""Unreadable objects, on a real S3 server: they are named, left alone, and stop no worker."""

import asyncio
import json
from typing import Any

import pytest

import holdfast
from holdfast.bus import Context, Event, on
from tests.integration.run_places import Place

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)

MOMENT = "2026-01-15T08-00-00.000000+00-00"


class GarbageOrder(Event):
    n: int


def event(**fields: Any) -> bytes:
    whole = {"id": "x", "namespace": "default", "type": "garbage.order", "payload": {"n": 9}, "priority": 1}
    return json.dumps({**whole, "created_at": "2026-01-15T08:00:00+00:00", **fields}).encode()


GARBAGE = {
    f"events/default/{MOMENT}_bytes.json": b"\xff\x00",
    f"events/default/{MOMENT}_deep.json": b"[" * 100_000,
    f"events/default/{MOMENT}_order.json": event(order_key=["a"]),
    f"events/default/{MOMENT}_endless.json": event(priority=float("inf")),
    f"events/default/{MOMENT}_when.json": event(created_at=5),
    "events/default/no-event-at-all": b"{}",
}
CLAIMS = [b"\xff\x00", b"[]", b'{"a":' * 100_000, b'{"claimed_at": 5}']


async def test_garbage_stops_nobody(place: Place) -> None:
    seen: list[tuple[int, str]] = []

    @on(GarbageOrder, id="note", ordered=True)
    async def note(ctx: Context, order: GarbageOrder) -> None:
        seen.append((order.n, ctx.namespace))

    async with holdfast.open(place.uri, settings=place.settings) as hf:
        bus = hf.bus()
        orders = [await bus.publish(GarbageOrder(n=n)) for n in range(len(CLAIMS) + 2)]
        for order, body in zip(orders, CLAIMS, strict=False):
            await hf.store.put(f"claims/default/{order.id}/note.json", body)
        for key, body in GARBAGE.items():
            await hf.store.put(key, body)
        await hf.store.put(f"events/default/{MOMENT}_stray.json", event(namespace="a/../b", payload={"n": 77}))
        worked = await asyncio.wait_for(hf.run([note], until_idle=True), 60)
        assert sorted(seen) == [(4, "default"), (5, "default"), (77, "default")]
        assert (worked.handled, worked.waiting) == (3, len(CLAIMS))
        for key, body in GARBAGE.items():
            assert (await hf.store.get(key)).body == body
