"""The local store: files and objects, the order of fsyncs and renames, conditions, and moves to make room.

What every store must do is in the laws.
"""

import asyncio
import errno
import os
import shutil
import stat
from collections.abc import Awaitable
from pathlib import Path

import pytest

from holdfast.base.errors import Ambiguous, Invalid, Unavailable
from holdfast.objects.local import LocalStore
from holdfast.objects.local import store as local
from holdfast.objects.local.files import Directory, Staged
from holdfast.objects.local.locks import renaming
from holdfast.objects.local.tree import DurableDirectories
from holdfast.objects.open import open_store
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    Entry,
    IfMatch,
    Lost,
    Mode,
    Object,
    Page,
    Written,
    content_version,
)
from tests.unit.objects.local.local_kit import contents, files, keys, locks, staged


async def test_a_file_that_was_copied_in_is_an_object_and_an_object_is_a_file(store: LocalStore, root: Path) -> None:
    assert await store.find("a") is None
    assert [page async for page in store.list()] == [Page(())]
    assert not root.exists(), "reading makes nothing"
    (root / "notes").mkdir(parents=True)
    (root / "notes/today.md").write_bytes(b"hello")
    os.utime(root / "notes/today.md", ns=(5, 7))
    found = await store.get("notes/today.md")
    assert found == Object("notes/today.md", b"hello", 7, content_version(b"hello"))
    assert [page async for page in store.list()] == [Page((Entry("notes/today.md", 5, 7),))]
    assert await store.link("notes/today.md", root.parent / "linked") == 5
    assert isinstance(await store.put("notes/today.md", b"bye", IfMatch(found.version)), Written)
    assert (root / "notes/today.md").read_bytes() == b"bye"
    assert (root.parent / "linked").read_bytes() == b"hello"


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", ".", "a/../b", "a\nb", "x" * 1025, "\ud800"])
async def test_keys_are_checked(store: LocalStore, root: Path, key: str) -> None:
    for call in (store.get(key), store.head(key), store.put(key, b""), store.delete(key), store.range(key, 0, 1)):
        with pytest.raises(Invalid):
            await call
    assert not root.exists()


@pytest.mark.parametrize(("count", "pages"), [(0, [0]), (6, [3, 3]), (7, [3, 3, 1])])
async def test_pages_are_full_and_only_a_first_page_is_empty(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, count: int, pages: list[int]
) -> None:
    monkeypatch.setattr(local, "PAGE_SIZE", 3)
    for number in range(count):
        await store.put(f"many/{number}", b"")
    assert [len(page.entries) async for page in store.list("many/")] == pages


async def test_files_that_are_no_objects_are_not_listed(store: LocalStore, root: Path) -> None:
    await store.put("a/b", b"")
    (root / "a/50%").touch()
    (root / "a/%self").mkdir()
    os.mkfifo(root / "a/pipe")
    os.close(os.open(os.fsencode(root) + b"/a/\xff", os.O_CREAT))
    assert await keys(store) == ["a/b"]
    for key in ("a/pipe", "a"):
        assert await store.find(key) is None


