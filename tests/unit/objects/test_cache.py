"""The disk cache answers what the store would, with the requests that its design states."""

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast import objects
from holdfast.base.aio import blocking
from holdfast.base.config import Settings
from holdfast.base.errors import NotFound, Unavailable
from holdfast.objects.cache.disk import SMALL_BYTES
from holdfast.objects.cache.folder import CacheFolder
from holdfast.objects.layer import Layer
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, NotModified, Object, Version, Written
from tests.unit.objects.caching import Gate, World

KEY = "fixed/a"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


async def test_what_was_read_once_is_not_asked_for_again(world: World) -> None:
    await world.store.put(KEY, b"body")
    first, second = world.cache(), world.cache()
    found = await first.get(KEY)
    assert found == await world.store.get(KEY)
    assert await first.get(KEY) == found
    assert await second.get(KEY) == found
    assert world.requests == {"get": 1}
    assert (first.stats.hits, first.stats.misses, second.stats.hits) == (1, 1, 1)
    assert first.stats.failures == 0


async def test_keys_that_may_change_are_not_kept(world: World) -> None:
    cache = world.cache()
    await cache.put("head", b"one")
    assert (await cache.get("head")).body == b"one"
    await world.store.put("head", b"two")
    assert (await cache.get("head")).body == b"two"
    assert (await cache.head("head")).size == 3
    assert (await cache.range("head", 0, 1)).body == b"t"
    assert world.files() == []
    assert cache.stats.hits == cache.stats.misses == 0


async def test_stores_that_share_a_folder_are_kept_apart(world: World) -> None:
    await world.store.put(KEY, b"one")
    one, two = world.cache(namespace="one"), world.cache(namespace="two")
    await one.get(KEY)
    await world.store.put(KEY, b"two")
    assert (await two.get(KEY)).body == b"two"
    assert (await one.get(KEY)).body == b"one"


async def test_conditional_get_needs_no_request_once_cached(world: World) -> None:
    await world.store.put(KEY, b"body")
    cache = world.cache()
    version = (await world.store.head(KEY)).version
    assert await cache.get_unless(KEY, version) == NotModified()
    assert world.requests == {"get": 1}
    found = await cache.get_unless(KEY, Version("other"))
    assert found == await cache.get(KEY)
    assert world.requests["get"] == 3  # neither conditional get was kept: the caller may hold the bytes already
    assert await cache.get_unless(KEY, version) == NotModified()
    assert await cache.get_unless(KEY, Version("other")) == found
    assert world.requests["get"] == 3


async def test_head_is_answered_from_the_cache(world: World) -> None:
    await world.store.put(KEY, b"body")
    cache = world.cache()
    meta = await cache.head(KEY)
    assert world.requests == {"head": 1}
    await cache.get(KEY)
    assert await cache.head(KEY) == meta == await world.store.head(KEY)
    assert world.requests == {"head": 1, "get": 1}


@pytest.mark.parametrize(("start", "end"), [(0, 3), (2, 6), (4, 100), (0, 1 << 60), (6, 9), (9, 12), (3, 3)])
async def test_range_is_cut_from_the_cached_file(world: World, start: int, end: int) -> None:
    await world.store.put(KEY, b"abcdef")
    cache = world.cache()
    expected = b"abcdef"[start:end]
    assert (await cache.range(KEY, start, end)).body == expected
    assert world.requests == {"range": 1}  # a miss asks for the range alone
    await cache.get(KEY)
    assert (await cache.range(KEY, start, end)).body == expected
    assert world.requests == {"range": 1, "get": 1}


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


async def test_a_missing_object_is_not_remembered(world: World) -> None:
    cache = world.cache()
    for call in (cache.get(KEY), cache.head(KEY), cache.range(KEY, 0, 1)):
        with pytest.raises(NotFound):
            await call
    await world.store.put(KEY, b"now")
    assert (await cache.get(KEY)).body == b"now"


async def test_an_empty_object_is_cached_too(world: World) -> None:
    await world.store.put(KEY, b"")
    cache = world.cache()
    assert (await cache.get(KEY)).body == (await cache.get(KEY)).body == b""
    assert (await cache.range(KEY, 0, 5)).body == b""
    assert world.requests == {"get": 1}


# Writes and deletes through the cache are seen at once.


async def test_delete_forgets(world: World) -> None:
    cache = world.cache()
    for key in ("fixed/a", "fixed/b", "fixed/c"):
        await world.store.put(key, key.encode())
        await cache.get(key)
    await cache.delete("fixed/a")
    await cache.delete_many(["fixed/b", "other"])
    for key in ("fixed/a", "fixed/b"):
        with pytest.raises(NotFound):
            await cache.get(key)
    assert (await cache.get("fixed/c")).body == b"fixed/c"
    assert len(world.files()) == 2


async def test_overwrite_forgets_although_the_key_should_be_immutable(world: World) -> None:
    cache = world.cache()
    await world.store.put(KEY, b"one")
    await cache.get(KEY)
    await cache.put(KEY, b"two")
    assert (await cache.get(KEY)).body == b"two"
    assert (await cache.range(KEY, 0, 1)).body == b"t"


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


async def test_a_fetch_under_way_during_a_delete_is_not_kept(world: World) -> None:
    await world.store.put(KEY, b"body")
    gate = Gate(world.store)
    cache = world.cache(gate)
    reading = asyncio.ensure_future(cache.get(KEY))
    await gate.reached.wait()
    deleting = asyncio.ensure_future(cache.delete(KEY))
    await asyncio.wait([deleting], timeout=0.1)
    assert not deleting.done()  # or the fetch would put into the cache what is gone
    gate.open.set()
    assert (await reading).body == b"body"  # it began before the delete was answered
    await deleting
    with pytest.raises(NotFound):
        await cache.get(KEY)
    assert world.files() == []


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


async def test_a_failed_fetch_fails_all_who_wait_and_is_tried_again(world: World) -> None:
    cache = world.cache()
    outcomes = await asyncio.gather(*(cache.get(KEY) for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [NotFound] * 3
    assert world.requests == {"get": 1}
    await world.store.put(KEY, b"body")
    assert (await cache.get(KEY)).body == b"body"


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
