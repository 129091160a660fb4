"""The store itself: its laws, conditional writes, listings, names that are deleted, and the disk cache.

All go through the production stack over the simulated store.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from holdfast.base import codec
from holdfast.base.errors import Ambiguous, Conflict, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.cache import DiskCache
from holdfast.objects.client import Client
from holdfast.objects.conformance.laws import LAWS, Bench, Effort
from holdfast.objects.register import CONTENTION, UNCHANGED, Plain, Register, Unchanged
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import ADDRESSED, CREATE, IfMatch, Lost, Object, Store, Written, content_version
from holdfast.sim.checkers.linearizable import LOST, WRITTEN, Cell, linearizable
from holdfast.sim.checkers.objects import complete_listings, outcomes_are_true, true_reads
from holdfast.sim.faults import Faults
from holdfast.sim.history import Done, Violation, answers
from holdfast.sim.scenario import AT_ONCE, Scenario, surroundings
from holdfast.sim.world import Process, World

STUBBORN = RetryPolicy(attempts=30, base_ms=10, max_ms=200, deadline_ms=600_000)
SMALL = Effort(races=3, rounds=2, race_seconds=10, keys=12, large_bytes=2048)


@dataclass(frozen=True, kw_only=True)
class Laws(Scenario):
    """Every law of the store holds while requests, responses and pages of listings are lost, slow or refused."""

    name: ClassVar[str] = "laws"
    explorable: ClassVar[bool] = False

    laws: tuple[str, ...] = tuple(law.name for law in LAWS)
    effort: Effort = SMALL

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        # A write without condition that lands late overwrites a newer one: no store can help that, no law forbids it.
        faults = replace(Faults.drawn(rng, lost_response=0.25), late=0.0, duplicate=0.0)
        return cls(laws=(rng.choice(LAWS).name,), faults=faults, retry=STUBBORN)

    def begin(self, world: World) -> None:
        world.start("examiner", self.examiner)

    async def examiner(self, process: Process) -> None:
        clients = [process.port() for _ in range(self.effort.races)]
        for law in LAWS:
            if law.name in self.laws:
                bench = Bench(
                    clients, prefix=f"{law.name}/", ambient=process.ambient, effort=self.effort, retry=self.retry
                )
                await process.perform("judge", law.run(bench), key=law.name)

    def check(self, world: World) -> Iterator[Violation]:
        for operation in world.operations:
            if not isinstance(operation.outcome, Done) and operation.outcome.error is not None:
                yield Violation("every law can be judged", str(operation))


@dataclass(frozen=True, kw_only=True)
class StoreCas(Scenario):
    """Writers read a cell and replace what they saw; the cell is linearizable and every answer is true."""

    name: ClassVar[str] = "store-cas"

    writers: int = 2
    turns: int = 2
    cells: int = 1

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            writers=rng.randint(2, 4),
            turns=rng.randint(2, 10),
            cells=rng.choice((1, 1, 2)),
            **surroundings(rng, lost_response=0.25),
        )

    def begin(self, world: World) -> None:
        world.start_all("writer", self.writers, self.writer)

    def body(self, value: int, ambient: Ambient) -> bytes:
        """Two values go round and round; the write id distinguishes one write from the next."""
        return codec.encode({"value": value, "write_id": ambient.ids.write_id()})

    async def writer(self, process: Process) -> None:
        for _ in range(self.turns):
            key = f"cell{process.rng.randint(1, self.cells)}"
            read = await process.perform("read", process.store.find(key), key=key, show=_version)
            if not isinstance(read, Done):
                continue
            current: Object | None = read.result
            value = 0 if current is None else 1 - codec.decode(current.body, key=key)["value"]
            body = self.body(value, process.ambient)
            mode = CREATE if current is None else IfMatch(current.version)
            argument = (read.value, content_version(body))
            await process.perform("cas", process.store.put(key, body, mode), key=key, argument=argument, show=_answered)

    def check(self, world: World) -> Iterator[Violation]:
        yield from linearizable(world.operations, Cell(overtaken=True))
        yield from outcomes_are_true(world.operations, world.landings)


def _version(found: Object | None) -> str | None:
    return None if found is None else found.version


def _answered(outcome: Written | Lost) -> str:
    return WRITTEN if isinstance(outcome, Written) else LOST


FOLDER = "blob/"


@dataclass(frozen=True, kw_only=True)
class StoreListing(Scenario):
    """Writers add and remove content-addressed objects; a listing has all that existed throughout, once, in order."""

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
            **surroundings(rng, lost_response=0.25),
        )

    def begin(self, world: World) -> None:
        world.start_all("writer", self.writers, self.writer)
        world.start_all("reader", self.readers, self.reader)

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


TICKETS = "ticket/"
BOUNDARY = "boundary"
SHAPE = Plain("holdfast.sim.boundary")
TAKEN_ONCE = "a name is taken once"


@dataclass(frozen=True, kw_only=True)
class Names(Scenario):
    """Guests take numbered names while a cleaner deletes old ones; no number is ever given to two guests."""

    name: ClassVar[str] = "names"

    guests: int = 2
    turns: int = 1
    sweeps: int = 1
    contention: RetryPolicy = AT_ONCE

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            guests=rng.randint(2, 4),
            turns=rng.randint(2, 6),
            sweeps=rng.randint(1, 6),
            contention=CONTENTION,
            **surroundings(rng, lost_response=0.25),
        )

    def begin(self, world: World) -> None:
        world.start_all("guest", self.guests, self.guest)
        world.start("cleaner", self.cleaner)

    async def guest(self, process: Process) -> None:
        for _ in range(self.turns):
            await process.perform("take", self.take(process), key=TICKETS)

    async def take(self, process: Process) -> int:
        """The next free number."""
        number = max(await self.newest(process), await self.spent(process)) + 1
        body = codec.encode({"guest": process.name, "write_id": process.ambient.ids.write_id()})
        if isinstance(await process.store.put(f"{TICKETS}{number:06}", body, CREATE), Lost):
            raise Conflict(f"{number} is taken")
        if await self.spent(process) >= number:
            raise Conflict(f"{number} was taken before, and deleted")
        return number

    async def cleaner(self, process: Process) -> None:
        boundary = self._boundary(process)
        for sweep in range(self.sweeps):
            try:
                newest = await self.newest(process)

                def advance(spent: Any, newest: int = newest) -> int | Unchanged:
                    return newest if newest > (spent or 0) else UNCHANGED

                if newest > 0:
                    await boundary.edit(f"{process.name}/{sweep}", advance)
                    await process.store.delete_many([f"{TICKETS}{number:06}" for number in range(1, newest + 1)])
            except (Ambiguous, Unavailable):
                process.note("will sweep later")

    async def newest(self, process: Process) -> int:
        keys = [key async for key in process.store.keys(TICKETS)]
        return int(keys[-1].removeprefix(TICKETS)) if keys else 0

    async def spent(self, process: Process) -> int:
        boundary = await self._boundary(process).read()
        return 0 if boundary is None else int(boundary.value)

    def _boundary(self, process: Process) -> Register[Any]:
        return Register(process.store, BOUNDARY, SHAPE, process.ambient, policy=self.contention)

    def check(self, world: World) -> Iterator[Violation]:
        guests: dict[int, list[str]] = {}
        for operation, number in answers(world.operations):
            guests.setdefault(number, []).append(operation.process)
        for number, names in guests.items():
            if len(names) > 1:
                yield Violation(TAKEN_ONCE, f"number {number} was given to {' and '.join(names)}")


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
            **surroundings(rng, lost_response=0.25),
        )

    def begin(self, world: World) -> None:
        world.start_all("reader", self.readers, self.reader)
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
