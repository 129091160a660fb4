"""Bytes that go to disk before their object is asked for: unseen until then, and gone if nobody asks."""

import asyncio
import errno
import os
import threading
import time
from pathlib import Path

import pytest

from holdfast.base import disk
from holdfast.base.errors import Unavailable
from holdfast.base.ring import Ended
from holdfast.objects import open as open_store
from holdfast.objects.local import LocalStore
from holdfast.objects.local import files as local_files
from holdfast.objects.local.files import OpenFolder
from holdfast.objects.local.tree import Tree
from holdfast.objects.local.writing import AT_ONCE_BYTES
from holdfast.objects.memory import content_version
from holdfast.objects.scoped import Scoped
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Written
from tests.unit.objects.local_kit import files, open_below, staged


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    """In which one object is there."""
    made = LocalStore(tmp_path)
    made._root.writable()
    (tmp_path / "there").touch()
    return made


async def cleared(store: LocalStore, root: Path) -> None:
    """Until there is nothing again but what was there: folders are removed by a thread that nobody waits for."""
    new = store._root.writable().fresh._makers
    deadline = time.monotonic() + 30
    while (new or files(root) != ["there"] or await open_below(root)) and time.monotonic() < deadline:
        await asyncio.sleep(0.005)
    assert files(root) == ["there"]
    assert not new
    assert await open_below(root) == 0


class Forced:
    """How often files and folders are forced to disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        force = disk.force

        def noted(descriptor: int, ended: Ended) -> None:
            self.times += 1
            force(descriptor, ended)

        monkeypatch.setattr(disk, "force", noted)


async def test_of_its_write_only_the_name_is_left(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced = Forced(monkeypatch)
    with store.ahead("new/a", b"1"):
        assert not (tmp_path / "new/a").exists()
        assert forced.times == 2  # the bytes, and the name of the folder
        assert await store.put("new/a", b"1", CREATE) == Written(content_version(b"1"))
        assert forced.times == 4  # the name, and the file once more
    assert (tmp_path / "new/a").read_bytes() == b"1"
    assert await open_below(tmp_path) == 0


async def test_the_disk_goes_to_work_at_once(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is ahead computes something next, for which the loop waits."""
    forced, hurried = Forced(monkeypatch), []
    monkeypatch.setattr(disk, "hurry", lambda: hurried.append(forced.times))
    with store.ahead("new/a", b"1"):
        assert hurried == [2]
        assert isinstance(await store.put("new/a", b"1", CREATE), Written)


@pytest.mark.parametrize("mode", [CREATE, ADDRESSED])
async def test_other_bytes_are_written_as_ever(store: LocalStore, tmp_path: Path, mode: object) -> None:
    with store.ahead("a", b"1"):
        assert isinstance(await store.put("a", b"2", mode), Written)  # type: ignore[arg-type]  # one of them
        assert await store.put("a", b"1", CREATE) == Lost()
    assert (tmp_path / "a").read_bytes() == b"2"
    assert await open_below(tmp_path) == 0


async def test_an_unconditional_write_takes_no_notice(store: LocalStore, tmp_path: Path) -> None:
    with store.ahead("there", b"1"), store.ahead("b", b"1"):
        assert isinstance(await store.put("there", b"1", OVERWRITE), Written)
        assert isinstance(await store.put("b", b"1", OVERWRITE), Written)
    assert files(tmp_path) == ["b", "there"]


async def test_what_nobody_asks_for_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    with store.ahead("new/folder/a", b"1"):
        await asyncio.sleep(0)
    await cleared(store, tmp_path)
    assert staged(tmp_path) == []
    assert await open_below(tmp_path) == 0


async def test_who_is_cancelled_leaves_nothing(store: LocalStore, tmp_path: Path) -> None:
    async def never() -> None:
        with store.ahead("new/a", b"1"):
            await asyncio.Event().wait()

    waiting = asyncio.ensure_future(never())
    await asyncio.sleep(0.02)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await cleared(store, tmp_path)
    assert await open_below(tmp_path) == 0


def test_what_a_loop_has_left_is_no_hindrance(store: LocalStore, tmp_path: Path) -> None:
    async def begin() -> None:
        store.ahead("new/a", b"1").__enter__()

    async def create() -> Written | Lost:
        with store.ahead("new/a", b"1"):
            return await store.put("new/a", b"1", CREATE)

    asyncio.run(begin())
    assert isinstance(asyncio.run(create()), Written)
    assert isinstance(asyncio.run(store.put("new/b", b"1", CREATE)), Written)


