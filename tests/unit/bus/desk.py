"""What tests of the bus share: processes on one shelf with every request counted, and a clock that tests advance."""

import random
from typing import Any, ClassVar

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.ids import Ambient
from holdfast.bus import Bus, Event, Handler, Options, Retry, on
from holdfast.bus.worker.runner import Runner
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from tests.fakes.orders import OrderPlaced

AT_ONCE = Retry(attempts=3, base_ms=0, max_ms=0, jitter_ms=0)


class InvoiceSent(Event):
    order_id: str


class Renamed(Event):
    type_name: ClassVar[str] = "shop.renamed"
    name: str = ""


class Watch:
    """Stands still unless advanced; wall and monotonic time move together."""

    def __init__(self) -> None:
        self.ns = 1_800_000_000 * 10**9

    def wall_ns(self) -> int:
        return self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def advance(self, *, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


class Skewed(Watch):
    def __init__(self, true: Watch, by_s: float) -> None:
        self._true, self._by_ns = true, int(by_s * 1e9)

    def wall_ns(self) -> int:
        return self._true.ns + self._by_ns

    def monotonic_ns(self) -> int:
        return self._true.ns


class Desk:
    """Opens any number of clients ("processes") on one shelf."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.watch = Watch()
        self.usage = Usage()
        self._seeds = iter(range(1, 1_000))

    def bus(self, namespace: str = "default", *, skew_s: float = 0.0, **options: Any) -> Bus:
        clock = Skewed(self.watch, skew_s) if skew_s else self.watch
        ambient = Ambient(clock, random.Random(next(self._seeds)))
        backend = MemoryStore(self.shelf, clock=self.watch)
        retry = RetryPolicy(attempts=3, base_ms=0, max_ms=0)
        store = Client(backend, ambient=ambient, retry=retry, usage=self.usage)
        return Bus(store, ambient, namespace, Options(**{"retry": AT_ONCE, "poll_ms": 10, **options}))

    def spent(self) -> dict[str, int]:
        """Requests since the last call, by verb."""
        spent = {verb: count for verb, count in self.usage.by_verb.items() if count}
        self.usage.tallies.clear()
        return spent

    def documents(self, folder: str) -> dict[str, Document]:
        return {
            key: codec.decode(found.body, key=key)
            for key, found in sorted(self.shelf.objects.items())
            if key.startswith(folder)
        }

    def claim(self, event_id: str, handler_id: str, namespace: str = "default") -> Document:
        key = f"claims/{namespace}/{event_id}/{handler_id}.json"
        return codec.decode(self.shelf.objects[key].body, key=key)


def recorder(log: list[Any], *types: type[Event], handler_id: str = "record", **options: Any) -> Handler:
    """Appends the order of each event."""

    @on(*(types or (OrderPlaced,)), id=handler_id, **options)
    async def record(ctx: Any, event: Any) -> None:
        log.append(getattr(event, "order_id", event))

    return record


async def turn(runner: Runner) -> int:
    """Start what there is to do, and wait until it is done; how many events that were."""
    started = await runner.step()
    await runner.drain_flight()
    return started


async def finish(runner: Runner, *, leaving: bool = False) -> None:
    """Turn by turn until nothing is left, and write the digest."""
    while await turn(runner):
        pass
    await runner.feed.flush(leaving=leaving)
