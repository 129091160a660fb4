"""What is repeated without looking, how often, and how a listing goes on where it was cut off."""

import random
from collections.abc import AsyncIterator

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.errors import Contended, Denied, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.memory import MemoryStore, Shelf
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Meta, Mode, Page, Written

ATTEMPTS = 4
POLICY = RetryPolicy(attempts=ATTEMPTS, base_ms=0, max_ms=0)


def retrying(backend: MemoryStore) -> Client:
    return Client(backend, ambient=Ambient(SystemClock(), random.Random(1)), retry=POLICY)


class Failing(MemoryStore):
    """Every verb fails so many times with an error before it works."""

    def __init__(self, error: HoldfastError, times: int) -> None:
        super().__init__()
        self.error = error
        self.left = times
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        if self.left:
            self.left -= 1
            raise self.error

    async def head(self, key: str) -> Meta:
        self._fail()
        return await super().head(key)

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self._fail()
        return await super().put(key, body, mode)

    async def delete(self, key: str) -> None:
        self._fail()
        await super().delete(key)


NOT_APPLIED = Unavailable("503")
MAYBE_APPLIED = Unavailable("no answer", maybe_applied=True)
CLASH = Contended("409")


@pytest.mark.parametrize("error", [NOT_APPLIED, MAYBE_APPLIED, CLASH], ids=str)
async def test_reads_deletes_and_plain_writes_are_repeated(error: HoldfastError) -> None:
    backend = Failing(error, ATTEMPTS - 1)
    assert isinstance(await retrying(backend).put("key", b"1"), Written)
    backend.left = ATTEMPTS - 1
    assert (await retrying(backend).head("key")).size == 1
    backend.left = ATTEMPTS - 1
    await retrying(backend).delete("key")
    assert backend.calls == 3 * ATTEMPTS
    assert backend.shelf.objects == {}


async def test_what_would_fail_again_is_not_repeated() -> None:
    backend = Failing(Denied("no"), 1)
    with pytest.raises(Denied):
        await retrying(backend).head("key")
    assert backend.calls == 1


class Cut(MemoryStore):
    """A listing that breaks off after every page, until it has done so ``cuts`` times."""

    def __init__(self, shelf: Shelf, cuts: int, *, empty_first: bool = False) -> None:
        super().__init__(shelf, page_size=1)
        self.cuts = cuts
        self.listings = 0
        self._empty_first = empty_first

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        self.listings += 1
        if self._empty_first:
            yield Page(())
            raise Unavailable("503")
        async for page in super().list(prefix, after=after, delimiter=delimiter):
            yield page
            if self.cuts:
                self.cuts -= 1
                raise Unavailable("503")


@pytest.mark.parametrize("delimiter", [False, True])
async def test_a_listing_goes_on_after_the_last_item(delimiter: bool) -> None:
    shelf = Shelf()
    wanted = ["a", "a-b", "a/b", "a/c", "b", "c/d", "c/e/f", "g"]
    for key in wanted:
        await MemoryStore(shelf).put(key, b"")
    backend = Cut(shelf, cuts=6)  # more in all than it is tried without progress
    seen: list[str] = []
    async for page in retrying(backend).list(delimiter=delimiter):
        seen += [entry.key for entry in page.entries] + [*page.folders]
    assert sorted(seen) == (["a", "a-b", "a/", "b", "c/", "g"] if delimiter else wanted)


async def test_pages_without_items_are_no_progress() -> None:
    backend = Cut(Shelf(), cuts=0, empty_first=True)
    with pytest.raises(Unavailable):
        [page async for page in retrying(backend).list()]
    assert backend.listings == ATTEMPTS
