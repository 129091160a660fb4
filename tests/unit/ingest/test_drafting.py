"""A manifest is made while the bytes that it is for are on their way, and told to the store ahead."""

import asyncio
from contextlib import AbstractContextManager, nullcontext

import pytest

from holdfast.base.errors import Invalid, Unavailable
from holdfast.ingest.accept import Accepted
from holdfast.ingest.collector import Collector, CollectorOptions
from holdfast.objects.layer import Doing, Layer
from holdfast.objects.store import CREATE, OVERWRITE, Addressed, Create, Lost, Mode, Store, Written
from holdfast.sim import ingest_kit as kit
from tests.unit.ingest.accept_desk import AcceptDesk


class Slow(Layer):
    """Tells what happens, and holds blobs up until it is let go."""

    def __init__(self, inner: Store, error: Exception | None = None) -> None:
        super().__init__(inner)
        self.seen: list[str] = []
        self.go = asyncio.Event()
        self.error = error
        self.unfit = False

    def ahead(self, key: str, body: bytes, mode: Create | Addressed = CREATE) -> AbstractContextManager[None]:
        self._note("ahead", key)
        if self.unfit:
            raise Invalid("the key is too long")
        return nullcontext()

    def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Doing[Written | Lost]:
        return self._put(key, body, mode)

    async def _put(self, key: str, body: bytes, mode: Mode) -> Written | Lost:
        self._note("put", key)
        if key.startswith("raw-blobs/"):
            await self.go.wait()
            if self.error is not None:
                raise self.error
        return await self.inner.put(key, body, mode)

    def _note(self, what: str, key: str) -> None:
        self.seen.append(f"{what} {key.partition('/')[0]}")


def collector_on(store: Slow, desk: AcceptDesk) -> Collector:
    model = desk.collector()
    return Collector(store, desk.ambient(), model.authority, CollectorOptions("slow"))


async def test_it_is_ready_before_the_bytes_are_there() -> None:
    desk = AcceptDesk()
    store = Slow(desk.store())
    accepting = asyncio.ensure_future(collector_on(store, desk).accept(kit.submission(0)))
    for _ in range(3):
        await asyncio.sleep(0)
    assert store.seen == ["put raw-blobs", "ahead accepted"]
    drafted_by = desk.watch.wall_ns()
    desk.watch.advance(seconds=5)
    store.go.set()
    answer = await accepting
    assert store.seen == ["put raw-blobs", "ahead accepted", "put accepted"]
    assert isinstance(answer, Accepted)
    assert answer.manifest.accepted_at_unix_ns <= drafted_by


async def test_a_store_that_is_at_once_ready_does_not_wait_for_it() -> None:
    desk = AcceptDesk()
    store = Slow(desk.store())
    store.go.set()
    await collector_on(store, desk).accept(kit.submission(0))
    assert sorted(store.seen) == ["ahead accepted", "put accepted", "put raw-blobs"]


async def test_nothing_is_drafted_for_who_has_gone() -> None:
    desk = AcceptDesk()
    store = Slow(desk.store(), Unavailable("full"))
    store.go.set()
    with pytest.raises(Unavailable, match="full"):
        await collector_on(store, desk).accept(kit.submission(0))
    before = list(store.seen)
    await asyncio.sleep(0)
    assert store.seen == before


async def test_a_draft_that_fails_is_told_once_to_who_wants_it() -> None:
    desk = AcceptDesk()
    store = Slow(desk.store())
    store.unfit = True
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
    accepting = asyncio.ensure_future(collector_on(store, desk).accept(kit.submission(0)))
    await asyncio.sleep(0.01)
    store.go.set()
    with pytest.raises(Invalid, match="too long"):
        await accepting
    assert told == []
    assert desk.families() == {"raw-blobs": 1}
