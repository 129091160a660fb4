"""The disk cache: the requests it saves, its bound, damaged files, and a disk that refuses to work.

That every answer is the store's own is a property.
"""

import asyncio
import logging
import resource
import threading
import time
from pathlib import Path

import pytest

from holdfast import objects
from holdfast.base.aio import blocking
from holdfast.base.config import Settings
from holdfast.base.errors import NotFound, Unavailable
from holdfast.objects.cache import LAYOUT, DiskCache
from holdfast.objects.layer import Layer
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Object, Store, Version, Written
from tests.unit.objects.caching import World

KEY = "fixed/a"
BODY = b"the object's own bytes"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


async def test_what_was_read_once_is_not_requested_again(world: World, tmp_path: Path) -> None:
    await world.store.put(KEY, BODY)
    first, second = world.client(), world.client()
    await first.range(KEY, 0, 3)  # the answer of the store is not cached
    await first.get(KEY)
    assert world.requests == {"range": 1, "get": 1}
    for number, client in enumerate((first, second)):
        assert await client.get(KEY) == await world.store.get(KEY)
        assert (await client.range(KEY, 4, 10)).body == b"object"
        assert await client.link(KEY, tmp_path / f"{number}") == len(BODY)
        assert (tmp_path / f"{number}").read_bytes() == BODY
        assert (tmp_path / f"{number}").stat().st_ino == world.files()[0].stat().st_ino
    assert world.requests == {"range": 1, "get": 1}
    for client in (first, second):  # whether an object exists is for the store to say
        await client.head(KEY)
        await client.get_unless(KEY, Version("other"))
    assert world.requests == {"range": 1, "get": 3, "head": 2}


async def test_a_link_fetches_what_is_not_cached_and_copies_what_cannot_be_linked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.store.put(KEY, BODY)
    await world.store.put("changing", BODY)
    client = world.client()
    assert await client.link("changing", tmp_path / "none") is None
    assert await client.link(KEY, tmp_path / "one") == len(BODY)
    assert world.requests == {"get": 1}
    monkeypatch.setattr(Path, "hardlink_to", refuse)
    assert await client.link(KEY, tmp_path / "two") == len(BODY)
    assert (tmp_path / "two").read_bytes() == BODY
    await client.delete(KEY)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes() == BODY


def refuse(*_: object) -> None:
    raise OSError(18, "Invalid cross-device link")


async def test_a_write_that_may_have_landed_removes_the_cached_object(world: World) -> None:
    class Unanswered(Layer):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            await self.inner.put(key, body)
            raise Unavailable("no answer", maybe_applied=True)

    await world.store.put(KEY, b"one")
    client = world.client(Unanswered(world.store))
    await client.get(KEY)
    with pytest.raises(Unavailable):
        await client.put(KEY, b"two")
    assert (await client.get(KEY)).body == b"two"


