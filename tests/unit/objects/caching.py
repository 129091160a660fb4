"""Parts for tests of the disk cache: a store to count and to hold up, a clock to turn, and what lies on disk."""

import asyncio
import random
from pathlib import Path

from holdfast.base.ids import Ambient
from holdfast.objects.cache import CacheStats, DiskCache
from holdfast.objects.cache.space import charged
from holdfast.objects.client import Client, Usage
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Object, Store


class Clock:
    """Every reading is a second later."""

    def __init__(self) -> None:
        self._now_ns = 10**18

    def wall_ns(self) -> int:
        self._now_ns += 10**9
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self.wall_ns()


class Gate(Layer):
    """Gets wait until the gate is open. ``reached`` is set when one has come to it."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()
        self.reached = asyncio.Event()
        self.cancelled = 0

    async def get(self, key: str) -> Object:
        found = await super().get(key)
        self.reached.set()
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return found


class Caching(Client):
    """A client that has a disk cache."""

    @property
    def stats(self) -> CacheStats:
        assert self.cache is not None
        return self.cache.stats


class World:
    """A store, what was asked of it, and any number of caches in one folder over it."""

    def __init__(self, folder: Path, *, max_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.store: Store = MemoryStore()
        self.usage = Usage()
        self.ambient = Ambient(Clock(), random.Random(7))

    def cache(self, inner: Store | None = None, *, namespace: str = "store") -> "Caching":
        """As a process that starts now would have it."""
        cache = DiskCache(
            self.folder,
            max_bytes=self.max_bytes,
            namespace=namespace,
            immutable=lambda key: key.startswith("fixed/"),
            ambient=self.ambient,
        )
        backend = inner if inner is not None else self.store
        retry = RetryPolicy(attempts=1)
        return Caching(backend, ambient=self.ambient, retry=retry, usage=self.usage, cache=cache)

    @property
    def requests(self) -> dict[str, int]:
        return self.usage.by_verb

    def files(self, suffix: str = "") -> list[Path]:
        return sorted(path for path in self.folder.rglob(f"*{suffix}") if path.is_file() and path.name != "ledger")

    @property
    def taken(self) -> int:
        return sum(charged(path.stat().st_size) for path in self.files())

    @property
    def ledger(self) -> int:
        return int(next(self.folder.rglob("ledger")).read_text())
