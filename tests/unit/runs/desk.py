"""What tests of workflows share: a store whose requests are counted, and a clock that moves when advanced."""

import random
from collections import Counter

from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.uri import StoreSpec


class Watch:
    def __init__(self) -> None:
        self.ns = 1_800_000_000 * 10**9

    def wall_ns(self) -> int:
        self.ns += 1_000
        return self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def advance(self, *, seconds: float) -> None:
        self.ns += int(seconds * 1e9)


class Desk:
    """Opens any number of clients ("processes") on one shelf."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.watch = Watch()
        self.calls: Counter[str] = Counter()
        """How often each step really ran."""
        self._seeds = iter(range(1, 1_000))

    def store(self) -> Client:
        ambient = Ambient(self.watch, random.Random(next(self._seeds)))
        retry = RetryPolicy(attempts=3, base_ms=0, max_ms=0)
        backend = MemoryStore(self.shelf, clock=self.watch)
        return Client(backend, ambient=ambient, retry=retry, spec=StoreSpec("memory", "desk"))

    def journal(self, run_id: str) -> list[str]:
        body = self.shelf.objects[f"runs/{run_id}/journal.jsonl"].body
        return body.decode().splitlines()


class Crash(BaseException):
    """The process dies here: nothing after it runs, nothing is recorded."""
