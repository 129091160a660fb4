"""A key that is an object and a folder too: how it becomes one, while others look on, and after a mover was killed."""

import asyncio
import os
from pathlib import Path

from holdfast.objects.local import LocalStore
from holdfast.objects.local.files import Folder
from holdfast.objects.local.locks import renaming
from holdfast.objects.store import CREATE, IfMatch, Lost, Written, content_version
from tests.unit.objects.local.local_kit import contents, files, keys, locks


async def test_moving_keeps_version_and_time_and_a_writer_ends_what_a_killed_mover_began(
    store: LocalStore, root: Path
) -> None:
    """What a mover leaves that is killed at any point is shown by the tests of processes that are killed."""
    await store.put("a", b"1")
    before = await store.head("a")
    await store.put("a/b", b"2")
    assert await store.head("a") == before
    (root / "%moving").mkdir()
    (root / "a/%self").rename(root / "%moving/a")
    assert await store.head("a") == before
    assert await contents(store) == {"a": b"1", "a/b": b"2"}
    assert await store.put("a", b"3", CREATE) == Lost()
    assert isinstance(await store.put("a", b"3", IfMatch(content_version(b"1"))), Written)
    assert (root / "a/%self").read_bytes() == b"3"
    assert not (root / "%moving").exists()


async def test_a_lost_race_moves_nothing(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    assert await store.put("a/b", b"2", IfMatch(content_version(b"1"))) == Lost()
    assert (root / "a").is_file()


async def test_a_listing_waits_for_a_mover(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    with Folder.at(os.fsencode(root)) as folder, renaming(folder):
        (root / "a").rename(root.parent / "out of sight")
        listing = asyncio.create_task(keys(store))
        await asyncio.sleep(0.05)  # time enough for a listing that does not wait
        (root / "a").mkdir()
        (root.parent / "out of sight").rename(root / "a/%self")
    assert await listing == ["a"]


async def test_a_condition_is_compared_under_the_lock(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    with locks(root).writing((b"a",)):
        rival = asyncio.create_task(store.put("a", b"2", IfMatch(content_version(b"1"))))
        await asyncio.sleep(0.05)  # time enough for a writer that does not wait
        (root / "a").write_bytes(b"3")
    assert await rival == Lost()
    assert (root / "a").read_bytes() == b"3"


async def test_readers_and_listings_never_miss_an_object_that_moves(store: LocalStore, root: Path) -> None:
    rounds, readers = 60, 3
    there = ["first"]
    await store.put("first", b"body")

    async def write() -> None:
        for number in range(rounds):
            await store.put(f"k{number}", b"body")
            there.append(f"k{number}")
            await store.put(f"k{number}/child", b"")

    async def read(reader: LocalStore) -> None:
        while not writer.done():
            for key in there[-3:]:
                assert (await reader.get(key)).body == b"body"

    async def watch(reader: LocalStore) -> None:
        while not writer.done():
            before = set(there)
            assert before <= set(await keys(reader))

    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(write())
        for _ in range(readers):
            tasks.create_task(read(LocalStore(root)))
        tasks.create_task(watch(LocalStore(root)))
    assert len(await contents(store)) == 2 * rounds + 1


async def test_folders_that_come_and_go_lose_no_write(store: LocalStore, root: Path) -> None:
    """Writers need the folders that deleters prune, and the names that others use as folders."""

    async def churn(tail: str) -> None:
        for number in range(60):
            key = f"x/{number % 2}{tail}"
            body = f"{tail} {number}".encode()
            assert isinstance(await store.put(key, body, CREATE), Written)
            assert (await store.get(key)).body == body
            await store.delete(key)

    async with asyncio.TaskGroup() as tasks:
        for tail in ("", "/b", "/b/c", "/d", "/b/c/e"):
            tasks.create_task(churn(tail))
    assert files(root) == []
