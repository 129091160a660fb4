"""A store in memory, and any number of clients of it with disk caches in one directory."""

import random
from pathlib import Path

from holdfast.base.ids import Ambient
from holdfast.objects.cache import BLOCK_BYTES, LAYOUT, DiskCache
from holdfast.objects.client import Client, Usage
from holdfast.objects.memory import MemoryStore
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store


class TickingClock:
    """Every reading is a second later."""

    def __init__(self) -> None:
        self._now_ns = 2 * 10**18

    def wall_ns(self) -> int:
        self._now_ns += 10**9
        return self._now_ns

    def monotonic_ns(self) -> int:
        return self.wall_ns()


class World:
    def __init__(self, folder: Path, *, max_bytes: int = 1 << 20) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self.store: Store = MemoryStore()
        self.usage = Usage()
        self.ambient = Ambient(TickingClock(), random.Random(7))

    def client(self, backend: Store | None = None) -> Client:
        """As in a process that starts now."""
        cache = DiskCache(
            self.folder,
            max_bytes=self.max_bytes,
            namespace="store",
            immutable=lambda key: key.startswith("fixed/"),
            ambient=self.ambient,
        )
        backend = backend if backend is not None else self.store
        retry = RetryPolicy(attempts=1)
        return Client(backend, ambient=self.ambient, retry=retry, usage=self.usage, cache=cache)

    @property
    def requests(self) -> dict[str, int]:
        return self.usage.by_verb

    def files(self) -> list[Path]:
        """Cached objects."""
        return sorted((self.folder / LAYOUT).glob("??/*/*"))

    @property
    def taken(self) -> int:
        return sum(-(-max(1, path.stat().st_size) // BLOCK_BYTES) * BLOCK_BYTES for path in self.files())
