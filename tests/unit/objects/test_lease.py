"""Lease: its requests, its document, guards and renewals. That two owners never share an epoch is simulated."""

import asyncio
import json
import random
from typing import Any

import pytest

from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Conflict, Corrupt, Denied, Fenced, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.lease import Grant, Held, Lease
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy

TTL_MS = 30_000
KEY = "meta/lock.json"


class Watch:
    """A clock that the test moves."""

    def __init__(self, ahead_ms: int = 0) -> None:
        self.ns = 1_800_000_000 * 10**9 + ahead_ms * 1_000_000

    def wall_ns(self) -> int:
        return self.ns

    monotonic_ns = wall_ns

    def advance(self, ms: int) -> None:
        self.ns += ms * 1_000_000


class Desk:
    def __init__(self, backend: type[MemoryStore] = MemoryStore) -> None:
        self.watch = Watch()
        self.shelf = Shelf()
        retry = RetryPolicy(attempts=3, base_ms=0, max_ms=0)
        self.store = Client(backend(self.shelf), ambient=Ambient(self.watch, random.Random(0)), retry=retry)

    def lease(self, owner: str, watch: Watch | None = None) -> Lease:
        return Lease(self.store, KEY, owner, Ambient(watch or self.watch, random.Random(owner)), ttl_ms=TTL_MS)

    @property
    def document(self) -> dict[str, Any]:
        loaded = json.loads(self.shelf.objects[KEY].body)
        assert isinstance(loaded, dict)
        return loaded


async def granted(lease: Lease) -> Grant:
    answer = await lease.try_acquire()
    assert isinstance(answer, Grant), answer
    return answer


async def test_requests_and_epochs() -> None:
    desk = Desk()
    a, b = desk.lease("a"), desk.lease("b")
    grant = await granted(a)
    assert (grant.epoch, desk.store.usage.by_verb) == (1, {"get": 1, "put": 1})
    await a.renew(grant)
    await a.release(grant)
    assert (await granted(a)).epoch == 2
    assert desk.store.usage.by_verb == {"get": 1, "put": 4}
    assert await b.try_acquire() == Held("a", 2, TTL_MS)
    with pytest.raises(Conflict, match="held by a"):
        await b.acquire(timeout_ms=0)


async def test_the_document_has_the_shape_of_the_specification_and_keeps_unknown_fields() -> None:
    desk = Desk()
    expired = {"owner_id": "other", "acquired_at": iso(0), "expires_at": iso(1), "lease_ttl_ms": 5, "note": "theirs"}
    await desk.store.put(KEY, json.dumps(expired).encode())
    assert (await granted(desk.lease("a"))).epoch == 1, "a lock without an epoch counts as epoch 0"
    document = desk.document
    names = {"owner_id", "acquired_at", "expires_at", "lease_ttl_ms", "epoch", "write_id", "note"}
    assert (set(document), document["owner_id"], document["note"]) == (names, "a", "theirs")
    assert parse_iso(document["expires_at"]) - desk.watch.ns == document["lease_ttl_ms"] * 1_000_000
    await desk.store.put(KEY, b'{"owner_id":"x"}')
    with pytest.raises(Corrupt, match="not a lease"):
        await desk.lease("b").try_acquire()
    assert desk.document == {"owner_id": "x"}


@pytest.mark.parametrize("error", [Unavailable("down"), Denied("the token has expired"), Corrupt("half an answer")])
async def test_a_failed_renewal_makes_the_grant_unsafe_until_one_succeeds(error: HoldfastError) -> None:
    class Flaky(MemoryStore):
        down = False

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            if Flaky.down:
                raise error
            return await super().put(key, body, mode)

    lease = Desk(Flaky).lease("a")
    grant = await granted(lease)
    Flaky.down = True
    with pytest.raises(type(error)):
        await lease.renew(grant)
    with pytest.raises(Conflict, match=f"renewal failed: {error}"):
        lease.guard(grant)
    Flaky.down = False
    await lease.renew(grant)
    lease.guard(grant)


async def test_an_owner_that_was_replaced_is_fenced_and_releases_nothing() -> None:
    desk = Desk()
    a, b = desk.lease("a"), desk.lease("b")
    old = await granted(a)
    desk.watch.advance(TTL_MS + 1)
    new = await granted(b)
    assert new.epoch == old.epoch + 1
    with pytest.raises(Fenced, match="taken over by b"):
        await a.renew(old)
    with pytest.raises(Conflict, match="not safe to use"):
        a.guard(old)
    await a.release(old)
    assert desk.document["owner_id"] == "b"
    b.guard(new)


@pytest.mark.parametrize("ahead_ms", [0, 3_600_000])
async def test_a_released_lease_is_free_whatever_the_clock_of_its_owner(ahead_ms: int) -> None:
    desk = Desk()
    fast = Watch(ahead_ms)
    early = desk.lease("a", fast)
    await early.release(await granted(early))
    assert (desk.document["expires_at"], desk.document["released_at"]) == (iso(0), iso(fast.ns))
    assert (await granted(desk.lease("b"))).epoch == 2
    assert "released_at" not in desk.document


async def test_guard_needs_a_third_of_the_term_and_a_renewal_restores_it() -> None:
    desk = Desk()
    a = desk.lease("a")
    grant = await granted(a)
    a.guard(grant)
    desk.watch.advance(TTL_MS * 2 // 3)
    with pytest.raises(Conflict, match="are needed"):
        a.guard(grant)
    await a.renew(grant)
    a.guard(grant)
    assert grant.epoch == 1


async def test_hand_over_names_the_successor() -> None:
    desk = Desk()
    a = desk.lease("a")
    grant = await granted(a)
    await a.hand_over(grant, "b")
    assert await desk.lease("c").try_acquire() == Held("b", 2, TTL_MS)
    assert (await granted(desk.lease("b"))).epoch == 3
    with pytest.raises(Conflict, match="given up"):
        await a.renew(grant)


async def test_hold_releases_the_lease_after_an_error() -> None:
    desk = Desk()
    a = desk.lease("a")

    async def fail() -> None:
        async with a.hold() as grant:
            a.guard(grant)
            raise ValueError("body")

    with pytest.raises(ValueError, match="body"):
        await fail()
    assert desk.document["expires_at"] == iso(0)


@pytest.mark.parametrize("first", ["renewal", "release"])
async def test_a_renewal_in_flight_does_not_undo_a_release(first: str) -> None:
    """Whichever of the two writes lands first."""
    arrived, proceed = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        delay = False

        async def put(self, key, body, mode=None):  # type: ignore[no-untyped-def]
            delayed, Slow.delay = Slow.delay, False
            early = await super().put(key, body, mode) if delayed and first == "renewal" else None
            if delayed:
                arrived.set()
                await proceed.wait()
            return early or await super().put(key, body, mode)

    desk = Desk(Slow)
    lease = desk.lease("a")
    grant = await granted(lease)
    Slow.delay = True
    renewal = asyncio.ensure_future(lease.renew(grant))
    await arrived.wait()
    await lease.release(grant)
    proceed.set()
    with pytest.raises(Conflict, match="given up"):
        await renewal
    with pytest.raises(Conflict, match="given up"):
        lease.guard(grant)
    assert isinstance(await desk.lease("b").try_acquire(), Grant)
