"""The cache's files: torn ones are refetched, the bound holds, pins keep, and a refusing disk disturbs no reader."""

import fcntl
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.cache.folder import Pin
from tests.unit.objects.caching import World

KEY = "fixed/a"
BODY = b"the object's own bytes"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "cache")


async def test_a_file_is_checked_whole_once_for_its_ranges_and_every_time_for_a_get(world: World) -> None:
    world.ambient = Ambient.system()
    await world.store.put(KEY, BODY)
    await world.cache().get(KEY)
    (data,) = world.files(".data")
    os.utime(data, ns=(1, 1))
    cache = world.cache()
    assert (await cache.range(KEY, 0, 3)).body == b"the"
    data.write_bytes(BODY.upper())
    os.utime(data, ns=(1, 1))  # the same identity: only a look at every byte can tell
    assert (await cache.range(KEY, 0, 3)).body == b"THE"
    assert (await cache.get(KEY)).body == BODY
    assert cache.stats.torn == 1
    assert (await cache.range(KEY, 0, 3)).body == b"the"
    next(world.folder.rglob("*.data")).write_bytes(BODY.upper())  # a new identity: it is checked again
    assert (await cache.range(KEY, 0, 3)).body == b"the"
    assert cache.stats.torn == 2


@pytest.mark.parametrize("harm", ["cut", "altered", "missing"])
async def test_a_torn_file_is_dropped_and_refetched(world: World, harm: str) -> None:
    """How answers stay right under every harm is a property."""
    await world.store.put(KEY, BODY)
    await world.cache().get(KEY)
    (data,) = world.files(".data")
    data.unlink()
    if harm != "missing":
        data.write_bytes(BODY[:-1] if harm == "cut" else BODY.upper())
    cache = world.cache()
    assert (await cache.get(KEY)).body == BODY
    assert (cache.stats.torn, cache.stats.misses, cache.stats.failures) == (harm != "missing", 1, 0)
    assert (await world.cache().get(KEY)).body == BODY
    assert world.requests == {"get": 2}


async def test_an_entry_of_another_key_is_not_believed(world: World) -> None:
    for key in (KEY, "fixed/b"):
        await world.store.put(key, key.encode())
    cache = world.cache()
    await cache.get("fixed/b")
    (other,) = world.files(".meta")
    await cache.get(KEY)
    (own,) = set(world.files(".meta")) - {other}
    shutil.copy(other, own)
    assert (await cache.get(KEY)).body == KEY.encode()
    assert cache.stats.torn == 1


# The bound.


async def fill(world: World, count: int, size: int = 8000) -> list[str]:
    keys = [f"fixed/{number:03}" for number in range(count)]
    for key in keys:
        await world.store.put(key, key.encode().ljust(size, b"."))
    return keys


async def test_what_was_used_last_stays(world: World) -> None:
    world.max_bytes = 20 * 12288
    cache = world.cache()
    keys = await fill(world, 40)
    for key in keys[:20]:
        await cache.get(key)
    assert (await cache.range(keys[0], 0, 1)).body == b"f"
    await cache.head(keys[1])
    await cache.get(keys[2])
    async with cache.pinned(keys[3]):
        pass
    for key in keys[20:30]:
        await cache.get(key)
    before = world.requests["get"]
    for key in [*keys[:4], *keys[20:30]]:
        await cache.get(key)
    assert world.requests["get"] == before
    await cache.get(keys[4])
    assert world.requests["get"] == before + 1


