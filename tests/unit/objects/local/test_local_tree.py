"""A key that is an object and a folder too: how it becomes one, while others look on, and after a mover was killed."""

import asyncio
import os
from pathlib import Path

import pytest

from holdfast.base.errors import Invalid
from holdfast.objects.local import LocalStore
from holdfast.objects.local.files import Folder
from holdfast.objects.local.locks import renaming
from holdfast.objects.store import CREATE, IfMatch, Lost, Written, content_version
from tests.unit.objects.local.local_kit import contents, files, keys, locks

LONG = "x" * 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> LocalStore:
    return LocalStore(root)


@pytest.mark.parametrize("name", ["a", "100%", LONG])
@pytest.mark.parametrize("prefix", ["", "x/y/"])
@pytest.mark.parametrize("order", [1, -1])
async def test_an_object_and_a_folder_share_a_name(store: LocalStore, prefix: str, name: str, order: int) -> None:
    wanted = {prefix + name + tail: tail.encode() for tail in ("", "/b", "/b/c", "/b/c/d")}
    for key in sorted(wanted)[::order]:
        assert await store.put(key, wanted[key], CREATE) == Written(content_version(wanted[key]))
    assert await contents(store) == wanted
    for key, body in wanted.items():
        assert await store.put(key, b"new", CREATE) == Lost()
        assert await store.put(key, b"new", IfMatch(content_version(body))) == Written(content_version(b"new"))
    assert set((await contents(store)).values()) == {b"new"}
    for key in sorted(wanted):
        await store.delete(key)
        assert await store.find(key) is None
        del wanted[key]
        assert (await contents(store)).keys() == wanted.keys()


async def test_moving_keeps_version_and_time(store: LocalStore) -> None:
    await store.put("a", b"1")
    before = await store.head("a")
    await store.put("a/b", b"2")
    assert await store.head("a") == before


async def test_a_lost_race_moves_nothing(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    assert await store.put("a/b", b"2", IfMatch(content_version(b"1"))) == Lost()
    assert (root / "a").is_file()


def killed_mover(root: Path, *, folder: bool) -> None:
    """The tree as a mover leaves it that dies between its two renames, before or after ``a/b`` has come by itself."""
    (root / "%moving").mkdir()
    (root / "a").rename(root / "%moving/a")
    if folder:
        (root / "a").mkdir()
        (root / "a/b").write_bytes(b"2")


after_a_killed_mover = pytest.mark.parametrize("folder", [False, True], ids=["alone", "beside a folder"])


@after_a_killed_mover
async def test_what_a_killed_mover_left_is_an_object_like_any_other(
    store: LocalStore, root: Path, folder: bool
) -> None:
    await store.put("a", b"1")
    killed_mover(root, folder=folder)
    assert await contents(store) == ({"a": b"1", "a/b": b"2"} if folder else {"a": b"1"})
    assert (await store.head("a")).size == 1
    assert (root / "%moving/a").exists()


@after_a_killed_mover
async def test_a_writer_ends_what_a_killed_mover_began(store: LocalStore, root: Path, folder: bool) -> None:
    await store.put("a", b"1")
    killed_mover(root, folder=folder)
    assert await store.put("a", b"3", CREATE) == Lost()
    assert isinstance(await store.put("a", b"3", IfMatch(content_version(b"1"))), Written)
    assert (root / "a/%self").read_bytes() == b"3"
    assert not (root / "%moving").exists()


@after_a_killed_mover
async def test_a_delete_ends_what_a_killed_mover_began(store: LocalStore, root: Path, folder: bool) -> None:
    await store.put("a", b"1")
    killed_mover(root, folder=folder)
    await store.delete("a")
    assert await contents(store) == ({"a/b": b"2"} if folder else {})
    await store.delete("a/b")
    assert files(root) == []


async def test_the_empty_folder_of_a_killed_mover_is_pruned(store: LocalStore, root: Path) -> None:
    await store.put("x/a/b", b"")
    (root / "x/%moving").mkdir()
    await store.delete("x/a/b")
    assert not (root / "x").exists()


async def test_a_link_in_the_way_is_left_alone(store: LocalStore, root: Path) -> None:
    root.mkdir()
    (root / "a").symlink_to("nowhere")
    with pytest.raises(Invalid, match="neither a file nor a directory"):
        await store.put("a/b", b"")
    assert (root / "a").is_symlink()


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
