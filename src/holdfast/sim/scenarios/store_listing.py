"""Listings over slow, short and lost pages while others write and delete."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from holdfast.objects.store import ADDRESSED, Store, content_version
from holdfast.sim.checkers.listing import complete_listings
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

FOLDER = "blob/"


@dataclass(frozen=True, kw_only=True)
class StoreListing(Scenario):
    """Writers add and remove content-addressed objects; a listing has all that stood throughout, once, in order."""

    name: ClassVar[str] = "store-listing"

    writers: int = 1
    readers: int = 1
    turns: int = 2

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            writers=rng.randint(1, 3),
            readers=rng.randint(1, 2),
            turns=rng.randint(2, 12),
            faults=Faults.drawn(rng, lost_response=0.25),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.writers):
            world.start(f"writer{number + 1}", self.writer)
        for number in range(self.readers):
            world.start(f"reader{number + 1}", self.reader)

    async def writer(self, process: Process) -> None:
        mine: list[str] = []
        for turn in range(self.turns):
            body = f"{process.name}/{turn % 4}".encode()
            key = FOLDER + content_version(body)
            wrote = await process.perform("put", process.store.put(key, body, ADDRESSED), key=key, show=lambda _: None)
            if isinstance(wrote, Done):
                mine.append(key)
            if mine and process.rng.random() < 0.2:
                gone = mine.pop(process.rng.randrange(len(mine)))
                await process.perform("delete", process.store.delete(gone), key=gone)

    async def reader(self, process: Process) -> None:
        for _ in range(self.turns):
            await process.perform("list", _listed(process.store), key=FOLDER)

    def check(self, world: World) -> Iterator[Violation]:
        yield from complete_listings(world.operations, world.landings, FOLDER)


async def _listed(store: Store) -> tuple[str, ...]:
    return tuple([key async for key in store.keys(FOLDER)])