class Steps:
    """The system calls that make a write durable, in their order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        fsync, rename = os.fsync, os.rename

        def recorded_fsync(descriptor: int) -> None:
            fsync(descriptor)
            path = Path(f"/proc/self/fd/{descriptor}").readlink().relative_to(root)
            self.calls.append("sync staged" if path.is_relative_to(".%holdfast/staging") else f"sync {path}")

        def recorded_rename(old: bytes, new: bytes, *, src_dir_fd: int, dst_dir_fd: int) -> None:
            rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            folder = Path(f"/proc/self/fd/{dst_dir_fd}").readlink()
            self.calls.append(f"rename to {(folder / os.fsdecode(new)).relative_to(root)}")

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "rename", recorded_rename)

    async def of(self, call: Awaitable[object]) -> list[str]:
        self.calls.clear()
        await call
        return self.calls


async def test_an_acknowledged_write_is_on_disk(store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await store.put("warm", b"")
    steps = Steps(root, monkeypatch)
    if_one = IfMatch(content_version(b"1"))
    move = ["rename to x/%moving/y", "rename to x/y/%self", "sync x/y", "sync x"]
    assert await steps.of(store.put("x/y", b"1")) == ["sync staged", "sync .", "rename to x/y", "sync x"]
    assert await steps.of(store.put("x/z", b"1", CREATE)) == ["sync staged", "rename to x/z", "sync x"]
    assert await steps.of(store.put("x/y", b"2", if_one)) == ["sync staged", "rename to x/y", "sync x"]
    moved = ["sync staged", *move, "sync x", "rename to x/y/z", "sync x/y"]
    assert await steps.of(store.put("x/y/z", b"3")) == moved
    assert await steps.of(store.delete("x/y/z")) == ["sync x/y"]
    assert await steps.of(store.delete_many(["x/y", "x/z"])) == ["sync ."]
    assert await steps.of(store.delete("x/y")) == ["sync ."]


async def test_a_lost_race_is_answered_when_the_winner_is_on_disk(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner may have been killed before it fsynced the directories, or not have come to it yet."""
    await store.put("warm", b"")
    (root / "x/y").mkdir(parents=True)
    (root / "x/y/z").write_bytes(b"theirs")
    steps = Steps(root, monkeypatch)
    assert await steps.of(store.put("x/y/z", b"", CREATE)) == ["sync .", "sync x", "sync x/y/z", "sync x/y"]
    assert await steps.of(store.put("x/y/z", b"", ADDRESSED)) == ["sync x/y/z", "sync x/y"]
    other = IfMatch(content_version(b"another"))
    assert await steps.of(store.put("x/y/z", b"", other)) == ["sync staged", "sync x/y/z", "sync x/y"]
    await store.put("x/y/z/inner", b"")
    assert await steps.of(store.put("x/y/z", b"", CREATE)) == ["sync staged", "sync x/y/z/%self", "sync x/y/z"]
    # The winner was a delete.
    assert await steps.of(store.put("x/y/none", b"", other)) == ["sync staged", "sync x/y"]
    assert await steps.of(store.put("x/none/none", b"", other)) == ["sync staged", "sync x"]


async def test_a_directory_that_was_made_again_is_fsynced_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same path as the one before, and often the same inode number."""
    await store.put("x/a", b"")
    other = LocalStore(root)
    await other.put("warm", b"")
    steps = Steps(root, monkeypatch)
    for _ in range(20):
        await other.delete("x/a")
        (root / "x").mkdir()
        assert await steps.of(store.put("x/a", b"")) == ["sync .", "sync staged", "rename to x/a", "sync x"]


async def test_a_directory_may_be_removed_while_a_file_is_staged(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then an if-match has lost, and the directory's removal is then on disk; other writes make the directory again."""
    await store.put("warm", b"")
    sync = Staged.sync

    def remove_directory_and_sync(file: Staged) -> None:
        shutil.rmtree(root / "x")
        sync(file)

    monkeypatch.setattr(Staged, "sync", remove_directory_and_sync)
    steps = Steps(root, monkeypatch)
    cases: list[tuple[str, Mode, list[str]]] = [
        ("x/a", IfMatch(content_version(b"1")), ["sync staged", "sync ."]),
        ("x/b", CREATE, ["sync .", "rename to x/b", "sync x"]),
    ]
    for key, mode, end in cases:
        (root / "x").mkdir(exist_ok=True)
        (root / "x/a").write_bytes(b"1")
        assert (await steps.of(store.put(key, b"2", mode)))[-len(end) :] == end