async def test_who_leaves_does_not_wait_for_a_disk_that_hangs(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(Tree, "give_up", lambda _tree, _made: go_on.wait(60))
    async with asyncio.timeout(5):
        with store.ahead("new/a", b"1"):
            await asyncio.sleep(0)
    go_on.set()
    assert files(tmp_path) == ["new", "there"]


async def test_another_loop_writes_by_itself(store: LocalStore, tmp_path: Path) -> None:
    with store.ahead("new/a", b"1"):
        elsewhere = asyncio.to_thread(lambda: asyncio.run(store.put("new/a", b"1", CREATE)))
        assert isinstance(await elsewhere, Written)
        assert await store.put("new/a", b"1", CREATE) == Lost()
    assert await open_below(tmp_path) == 0


async def test_one_of_two_is_first(store: LocalStore, tmp_path: Path) -> None:
    async def create() -> Written | Lost:
        with store.ahead("new/a", b"1"):
            await asyncio.sleep(0)
            return await store.put("new/a", b"1", CREATE)

    outcomes = await asyncio.gather(*(create() for _ in range(5)))
    assert sorted(map(type, outcomes), key=str) == [Lost] * 4 + [Written]
    assert await open_below(tmp_path) == 0


async def test_somebody_else_is_faster(store: LocalStore, tmp_path: Path) -> None:
    with store.ahead("new/a", b"1"):
        assert isinstance(await LocalStore(tmp_path).put("new/a", b"other", CREATE), Written)
        assert await store.put("new/a", b"1", CREATE) == Lost()
    assert (tmp_path / "new/a").read_bytes() == b"other"
    assert await open_below(tmp_path) == 0


async def test_what_is_in_the_way_is_found_when_it_is_asked_for(store: LocalStore, tmp_path: Path) -> None:
    await store.put("folder/a", b"", CREATE)
    with store.ahead("there", b"1"), store.ahead("folder", b"1"), store.ahead("there/below", b"1"):
        assert await store.put("there", b"1", CREATE) == Lost()
        assert isinstance(await store.put("folder", b"1", CREATE), Written)
        assert isinstance(await store.put("there/below", b"1", CREATE), Written)
    assert files(tmp_path) == ["folder", "folder/%self", "folder/a", "there", "there/%self", "there/below"]


async def test_a_large_body_and_a_new_store_are_not_begun(tmp_path: Path) -> None:
    store, body = LocalStore(tmp_path), bytes(AT_ONCE_BYTES + 1)
    with store.ahead("a", b"1"):
        assert files(tmp_path) == []
        assert isinstance(await store.put("a", b"1", CREATE), Written)
    with store.ahead("new/b", body):
        assert files(tmp_path) == ["a"]
        assert isinstance(await store.put("new/b", body, CREATE), Written)


async def test_a_failure_is_told_to_who_asks(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = local_files._write

    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(local_files, "_write", full)
    with store.ahead("new/a", b"1"), pytest.raises(Unavailable, match="make room"):
        await store.put("new/a", b"1", CREATE)
    await cleared(store, tmp_path)
    monkeypatch.setattr(local_files, "_write", write)
    monkeypatch.setattr(disk, "force", lambda _descriptor, ended: ended(OSError(errno.EIO, os.strerror(errno.EIO))))
    with store.ahead("new/a", b"1"), pytest.raises(Unavailable):
        await store.put("new/a", b"1", CREATE)
    with store.ahead("new/a", b"1"):
        pass  # nobody asks, and nobody complains
    await cleared(store, tmp_path)
    assert await open_below(tmp_path) == 0


async def test_it_goes_through_all_layers(tmp_path: Path) -> None:
    async with open_store(f"file:{tmp_path}") as store:
        await store.put("there", b"", CREATE)
        with Scoped(store, "scope/").ahead("a", b"1"):
            assert (tmp_path / "scope").is_dir()
            puts = store.usage.requests("put")
            assert isinstance(await Scoped(store, "scope/").put("a", b"1", CREATE), Written)
            assert store.usage.requests("put") == puts + 1
    async with open_store("memory:") as store:
        with store.ahead("a", b"1"):
            assert isinstance(await store.put("a", b"1", CREATE), Written)


async def test_a_folder_that_was_removed_says_nothing_about_its_filesystem(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "folder").mkdir()
    has = OpenFolder.has

    def removed(folder: OpenFolder, name: bytes) -> bool:
        monkeypatch.setattr(OpenFolder, "has", has)
        (tmp_path / "folder").rmdir()
        return False

    monkeypatch.setattr(OpenFolder, "has", removed)
    assert isinstance(await store.put("folder/a", b"1", CREATE), Written)
    assert store._root.writable().nameless
