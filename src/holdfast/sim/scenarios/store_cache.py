"""The disk cache of immutable objects in a client, with a directory that two processes share."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.objects.cache import DiskCache
from holdfast.objects.client import Client
from holdfast.objects.store import CREATE, Object, Store
from holdfast.sim.checkers.reading import true_reads
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

FOLDER = "blob/"


@dataclass(frozen=True, kw_only=True)
class StoreCache(Scenario):
    """Readers keep objects on a shared disk while others create and delete them; what they read is true."""

    name: ClassVar[str] = "store-cache"
    explorable: ClassVar[bool] = False

    readers: int = 2
    turns: int = 2
    keys: int = 1

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            readers=rng.randint(1, 3),
            turns=rng.randint(2, 8),
            keys=rng.randint(1, 3),
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.readers):
            world.start(f"reader{number + 1}", self.reader)
        world.start("stranger", self.stranger)

    def cached(self, process: Process) -> Client:
        cache = DiskCache(
            process.world.disk,
            max_bytes=1 << 20,
            namespace="sim",
            immutable=lambda key: key.startswith(FOLDER),
            ambient=process.ambient,
        )
        return Client(process.backend, ambient=process.ambient, retry=self.retry, cache=cache)

    async def reader(self, process: Process) -> None:
        await self._work(process, self.cached(process))

    async def stranger(self, process: Process) -> None:
        """On another machine, without a cache."""
        await self._work(process, process.store)

    async def _work(self, process: Process, store: Store) -> None:
        for _ in range(self.turns):
            key = f"{FOLDER}{process.rng.randint(1, self.keys)}"
            await process.perform("put", store.put(key, body_of(key), CREATE), key=key, show=lambda _: None)
            await process.perform("read", store.find(key), key=key, show=_bytes)
            if process.rng.random() < 0.5:
                await process.perform("delete", store.delete(key), key=key)
                await process.perform("read", store.find(key), key=key, show=_bytes)

    def check(self, world: World) -> Iterator[Violation]:
        yield from true_reads(world.operations, world.landings, body_of)


def body_of(key: str) -> bytes:
    """Immutable: all that is ever written under ``key``."""
    return f"the bytes of {key}".encode()


def _bytes(found: Object | None) -> bytes | None:
    return None if found is None else found.body
