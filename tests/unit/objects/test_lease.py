"""Lease: who may work, by which epoch, and what a release leaves behind."""

import asyncio
import json
import random

import pytest

from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Conflict, Corrupt, Denied, Fenced, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.lease import Grant, Held, Lease
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import Store

QUICK = RetryPolicy(attempts=3, base_ms=0, max_ms=0)
TTL_MS = 30_000


class Watch:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ns = 1_800_000_000 * 10**9

    def wall_ns(self) -> int:
        return self.ns

    def monotonic_ns(self) -> int:
        return self.ns

    def advance(self, ms: int) -> None:
        self.ns += ms * 1_000_000


class Room:
    def __init__(self) -> None:
        self.watch = Watch()
        self.usage = Usage()
        self.shelf = Shelf()
        self.store: Store = Client(MemoryStore(self.shelf), ambient=self.ambient(0), retry=QUICK, usage=self.usage)

    def ambient(self, seed: int) -> Ambient:
        return Ambient(self.watch, random.Random(seed))

    def lease(self, owner: str) -> Lease:
        return Lease(self.store, "meta/lock.json", owner, self.ambient(hash(owner) % 1000), ttl_ms=TTL_MS)

    @property
    def document(self) -> dict[str, object]:
        loaded = json.loads(self.shelf.objects["meta/lock.json"].body)
        assert isinstance(loaded, dict)
        return loaded


async def granted(lease: Lease) -> Grant:
    answer = await lease.try_acquire()
    assert isinstance(answer, Grant), answer
    return answer


async def test_requests_and_epochs() -> None:
    room = Room()
    a, b = room.lease("a"), room.lease("b")
    grant = await granted(a)
    assert (grant.epoch, room.usage.by_verb) == (1, {"get": 1, "put": 1})
    await a.renew(grant)
    await a.release(grant)
    assert (await granted(a)).epoch == 2
    assert room.usage.by_verb == {"get": 1, "put": 4}
    assert await b.try_acquire() == Held("a", 2, TTL_MS)
    with pytest.raises(Conflict, match="held by a"):
        await b.acquire(timeout_ms=0)


@pytest.mark.parametrize("error", [Unavailable("down"), Denied("the token has expired"), Corrupt("half an answer")])
async def test_a_failed_renewal_makes_the_grant_unsafe_until_one_succeeds(error: HoldfastError) -> None:
    room = Room()

    class Flaky(MemoryStore):
        down = False

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            if Flaky.down:
                raise error
            return await super().put(key, body, mode)

    store = Client(Flaky(room.shelf), ambient=room.ambient(1), retry=QUICK, usage=Usage())
    lease = Lease(store, "meta/lock.json", "a", room.ambient(2), ttl_ms=TTL_MS)
    grant = await granted(lease)
    Flaky.down = True
    with pytest.raises(type(error)):
        await lease.renew(grant)
    with pytest.raises(Conflict, match=f"renewal failed: {error}"):
        lease.guard(grant)
    Flaky.down = False
    await lease.renew(grant)
    lease.guard(grant)


async def test_the_document_has_the_shape_of_the_specification() -> None:
    room = Room()
    await granted(room.lease("a"))
    assert {"owner_id", "acquired_at", "expires_at", "lease_ttl_ms", "epoch", "write_id"} == room.document.keys()
    assert room.document["owner_id"] == "a"
    assert room.document["lease_ttl_ms"] == TTL_MS
    assert parse_iso(str(room.document["expires_at"])) - room.watch.ns == TTL_MS * 1_000_000


async def test_a_lock_without_epoch_is_tolerated_and_its_fields_kept() -> None:
    room = Room()
    expired = {"owner_id": "other", "acquired_at": iso(0), "expires_at": iso(1), "lease_ttl_ms": 5, "note": "theirs"}
    await room.store.put("meta/lock.json", json.dumps(expired).encode())
    assert (await granted(room.lease("a"))).epoch == 1
    assert room.document["note"] == "theirs"


async def test_takeover_after_expiry_fences_the_old_owner() -> None:
    room = Room()
    a, b = room.lease("a"), room.lease("b")
    old = await granted(a)
    room.watch.advance(TTL_MS + 1)
    new = await granted(b)
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced, match="taken over by b"):
        await a.renew(old)
    with pytest.raises(Conflict, match="not safe to use"):
        a.guard(old)
    await a.release(old)
    assert room.document["owner_id"] == "b"
    b.guard(new)


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
async def test_nobody_waits_for_the_clock_of_whoever_gave_it_back(ahead_ms: int) -> None:
    room = Room()
    fast = Watch()
    fast.advance(ahead_ms)
    early = Lease(room.store, "meta/lock.json", "a", Ambient(fast, random.Random(1)), ttl_ms=TTL_MS)
    await early.release(await granted(early))
    assert (room.document["expires_at"], room.document["released_at"]) == (iso(0), iso(fast.ns))
    grant = await granted(room.lease("b"))
    assert grant.epoch == 2
    assert "released_at" not in room.document


async def test_guard_wants_a_third_of_the_term_and_renewal_restores_it() -> None:
    room = Room()
    a = room.lease("a")
    grant = await granted(a)
    a.guard(grant)
    room.watch.advance(TTL_MS * 2 // 3)
    with pytest.raises(Conflict, match="are needed"):
        a.guard(grant)
    await a.renew(grant)
    a.guard(grant)
    assert grant.epoch == 1


async def test_hand_over_names_the_successor() -> None:
    room = Room()
    a, b, c = room.lease("a"), room.lease("b"), room.lease("c")
    grant = await granted(a)
    await a.hand_over(grant, "b")
    assert await c.try_acquire() == Held("b", 2, TTL_MS)
    assert (await granted(b)).epoch == 3
    with pytest.raises(Conflict, match="given up"):
        await a.renew(grant)


async def test_hold_releases_also_when_the_body_fails() -> None:
    room = Room()
    a = room.lease("a")

    async def fail() -> None:
        async with a.hold() as grant:
            a.guard(grant)
            raise ValueError("body")

    with pytest.raises(ValueError, match="body"):
        await fail()
    assert parse_iso(str(room.document["expires_at"])) <= room.watch.ns


@pytest.mark.parametrize("first", ["renewal", "release"])
async def test_a_renewal_under_way_does_not_bring_back_what_is_released(first: str) -> None:
    """Both writes are on their way at once; whichever lands first, the lease is free in the end."""
    room = Room()
    arrived, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        held = False

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            hold, Slow.held = Slow.held, False
            early = await super().put(key, body, mode) if hold and first == "renewal" else None
            if hold:
                arrived.set()
                await go_on.wait()
            return early or await super().put(key, body, mode)

    store = Client(Slow(room.shelf), ambient=room.ambient(1), retry=QUICK, usage=Usage())
    lease = Lease(store, "meta/lock.json", "a", room.ambient(2), ttl_ms=TTL_MS)
    grant = await granted(lease)
    Slow.held = True
    renewal = asyncio.ensure_future(lease.renew(grant))
    await arrived.wait()
    await lease.release(grant)
    go_on.set()
    with pytest.raises(Conflict, match="given up"):
        await renewal
    with pytest.raises(Conflict, match="given up"):
        lease.guard(grant)
    assert isinstance(await room.lease("b").try_acquire(), Grant)


async def test_what_is_not_a_lease_is_refused_and_kept() -> None:
    room = Room()
    await room.store.put("meta/lock.json", b'{"owner_id":"x"}')
    with pytest.raises(Corrupt, match="not a lease"):
        await room.lease("a").try_acquire()
    assert room.document == {"owner_id": "x"}