async def test_few_directories_stay_open_and_none_after_the_end(store: LocalStore, root: Path) -> None:
    def descriptors() -> int:
        """Of files and directories of the store: the process may close others at any time."""
        paths = [str(each.readlink()) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
        return len([path for path in paths if path.startswith(str(root))])

    await store.put("a", b"")
    before = descriptors()
    for number in range(DurableDirectories.MOST + 10):
        await store.put(f"{number}/a", b"")
    assert descriptors() == before + DurableDirectories.MOST
    await store.close()
    assert descriptors() < before


@pytest.mark.parametrize("mode", [OVERWRITE, CREATE, IfMatch(content_version(b"1"))], ids=["overwrite", "create", "if"])
async def test_a_write_whose_directory_cannot_be_fsynced_is_ambiguous(
    root: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """The client must not settle it by reading back: the page cache would show the write."""
    async with open_store(f"file:{root}") as store:
        await store.put("other" if mode is CREATE else "key", b"1")
        fsync = os.fsync

        def fail_for_directories(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", fail_for_directories)
        with pytest.raises(Ambiguous, match="lost after a power failure"):
            await store.put("key", b"2", mode)
        with pytest.raises(Unavailable, match="Input/output error"):
            await store.put("key", b"2", CREATE)
        monkeypatch.setattr(os, "fsync", fsync)
        assert isinstance(await store.put("key", b"2", CREATE), Written)


async def test_a_removed_root_is_made_again(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    root.rename(root.with_name("elsewhere"))
    assert await store.find("a") is None
    assert isinstance(await store.put("a", b"2", CREATE), Written)
    assert (root / "a").read_bytes() == b"2"


async def test_a_condition_is_compared_under_the_lock(store: LocalStore, root: Path) -> None:
    """Also that of a create whose plain name is free because another process is moving the object."""
    await store.put("a", b"1")
    with locks(root).writing((b"a",)), locks(root).writing((b"b",)):
        update = asyncio.create_task(store.put("a", b"2", IfMatch(content_version(b"1"))))
        create = asyncio.create_task(store.put("b", b"ours", CREATE))
        while len(staged(root)) < 2:
            await asyncio.sleep(0.001)
        (root / "a").write_bytes(b"3")
        (root / "%moving").mkdir()
        (root / "%moving/b").write_bytes(b"theirs")
    assert [await update, await create] == [Lost(), Lost()]
    assert await contents(store) == {"a": b"3", "b": b"theirs"}
    assert files(root) == ["a", "b", "b/%self"]


# --- an object whose key is also a prefix ---


async def test_a_moved_object_keeps_version_and_time_and_a_writer_completes_a_move(
    store: LocalStore, root: Path
) -> None:
    """Where a process that is killed during a move leaves the object is tested with processes that are killed."""
    await store.put("a", b"1")
    before = await store.head("a")
    assert await store.put("a/b", b"2", IfMatch(before.version)) == Lost()
    assert (root / "a").is_file(), "a lost race moves nothing"
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


async def test_a_listing_waits_for_a_move(store: LocalStore, root: Path) -> None:
    await store.put("a", b"1")
    with Directory.at(os.fsencode(root)) as directory, renaming(directory):
        (root / "a").rename(root.parent / "moving")
        listing = asyncio.create_task(keys(store))
        await asyncio.sleep(0.05)  # time enough for a listing that does not wait
        (root / "a").mkdir()
        (root.parent / "moving").rename(root / "a/%self")
    assert await listing == ["a"]


async def test_readers_and_listings_never_miss_an_object_that_moves(store: LocalStore, root: Path) -> None:
    rounds, readers = 60, 3
    written = ["first"]
    await store.put("first", b"body")

    async def write() -> None:
        for number in range(rounds):
            await store.put(f"k{number}", b"body")
            written.append(f"k{number}")
            await store.put(f"k{number}/child", b"")

    async def read(reader: LocalStore) -> None:
        while not writer.done():
            for key in written[-3:]:
                assert (await reader.get(key)).body == b"body"

    async def watch(reader: LocalStore) -> None:
        while not writer.done():
            before = set(written)
            assert before <= set(await keys(reader))

    async with asyncio.TaskGroup() as tasks:
        writer = tasks.create_task(write())
        for _ in range(readers):
            tasks.create_task(read(LocalStore(root)))
        tasks.create_task(watch(LocalStore(root)))
    assert len(await contents(store)) == 2 * rounds + 1


async def test_writers_and_deleters_of_the_same_directories_lose_no_write(store: LocalStore, root: Path) -> None:
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
