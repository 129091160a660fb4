"""The scenarios of the store, registers and leases hold, and each naive part breaks its own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import chain
from typing import Any

import pytest

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Contended, Fenced, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.lease import Grant, Lease, LeaseState
from holdfast.objects.register import Applied, Register
from holdfast.objects.store import CREATE, OVERWRITE, Create, IfMatch, Lost, Mode, Page, Store, Written
from holdfast.sim.pool import run_all, shares
from holdfast.sim.run import Totals
from holdfast.sim.scenarios.lease import LeaseFencedWrites, LeaseTenants
from holdfast.sim.scenarios.register import RegisterCounter, RegisterForeign, RegisterHistory
from holdfast.sim.scenarios.store import TICKETS, Names, StoreCache, StoreCas, StoreListing
from holdfast.sim.world import Process
from tests.sim.naive import first_broken, rules
from tests.soak import SOAKING

LOSSY = ["lease", "lease-fenced-writes", "register-counter", "register-history"]
MANY_SEEDS = range(1, 701 if SOAKING else 31)


def test_register_and_lease_hold_with_a_quarter_of_responses_lost() -> None:
    totals = Totals()
    tasks = chain.from_iterable(shares(name, MANY_SEEDS) for name in LOSSY)
    asyncio.run(run_all(tasks, lambda _, share: totals.add(share), jobs=2))
    assert totals.broken == {}
    assert totals.runs == len(LOSSY) * len(MANY_SEEDS)
    assert totals.operations >= 30 * totals.runs
    assert totals.tally["lost response"] == pytest.approx(totals.requests / 4, rel=0.05)


SEEDS = range(1, 400)


class NoReadBack(Client):
    """412 is a lost race and an open outcome is tried again: the classic retry loop around a conditional write."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        for _ in range(20):
            with suppress(Unavailable):
                return await self._send(key, body, mode)
        raise Unavailable(f"{key}: gave up", maybe_applied=True)


class TokenOnly(Client):
    """Our write id is in there, so the object must be ours."""

    async def _read_back(self, key: str, body: bytes, mode: Create | IfMatch) -> Written | Lost | None:
        verdict = await super()._read_back(key, body, mode)
        if isinstance(verdict, Lost) and verdict.current is not None:
            theirs = codec.decode(verdict.current.body, key=key)["write_id"]
            if theirs == codec.decode(body, key=key)["write_id"]:
                return Written(verdict.current.version)
        return verdict


class ContendedMeansTaken(Client):
    """409 says that another client is writing, so the race is lost."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        try:
            return await self._send(key, body, mode)
        except Contended:
            return Lost()
        except Unavailable:
            return await super().put(key, body, mode)


class ContendedMeansUntouched(Client):
    """409 says that nothing was written, so giving up is safe."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        try:
            return await self._send(key, body, mode)
        except Contended as error:
            raise Unavailable(f"{key}: nothing was written") from error
        except Unavailable:
            return await super().put(key, body, mode)


def test_without_read_back_an_own_write_is_reported_as_lost() -> None:
    class Naive(StoreCas):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return NoReadBack(backend, ambient=ambient, retry=self.retry)

    assert "no false conflict" in rules(first_broken(Naive, SEEDS))


def test_a_write_id_over_foreign_bytes_is_not_our_write() -> None:
    class Naive(RegisterForeign):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return TokenOnly(backend, ambient=ambient, retry=self.retry)

    assert "no lost update" in rules(first_broken(Naive, SEEDS))


def test_without_a_write_id_equal_bytes_are_mistaken_for_the_same_write() -> None:
    class Naive(StoreCas):
        def body(self, value: int, ambient: Ambient) -> bytes:
            return codec.encode({"value": value})

    assert "linearizable" in rules(first_broken(Naive, SEEDS))


def test_409_is_no_lost_race() -> None:
    class Naive(StoreCas):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return ContendedMeansTaken(backend, ambient=ambient, retry=self.retry)

    assert "no false conflict" in rules(first_broken(Naive, SEEDS))


def test_409_is_no_proof_that_nothing_was_written() -> None:
    class Naive(StoreCas):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return ContendedMeansUntouched(backend, ambient=ambient, retry=self.retry)

    assert "no false conflict" in rules(first_broken(Naive, SEEDS))