async def test_looking_through_the_folder_is_rare(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.max_bytes = 100 * 12288
    cache = world.cache()
    looks: list[str] = []
    real = os.scandir

    def scandir(path: str) -> Iterator[os.DirEntry[str]]:
        looks.append(str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for key in await fill(world, 200):
        await cache.get(key)
    temporary = [path for path in looks if path.endswith("tmp")]
    assert 1 + 200 // 20 <= len(temporary) <= 1 + 200 // 8  # one to begin with, then each frees a tenth
    assert cache.stats.evictions >= 100


async def test_an_object_larger_than_the_bound_is_served_and_not_kept(world: World) -> None:
    world.max_bytes = 8192
    await world.store.put(KEY, bytes(9000))
    cache = world.cache()
    assert (await cache.get(KEY)).body == bytes(9000)
    async with cache.pinned(KEY) as path:
        assert path.read_bytes() == bytes(9000)
    assert not path.exists()
    assert world.taken == 0
    assert cache.stats.skipped == 2
    assert cache.stats.failures == 0


async def test_what_a_killed_writer_left_is_removed(world: World) -> None:
    world.max_bytes = 4 * 12288
    cache = world.cache()
    keys = await fill(world, 8)
    await cache.get(keys[0])
    abandoned = next(world.folder.rglob("tmp")) / "abandoned.data"
    abandoned.write_bytes(bytes(100))
    orphan = world.files(".data")[0].with_name("0123.4567.data")
    orphan.write_bytes(bytes(100))
    for key in keys:
        await cache.get(key)
    assert not abandoned.exists()
    assert not orphan.exists()


async def test_a_damaged_ledger_is_counted_anew(world: World) -> None:
    cache = world.cache()
    keys = await fill(world, 3)
    await cache.get(keys[0])
    next(world.folder.rglob("ledger")).write_text("nonsense")
    await cache.get(keys[1])
    assert world.ledger == world.taken
    next(world.folder.rglob("ledger")).unlink()
    await cache.get(keys[2])
    assert world.ledger == world.taken


# Pins.


async def test_a_pinned_file_is_not_evicted(world: World) -> None:
    world.max_bytes = 4 * 12288
    keys = await fill(world, 10)
    cache, other = world.cache(), world.cache()
    async with cache.pinned(keys[0]) as path:
        for key in keys[1:]:
            await other.get(key)
            assert world.taken <= world.max_bytes
        assert path.read_bytes() == (await world.store.get(keys[0])).body
        assert other.stats.evictions > 0
    for key in keys[1:]:
        await other.get(key)
    assert not path.exists()


async def test_a_pinned_path_outlives_the_delete_of_its_key(world: World) -> None:
    await world.store.put(KEY, BODY)
    cache = world.cache()
    async with cache.pinned(KEY) as path:
        await cache.delete(KEY)
        assert path.read_bytes() == BODY
        with pytest.raises(NotFound):
            await cache.get(KEY)
        await world.store.put(KEY, b"other bytes")
        assert (await cache.get(KEY)).body == b"other bytes"
        assert path.read_bytes() == BODY


async def test_a_key_that_may_change_is_pinned_as_a_copy(world: World) -> None:
    await world.store.put("head", BODY)
    async with world.cache().pinned("head") as path:
        assert path.read_bytes() == BODY
    assert not path.exists()
    assert world.files() == []


def test_a_pin_released_before_it_holds_undoes_at_once() -> None:
    undone: list[str] = []
    late, early = Pin(), Pin()
    late.release()
    late.hold(lambda: undone.append("late"))
    early.hold(lambda: undone.append("early"))
    assert undone == ["late"]
    early.release()
    early.release()
    assert undone == ["late", "early"]


# A disk that refuses.


async def test_a_folder_that_cannot_be_made_turns_into_pass_through(world: World) -> None:
    world.folder.write_text("a file, not a folder")
    await world.store.put(KEY, BODY)
    cache = world.cache()
    for _ in range(2):
        assert (await cache.get(KEY)).body == BODY
        assert (await cache.range(KEY, 0, 3)).body == BODY[:3]
        assert (await cache.head(KEY)).size == len(BODY)
        async with cache.pinned(KEY) as path:
            assert path.read_bytes() == BODY
    assert cache.stats.hits == 0
    assert cache.stats.failures > 0
    assert world.folder.read_text() == "a file, not a folder"


async def test_a_full_disk_turns_into_pass_through(world: World) -> None:
    await world.store.put(KEY, bytes(100_000))
    cache = world.cache()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        assert (await cache.get(KEY)).body == bytes(100_000)
        with pytest.raises(Unavailable, match="no room for a local copy"):
            await cache.pinned(KEY).__aenter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert cache.stats.failures == 2
    assert world.files() == []
    assert (await cache.get(KEY)).body == bytes(100_000)
    assert world.files() != []


async def test_an_entry_that_cannot_be_removed_turns_the_cache_off(world: World) -> None:
    await world.store.put(KEY, BODY)
    cache = world.cache()
    await cache.get(KEY)
    (meta,) = world.files(".meta")
    meta.unlink()
    meta.mkdir()
    await cache.delete(KEY)
    assert cache.cache is not None
    assert cache.cache.off
    assert cache.stats.failures == 2  # before the delete and after it
    with pytest.raises(NotFound):
        await cache.get(KEY)


async def test_a_ledger_held_by_another_process_is_not_waited_for(world: World) -> None:
    keys = await fill(world, 2)
    cache = world.cache()
    await cache.get(keys[0])
    with next(world.folder.rglob("ledger")).open("r+") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        assert (await cache.get(keys[1])).body.startswith(b"fixed/001")
    assert cache.stats.skipped == 1
    assert cache.stats.failures == 0