async def test_a_delete_waits_for_a_read_that_is_being_cached_for_a_cancelled_caller(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, proceed = threading.Event(), threading.Event()
    write = DiskCache._write

    def slow_write(cache: DiskCache, found: Object) -> None:
        begun.set()
        assert proceed.wait(60)
        write(cache, found)

    monkeypatch.setattr(DiskCache, "_write", slow_write)
    await world.store.put(KEY, BODY)
    client = world.client()
    reading = asyncio.ensure_future(client.get(KEY))
    await blocking(begun.wait)
    reading.cancel()
    deleting = asyncio.ensure_future(client.delete(KEY))
    await asyncio.wait([reading, deleting], timeout=0.1)
    assert not deleting.done()
    proceed.set()
    await deleting
    assert world.files() == []


class Gate(Layer):
    """Gets wait until the gate is open."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.open = asyncio.Event()
        self.reached = asyncio.Event()

    async def get(self, key: str) -> Object:
        self.reached.set()
        await self.open.wait()
        return await super().get(key)


async def test_concurrent_misses_send_one_request_even_if_the_first_caller_is_cancelled(world: World) -> None:
    await world.store.put(KEY, BODY)
    gate = Gate(world.store)
    client = world.client(gate)
    first, *others = (asyncio.ensure_future(client.get(KEY)) for _ in range(10))
    await gate.reached.wait()
    first.cancel()
    gate.open.set()
    assert {found.body for found in await asyncio.gather(*others)} == {BODY}
    assert first.cancelled()
    assert world.requests == {"get": 2}


async def test_the_objects_used_longest_ago_make_room(world: World) -> None:
    world.max_bytes = 30 * 4096
    keys = [f"fixed/{number:03}" for number in range(100)]
    client = world.client()
    for key in keys:
        await world.store.put(key, key.encode())
        await client.get(key)
        await client.get(keys[0])
        assert world.taken <= world.max_bytes
    before = world.requests["get"]
    for key in [keys[0], *keys[-20:]]:
        await world.client().get(key)
    assert world.requests["get"] == before
    await client.get(keys[1])
    assert world.requests["get"] == before + 1


async def test_files_of_killed_writers_are_removed_and_large_objects_are_not_cached(world: World) -> None:
    world.max_bytes = 100 * 4096
    abandoned = world.folder / LAYOUT / "tmp" / "abandoned"
    abandoned.parent.mkdir(parents=True)
    abandoned.touch()
    await world.store.put("fixed/large", bytes(60 * 4096))
    await world.store.put(KEY, bytes(40 * 4096))
    client = world.client()
    await client.get("fixed/large")
    assert world.files() == []
    await client.get(KEY)
    assert not abandoned.exists()  # the clock of this test is far ahead of its change time
    assert len(world.files()) == 1


async def test_a_directory_that_cannot_be_made_is_logged_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.folder.write_text("a file, not a directory")
    await world.store.put(KEY, BODY)
    client = world.client()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert (await client.get(KEY)).body == BODY
            assert (await client.range(KEY, 0, 3)).body == BODY[:3]
            assert await client.link(KEY, world.folder.with_name(f"{time.monotonic_ns()}")) == len(BODY)
    assert "the disk cache" in caplog.text
    assert len(caplog.records) == 1


async def test_a_full_disk_leaves_nothing_behind(world: World) -> None:
    await world.store.put(KEY, bytes(100_000))
    client = world.client()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        assert (await client.get(KEY)).body == bytes(100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path for path in world.folder.rglob("*") if path.is_file() and path.name != "growth"] == []
    await client.get(KEY)
    assert len(world.files()) == 1


async def test_a_file_that_cannot_be_removed_disables_the_cache(world: World) -> None:
    await world.store.put(KEY, BODY)
    client = world.client()
    await client.get(KEY)
    (file,) = world.files()
    file.unlink()
    file.mkdir()
    await client.delete(KEY)
    assert client.cache is not None
    assert not client.cache.covers(KEY)
    with pytest.raises(NotFound):
        await client.get(KEY)


async def test_an_opened_store_has_a_cache_if_settings_and_caller_ask_for_one(tmp_path: Path) -> None:
    settings = Settings.model_validate({"cache": {"dir": tmp_path / "cache", "max_bytes": "1MiB"}})
    address = f"file:{tmp_path / 'data'}"
    async with (
        objects.open(address, settings=settings) as without_keys,
        objects.open(address, settings=Settings(), immutable=lambda _: True) as without_directory,
        objects.open("memory:name", settings=settings, immutable=lambda _: True) as in_memory,
        objects.open(address, settings=settings, immutable=lambda key: key.startswith("fixed/")) as store,
    ):
        assert [each.cache for each in (without_keys, without_directory, in_memory)] == [None] * 3
        assert not (tmp_path / "cache").exists()
        await store.put(KEY, BODY, CREATE)
        await store.get(KEY)
        before = store.usage.requests("get")
        assert (await store.get(KEY)).body == BODY
        assert store.usage.requests("get") == before