class NoHistory(Register[Any]):
    """A client that lost a race tries again: surely it was not applied."""

    def search(self, operation_id: str, since: Document | None, current: Document) -> None:
        return None


class ForgetfulHistory(Register[Any]):
    """What is not in the list was not applied, however short the list."""

    def search(self, operation_id: str, since: Document | None, current: Document) -> Applied | None:
        with suppress(Ambiguous):
            return super().search(operation_id, since, current)
        return None


class DeletedOnRelease(Lease):
    """Giving a lease back by deleting it forgets the epoch."""

    async def release(self, grant: Grant) -> None:
        grant.ended = True
        await self._store.delete(self.key)


class HeirTakenForARival(Lease):
    """An owner after a hand-over, in another epoch than we wrote, must have taken the lease from us."""

    async def hand_over(self, grant: Grant, successor_id: str) -> None:
        await super().hand_over(grant, successor_id)
        state = LeaseState.parse(await self._store.get(self.key))
        if (state.owner_id, state.epoch) != (successor_id, grant.epoch + 1):
            raise Fenced(f"{self.key}: taken over by {state.owner_id}")


class RestartedListing(Client):
    """A listing that fails is begun again."""

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        for _ in range(20):
            try:
                async for page in self._pages(prefix, after, delimiter):
                    yield page
                return
            except Unavailable:
                continue


class KeepsDeleted(Client):
    """Immutable objects never change, so why forget one?"""

    async def delete(self, key: str) -> None:
        await self.backend.delete(key)


def test_a_register_without_history_applies_an_edit_twice() -> None:
    class Naive(RegisterCounter):
        kind = NoHistory

    assert "applied at most once" in rules(first_broken(Naive, SEEDS))


def test_a_short_history_that_is_trusted_applies_an_edit_twice() -> None:
    class Naive(RegisterHistory):
        kind = ForgetfulHistory

    assert "applied at most once" in rules(first_broken(Naive, SEEDS))


def test_an_owner_that_trusts_its_clock_writes_after_its_successor() -> None:
    class Naive(LeaseFencedWrites):
        def change(self, entry: dict[str, Any], ledger: dict[str, Any] | None) -> dict[str, Any]:
            return entry

    assert "stale owners are fenced off" in rules(first_broken(Naive, SEEDS))


def test_a_lease_that_is_deleted_on_release_gives_an_epoch_twice() -> None:
    class Naive(LeaseTenants):
        def lease(self, process: Process) -> Lease:
            return DeletedOnRelease(process.store, "lease", process.name, process.ambient, ttl_ms=self.ttl_ms)

    assert "one owner" in rules(first_broken(Naive, SEEDS))


def test_an_heir_that_was_quick_is_no_rival() -> None:
    class Naive(LeaseTenants):
        def lease(self, process: Process) -> Lease:
            return HeirTakenForARival(process.store, "lease", process.name, process.ambient, ttl_ms=self.ttl_ms)

    assert rules(first_broken(Naive, SEEDS)) == {"answers to tenants are true"}


def test_a_name_that_was_deleted_is_taken_again_without_a_boundary() -> None:
    class Naive(Names):
        async def take(self, process: Process) -> int:
            number = max(await self.newest(process), await self.spent(process)) + 1
            body = codec.encode({"guest": process.name, "write_id": process.ambient.ids.write_id()})
            if isinstance(await process.store.put(f"{TICKETS}{number:06}", body, CREATE), Lost):
                raise Conflict(f"{number} is taken")
            return number

    assert rules(first_broken(Naive, SEEDS)) == {"a name is taken once"}


def test_a_cache_that_does_not_forget_shows_a_process_what_it_deleted() -> None:
    class Naive(StoreCache):
        def cached(self, process: Process) -> Client:
            cached = super().cached(process)
            return KeepsDeleted(process.backend, ambient=process.ambient, retry=self.retry, cache=cached.cache)

    assert "one's own deletes are seen" in rules(first_broken(Naive, SEEDS))


def test_a_listing_that_is_begun_again_has_keys_twice() -> None:
    class Naive(StoreListing):
        def stack(self, backend: Store, ambient: Ambient) -> Client:
            return RestartedListing(backend, ambient=ambient, retry=self.retry)

    assert "listings are true" in rules(first_broken(Naive, SEEDS))
