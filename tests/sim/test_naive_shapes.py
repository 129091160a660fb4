"""Registers, leases and names done wrong, in the scenarios that the right ones pass."""

from collections.abc import AsyncIterator
from typing import Any

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Fenced, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.lease import Grant, Lease, LeaseState
from holdfast.objects.register import Absent, Applied, History, RecentOperations, Unknown
from holdfast.objects.store import CREATE, Lost, Page, Store
from holdfast.sim.scenarios.lease import LeaseFencedWrites, LeaseTenants
from holdfast.sim.scenarios.register import RegisterCounter, RegisterHistory
from holdfast.sim.scenarios.store import TICKETS, Names, StoreCache, StoreListing
from holdfast.sim.world import Process
from tests.sim.naive import first_broken, rules

SEEDS = range(1, 400)


class NoHistory(RecentOperations):
    """Whoever lost a race tries again: surely it was not applied."""

    async def find(self, operation_id: str, since: Document | None, current: Document) -> Applied | Absent | Unknown:
        return Absent()


class ForgetfulHistory(RecentOperations):
    """What is not in the list was not applied, however short the list."""

    async def find(self, operation_id: str, since: Document | None, current: Document) -> Applied | Absent | Unknown:
        found = await super().find(operation_id, since, current)
        return Absent() if isinstance(found, Unknown) else found


class DeletedOnRelease(Lease):
    """Giving a lease back by deleting it forgets the epoch."""

    async def release(self, grant: Grant) -> None:
        grant.ended = True
        await self._store.delete(self.key)


class HeirTakenForARival(Lease):
    """Whoever has the lease after a hand-over, in another epoch than we wrote, must have taken it from us."""

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
        def history(self) -> History:
            return NoHistory(self.keep)

    assert "applied at most once" in rules(first_broken(Naive, SEEDS))


def test_a_short_history_that_is_trusted_applies_an_edit_twice() -> None:
    class Naive(RegisterHistory):
        def history(self) -> History:
            return ForgetfulHistory(self.keep)

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

    assert rules(first_broken(Naive, SEEDS)) == {"tenants are told the truth"}


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
