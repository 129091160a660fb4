"""How much a long history costs: an idle poll, a cold start and a hundred new events after it."""

import asyncio
import random
import time
from typing import Any

from bench.bus.work import BenchOrder, publish
from holdfast.base import codec
from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.bus import Bus, Handler, Options, layout, on
from holdfast.bus.event import Envelope
from holdfast.bus.worker.digest import Digest, DigestShape, Section, fold
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Object, content_version

NEW = 100


class Place:
    """A store in memory with its meter."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.usage = Usage()
        self.ambient = Ambient(SystemClock(), random.Random(1))

    def bus(self) -> Bus:
        retry = RetryPolicy(attempts=3, base_ms=1, max_ms=5)
        store = Client(MemoryStore(self.shelf), ambient=self.ambient, retry=retry, usage=self.usage)
        return Bus(store, self.ambient, "default", Options(claim_limit=1_000))


def handler() -> Handler:
    @on(BenchOrder, id="bench", concurrency=200)
    async def note(ctx: Any, event: BenchOrder) -> None:
        await asyncio.sleep(0)

    return note


async def real(events: int) -> Place:
    """Every event published and handled."""
    place = Place()
    await publish(place.bus(), events)
    await place.bus().run([handler()], until_idle=True)
    return place


def synthetic(events: int) -> Place:
    """As if they had been: event objects, and a digest that has folded all of them."""
    place = Place()
    begin_ns = place.ambient.clock.wall_ns() - 86_400 * 10**9
    step_ns = 86_000 * 10**9 // events // 1_000 * 1_000
    body = Envelope("e", "default", "bench.order", {"n": 1}, begin_ns, 100, "e", 0).body()
    version = content_version(body)
    folded: dict[str, tuple[int, int]] = {}
    name = ""
    for number in range(events):
        name = layout.event_name(begin_ns + number * step_ns, f"{number:032x}")
        key = layout.event_key("default", name)
        place.shelf.place(Object(key, body, begin_ns, version))
        bucket = layout.bucket(name)
        folded[bucket] = fold((name,), folded.get(bucket, (0, 0)))
    section = Section(("bench.order",), cursor=name, folded=folded, seen_ns=place.ambient.clock.wall_ns())
    digest = Digest({"bench": section}, place.ambient.clock.wall_ns(), "")
    document = codec.encode({**DigestShape().write(digest, None), "write_id": "w", "operations": []})
    key = layout.digest_key("default")
    place.shelf.place(Object(key, document, begin_ns, content_version(document)))
    return place


async def costs(place: Place) -> dict[str, Any]:
    """A worker that has never been here: its start, an idle poll, and new events."""
    bus = place.bus()
    runner = bus.runner([handler()])

    async def measured(work: Any) -> tuple[int, float]:
        before, begun = place.usage.requests(), time.perf_counter()
        await work
        return place.usage.requests() - before, (time.perf_counter() - begun) * 1e3

    start = await measured(runner.step())
    idle = await measured(runner.step())
    for number in range(NEW):
        await bus.publish(BenchOrder(n=number))
    begun = time.perf_counter()
    before = place.usage.requests()
    while runner.worked.handled < NEW:
        await runner.step()
        await runner.drain_flight()
    handled = (place.usage.requests() - before, (time.perf_counter() - begun) * 1e3)
    await runner.run(until_idle=True)
    return {
        name: {"requests": requests, "milliseconds": round(ms, 2)}
        for name, (requests, ms) in (("cold_poll", start), ("idle_poll", idle), (f"handle_{NEW}", handled))
    }
