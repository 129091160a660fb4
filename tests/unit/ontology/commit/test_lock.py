"""The write lock, in virtual time: bursts, hand-over, a plain writer's chance, and nothing that rests on it."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import wraps
from inspect import Signature, signature
from statistics import median
from typing import Any, TypeVar

import pytest

from holdfast.base.errors import Conflict, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.store import OVERWRITE, Lost, Mode, NotModified, Object, Store, Version, Written
from holdfast.ontology.commit import lock
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.lock import LockOptions, WriteLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.sim.loop import SimLoop
from holdfast.sim.world import SimClock
from tests.unit.ontology.desk import TYPES, put
from tests.unit.ontology.plain import PlainReader, PlainWriter

T = TypeVar("T")
HOUR_MS = 3_600_000


class Distant(Layer):
    """Every request takes its time."""

    def __init__(self, inner: Store, seconds: float) -> None:
        super().__init__(inner)
        self.seconds = seconds

    async def _far(self, request: Callable[[], Awaitable[T]]) -> T:
        await asyncio.sleep(self.seconds / 2)
        found = await request()
        await asyncio.sleep(self.seconds / 2)
        return found

    async def get(self, key: str) -> Object:
        return await self._far(lambda: self.inner.get(key))

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        return await self._far(lambda: self.inner.get_unless(key, version))

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await self._far(lambda: self.inner.put(key, body, mode))


class Town:
    """Sessions on one store, in a world whose time is virtual."""

    def __init__(self, loop: SimLoop, *, seconds: float = 0.06) -> None:
        self.loop = loop
        self.clock = SimClock(loop.time)
        self.shelf = Shelf()
        self.bare = MemoryStore(self.shelf, clock=self.clock)
        self.seconds = seconds
        self.locks: list[WriteLock] = []
        self.usage = Usage()

    def store(self, seed: int) -> tuple[Store, Ambient]:
        ambient = Ambient(self.clock, random.Random(seed))
        return Client(Distant(self.bare, self.seconds), ambient=ambient, usage=self.usage), ambient

    def session(self, name: str, options: LockOptions | None = None, *, ahead_ms: int = 0) -> Committer:
        store, ambient = self.store(len(self.locks))
        ambient = Ambient(SimClock(self.loop.time, skew_ms=ahead_ms), ambient.rng)
        self.locks.append(WriteLock(store, name, ambient, options))
        return Committer(store, ambient, View(store), TYPES, runtime_id=name, lock=self.locks[-1])

    def plain(self, name: str = "plain") -> PlainWriter:
        def moment() -> datetime:
            return datetime.fromtimestamp(self.clock.wall_ns() / 1e9, UTC)

        return PlainWriter(Distant(self.bare, self.seconds), name, now=moment)

    def document(self) -> Any:
        return json.loads(self.shelf.objects[layout.LOCK].body)

    async def close(self) -> None:
        for each in self.locks:
            await each.close()


def in_town(work: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test in virtual time, whose first parameter is the town."""

    @wraps(work)
    def test(**params: Any) -> None:
        loop = SimLoop()

        async def live() -> None:
            town = Town(loop)
            try:
                await work(town, **params)
            finally:
                await town.close()

        try:
            loop.run_until_complete(live())
        finally:
            loop.close()

    _, *rest = signature(work).parameters.values()
    vars(test)["__signature__"] = Signature(rest)
    return test


@in_town
async def test_a_burst_costs_three_requests_a_commit_and_is_released_when_idle(town: Town) -> None:
    writer = town.session("anna")
    await put(writer, ("c1", 0))
    town.usage.tallies.clear()
    for number in range(1, 10):
        await put(writer, ("c1", number))
    assert town.usage.by_verb == {"put": 27}
    held = [town.locks[0].held]
    await asyncio.sleep(0.5)
    assert [*held, town.locks[0].held] == [True, False]
    assert datetime.fromisoformat(town.document()["expires_at"]).timestamp() * 1e9 <= town.clock.wall_ns()
    town.usage.tallies.clear()
    await put(writer, ("c1", "again"))
    assert town.usage.by_verb == {"put": 4}


@in_town
async def test_sixteen_writers_take_turns(town: Town) -> None:
    ends: dict[str, float] = {}

    async def one(name: str) -> None:
        writer = town.session(name)
        for number in range(8):
            commit = await put(writer, (name, number))
            assert commit is not None
        ends[name] = town.loop.time()

    await asyncio.gather(*(one(f"w{number:02}") for number in range(16)))
    reader = PlainReader(town.bare)
    head = await reader.head()
    assert head["commit_id"] == 128
    chain = await reader.chain(head["manifest_path"])
    assert [manifest["commit_id"] for manifest in chain] == list(range(128, 0, -1))
    by_writer = [manifest["runtime_id"] for manifest in chain]
    assert {name: by_writer.count(name) for name in ends} == dict.fromkeys(ends, 8)
    assert max(ends.values()) <= 3 * median(ends.values())


