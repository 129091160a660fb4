"""The disk cache answers what the store would, with the requests that its design states."""

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast import objects
from holdfast.base.aio import blocking
from holdfast.base.config import Settings
from holdfast.base.errors import Unavailable
from holdfast.objects.cache.disk import SMALL_BYTES
from holdfast.objects.cache.folder import CacheFolder
from holdfast.objects.layer import Layer
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, NotModified, Object, Version, Written
from tests.unit.objects.caching import Gate, World

KEY = "fixed/a"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


async def test_requests_of_reads_that_hit_and_miss(world: World) -> None:
    """That every answer is the store's own is a property."""
    await world.store.put(KEY, b"body")
    first, second = world.cache(), world.cache()
    version = (await first.head(KEY)).version
    assert isinstance(await first.get_unless(KEY, Version("other")), Object)
    await first.range(KEY, 0, 1)
    assert world.requests == {"head": 1, "get": 2}  # small objects are fetched whole, but not by a conditional get
    for cache in (first, second):
        assert await cache.get_unless(KEY, version) == NotModified()
        assert isinstance(await cache.get_unless(KEY, Version("other")), Object)
        for call in (cache.get(KEY), cache.head(KEY), cache.range(KEY, 0, 1)):
            await call
        async with cache.pinned(KEY):
            pass
    assert world.requests == {"head": 1, "get": 2}
    assert (first.stats.misses, second.stats.misses, first.stats.failures) == (3, 0, 0)


async def test_stores_that_share_a_folder_are_kept_apart(world: World) -> None:
    await world.store.put(KEY, b"one")
    one, two = world.cache(namespace="one"), world.cache(namespace="two")
    await one.get(KEY)
    await world.store.put(KEY, b"two")
    assert (await two.get(KEY)).body == b"two"
    assert (await one.get(KEY)).body == b"one"


@pytest.mark.parametrize(
    ("size", "expected"), [(SMALL_BYTES, {"head": 1, "get": 1}), (SMALL_BYTES + 1, {"head": 1, "range": 2})]
)
async def test_ranges_of_a_small_object_fetch_it_whole(world: World, size: int, expected: dict[str, int]) -> None:
    body = bytes(size)
    await world.store.put(KEY, body)
    cache = world.cache()
    await cache.head(KEY)
    assert (await cache.range(KEY, 0, 10)).body == body[:10]
    assert (await cache.range(KEY, size - 10, size)).body == body[-10:]
    assert world.requests == expected


# Writes and deletes through the cache are seen at once.


async def test_a_lost_create_leaves_the_entry(world: World) -> None:
    cache = world.cache()
    assert isinstance(await cache.put(KEY, b"one", CREATE), Written)
    await cache.get(KEY)
    assert isinstance(await cache.put(KEY, b"two", CREATE), Lost)
    assert isinstance(await cache.put(KEY, b"one", ADDRESSED), Lost)
    assert (await cache.get(KEY)).body == b"one"
    assert world.requests == {"put": 3, "get": 2}  # the lost create is read back


async def test_a_failed_write_forgets_because_it_may_have_landed(world: World) -> None:
    class LandsUnheard(Layer):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            await self.inner.put(key, body)
            raise Unavailable("no answer", maybe_applied=True)

    await world.store.put(KEY, b"one")
    cache = world.cache(LandsUnheard(world.store))
    await cache.get(KEY)
    with pytest.raises(Unavailable):
        await cache.put(KEY, b"two")
    assert (await cache.get(KEY)).body == b"two"


async def test_a_delete_waits_for_a_write_to_disk_whose_caller_has_left(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    keep = CacheFolder.keep

    def slow_keep(folder: CacheFolder, found: Object) -> bool:
        begun.set()
        assert go.wait(60)
        return keep(folder, found)

    monkeypatch.setattr(CacheFolder, "keep", slow_keep)
    await world.store.put(KEY, b"body")
    cache = world.cache()
    reading = asyncio.ensure_future(cache.get(KEY))
    await blocking(begun.wait)
    reading.cancel()
    await asyncio.wait([reading])
    deleting = asyncio.ensure_future(cache.delete(KEY))
    await asyncio.wait([deleting], timeout=0.1)
    assert not deleting.done()
    go.set()
    await deleting
    assert world.files() == []


# Callers that miss together share one fetch.


async def test_concurrent_misses_share_one_fetch(world: World) -> None:
    await world.store.put(KEY, b"body")
    cache = world.cache()
    found = await asyncio.gather(*(cache.get(KEY) for _ in range(10)))
    assert {one.body for one in found} == {b"body"}
    assert world.requests == {"get": 1}
    assert (cache.stats.misses, cache.stats.shared) == (1, 9)


async def test_one_caller_leaving_does_not_end_the_fetch_of_others(world: World) -> None:
    await world.store.put(KEY, b"body")
    gate = Gate(world.store)
    cache = world.cache(gate)
    first, second = (asyncio.ensure_future(cache.get(KEY)) for _ in range(2))
    await gate.reached.wait()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    gate.open.set()
    assert (await second).body == b"body"
    assert world.requests == {"get": 1}
    assert gate.cancelled == 0


async def test_the_last_caller_leaving_ends_the_fetch(world: World) -> None:
    await world.store.put(KEY, b"body")
    gate = Gate(world.store)
    cache = world.cache(gate)
    callers = [asyncio.ensure_future(cache.get(KEY)) for _ in range(3)]
    await gate.reached.wait()
    for caller in callers:
        caller.cancel()
    await asyncio.gather(*callers, return_exceptions=True)
    assert gate.cancelled == 1
    gate.open.set()
    assert (await cache.get(KEY)).body == b"body"
    assert world.requests == {"get": 2}


# How a store gets its cache.


async def test_an_opened_store_caches_where_settings_and_caller_ask_for_it(tmp_path: Path) -> None:
    settings = Settings.model_validate({"cache": {"dir": tmp_path / "cache", "max_bytes": "1MiB"}})
    address = f"file:{tmp_path / 'data'}"
    async with objects.open(address, settings=settings, immutable=lambda key: key.startswith("fixed/")) as store:
        assert store.cache is not None
        await store.put(KEY, b"body", CREATE)
        await store.get(KEY)
        before = store.usage.requests("get")
        assert (await store.get(KEY)).body == b"body"
        assert store.usage.requests("get") == before
        async with store.pinned(KEY) as path:
            assert path.is_relative_to(tmp_path / "cache")
            assert path.read_bytes() == b"body"


async def test_no_cache_unless_asked_for(tmp_path: Path) -> None:
    settings = Settings.model_validate({"cache": {"dir": tmp_path / "cache"}})
    address = f"file:{tmp_path / 'data'}"
    async with (
        objects.open(address, settings=settings) as unasked,
        objects.open(address, settings=Settings(), immutable=lambda _: True) as without_folder,
        objects.open("memory:name", settings=settings, immutable=lambda _: True) as in_memory,
    ):
        for store in (unasked, without_folder, in_memory):
            assert store.cache is None
    assert not (tmp_path / "cache").exists()