@in_town
async def test_a_plain_writer_gets_the_lock_within_its_five_seconds_beside_other_waiters(town: Town) -> None:
    busy = True

    async def ours(name: str) -> None:
        writer = town.session(name)
        number = 0
        while busy:
            await put(writer, (name, number))
            number += 1

    others = [asyncio.ensure_future(ours(f"w{number}")) for number in range(5)]
    plain = town.plain()
    for turn in range(6):
        await asyncio.sleep(1.3)
        # PlainWriter.commit asserts that it got the lock within five seconds.
        await plain.commit({("entity", "Customer"): [("plain", {"v": turn})]})
    busy = False
    await asyncio.gather(*others)
    assert (await PlainReader(town.bare).latest("entity", "Customer"))["plain"] == {"v": 5}


@in_town
async def test_a_lock_that_is_kept_is_a_conflict_that_names_its_holder(town: Town) -> None:
    plain = town.plain("forgetful")
    await plain.acquire()
    writer = town.session("anna")
    with pytest.raises(Conflict, match="held by forgetful"):
        await put(writer, ("c1", 1))
    assert len(writer.queue) == 1
    ambient = Ambient(town.clock, random.Random(1))
    held = await lock.show(town.bare, ambient)
    assert held is not None
    assert (held.owner_id, held.expired) == ("forgetful", False)
    broken = await lock.break_lock(town.bare, ambient)
    assert broken is not None
    assert broken.owner_id == "forgetful"
    after = await lock.show(town.bare, ambient)
    assert after is not None
    assert after.expired
    assert await writer.commit() is not None


@pytest.mark.parametrize("pause_s", [0.0, 0.1])
@pytest.mark.parametrize("hold_s", [0.3, 2.0])
@in_town
async def test_a_busy_plain_writer_does_not_starve_us(town: Town, pause_s: float, hold_s: float) -> None:
    """It releases the lock and takes it again, always under one owner id."""
    busy = True
    turns = 0

    async def theirs() -> None:
        nonlocal turns
        plain = town.plain()
        while busy:
            if await plain.acquire():
                await asyncio.sleep(hold_s)
                await plain._attempt({("entity", "Customer"): [("plain", {"v": turns})]}, {})
                turns += 1
                await plain.release()
            await asyncio.sleep(pause_s)

    other = asyncio.ensure_future(theirs())
    await asyncio.sleep(1)
    writer = town.session("anna")
    for number in range(3):
        assert await put(writer, ("c1", number)) is not None
        await asyncio.sleep(1)  # it gives the lock back
    before = turns
    await asyncio.sleep(10)
    assert turns > before  # nor do we starve it
    busy = False
    await other
    assert (await PlainReader(town.bare).latest("entity", "Customer"))["c1"] == {"v": 2}


@in_town
async def test_a_plain_lease_that_is_renewed_and_never_released_is_a_conflict(town: Town) -> None:
    plain = town.plain()
    await plain.acquire()

    async def renew() -> None:
        while True:
            await asyncio.sleep(1)
            document = town.document()
            document["expires_at"] = datetime.fromtimestamp(town.clock.wall_ns() / 1e9 + 30, UTC).isoformat()
            await town.bare.put(layout.LOCK, json.dumps(document).encode(), OVERWRITE)

    other = asyncio.ensure_future(renew())
    with pytest.raises(Conflict, match="held by plain"):
        await put(town.session("anna"), ("c1", 1))
    other.cancel()
    assert town.document()["owner_id"] == "plain"


@pytest.mark.parametrize("given_back", ["released", "broken"])
@in_town
async def test_a_clock_that_is_ahead_delays_no_claim(town: Town, given_back: str) -> None:
    """Not for what it gave back or broke, nor a plain writer for a moment at which the lock lies free."""
    fast = town.session("fast", ahead_ms=HOUR_MS)
    await put(fast, ("c1", 0))
    ambient = Ambient(town.clock, random.Random(1))
    if given_back == "released":
        await town.locks[0].close()
    else:
        await lock.break_lock(town.bare, Ambient(SimClock(town.loop.time, skew_ms=HOUR_MS), random.Random(2)))
    after = await lock.show(town.bare, ambient)
    assert after is not None
    assert after.expired
    assert after.released_at is not None
    assert await put(town.session("anna"), ("c1", 1)) is not None
    assert town.locks[1]._grant is not None
    assert town.locks[1]._reservation_due(town.locks[1]._grant)


@in_town
async def test_a_failed_renewal_makes_the_lease_unsafe_and_the_commit_takes_it_again(town: Town) -> None:
    options = LockOptions(ttl_ms=300, idle_ms=100_000, burst_ms=100_000)
    writer = town.session("anna", options)
    await put(writer, ("c1", 0))
    turn = town.locks[0]
    whole = turn._lease._store

    class Deaf(Layer):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            raise Unavailable("503")

    turn._lease._store = Deaf(whole)
    await asyncio.sleep(0.5)
    with pytest.raises(Conflict, match="not safe"):
        turn.guard()
    turn._lease._store = whole
    assert await put(writer, ("c1", 1)) is not None
