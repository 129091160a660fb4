"""Writers of one folder have it forced to disk together; none is answered before that, or without it."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.errors import Ambiguous
from holdfast.objects.local import LocalStore
from holdfast.objects.local.files import OpenFolder
from holdfast.objects.local.syncs import Syncs, all_safe
from holdfast.objects.store import CREATE, Lost, Written
from tests.unit.objects.local_kit import wishes

pytestmark = pytest.mark.usefixtures("forced_by_threads")


class Disk:
    """Forcing a folder to disk takes as long as the test says, and may fail."""

    def __init__(self) -> None:
        self.rounds = 0
        self.begun = threading.Semaphore(0)
        self.allowed = threading.Semaphore(0)
        self.broken = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        fsync = os.fsync

        def slowly(descriptor: int) -> None:
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                self.rounds += 1
                self.begun.release()
                if not self.allowed.acquire(timeout=60):
                    raise TimeoutError
                if self.broken:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            fsync(descriptor)

        monkeypatch.setattr(os, "fsync", slowly)

    async def wait(self) -> None:
        """Until a folder is being forced to disk that was not before."""
        while not self.begun.acquire(blocking=False):
            await asyncio.sleep(0.001)

    def release(self) -> None:
        self.allowed.release()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    disk = Disk()
    disk.install(monkeypatch)
    yield disk
    for _ in range(100):
        disk.release()


Writing = asyncio.Task[Written | Lost]


def write(store: LocalStore, *keys: str) -> list[Writing]:
    return [asyncio.ensure_future(store.put(key, key.encode(), CREATE)) for key in keys]


async def placed(root: Path, *keys: str) -> None:
    while not all((root / key).exists() for key in keys):
        await asyncio.sleep(0.001)


async def begin(store: LocalStore, root: Path, disk: Disk) -> tuple[Writing, list[Writing]]:
    """One writer that forces the folder to disk, and three that came meanwhile."""
    for _ in range(8):
        disk.release()
    await store.put("a/0", b"")
    while disk.allowed.acquire(blocking=False):
        pass
    while disk.begun.acquire(blocking=False):
        pass
    disk.rounds = 0
    (first,) = write(store, "a/1")
    await disk.wait()
    others = write(store, "a/2", "a/3", "a/4")
    await placed(root, "a/2", "a/3", "a/4")
    while wishes(store) < 3:
        await asyncio.sleep(0.001)
    return first, others


async def test_those_who_come_meanwhile_are_safe_with_the_next_round(tmp_path: Path, disk: Disk) -> None:
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    disk.release()
    assert isinstance(await first, Written)  # and does not wait for the others
    await disk.wait()
    assert not any(other.done() for other in others)
    disk.release()
    assert all(isinstance(outcome, Written) for outcome in await asyncio.gather(*others))
    assert disk.rounds == 2
    assert not any(each.rounds for each in store._root.writable().syncs._loops.values())


async def test_losers_are_answered_together_too(tmp_path: Path, disk: Disk) -> None:
    """Not before what they lost to is safe."""
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    losers = write(store, "a/1", "a/2", "a/3")
    while wishes(store) < 6:
        await asyncio.sleep(0.001)
    disk.release()
    await disk.wait()
    assert not any(loser.done() for loser in losers)
    disk.release()
    assert await asyncio.gather(*losers) == [Lost(), Lost(), Lost()]
    await asyncio.gather(first, *others)
    assert disk.rounds == 2


async def test_nobody_is_told_of_success_whose_round_failed(tmp_path: Path, disk: Disk) -> None:
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    disk.release()
    await disk.wait()
    await first
    disk.broken = True
    disk.release()
    for key, other in zip(("a/2", "a/3", "a/4"), others, strict=True):
        with pytest.raises(Ambiguous, match=f"put {key}: .*gone after a power cut"):
            await other


async def test_a_failure_is_that_of_all_who_wait(tmp_path: Path, disk: Disk) -> None:
    """The system tells of it once. What it could not write it has forgotten, and forcing once more may succeed."""
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    disk.broken = True
    disk.release()
    for key, writer in zip(("a/1", "a/2", "a/3", "a/4"), (first, *others), strict=True):
        with pytest.raises(Ambiguous, match=f"put {key}: .*gone after a power cut"):
            await writer
    assert disk.rounds == 1
    disk.broken = False
    disk.release()
    assert isinstance(await store.put("a/5", b"", CREATE), Written)


async def test_a_cancelled_writer_waits_until_its_folder_is_safe(tmp_path: Path, disk: Disk) -> None:
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    others[0].cancel()
    await asyncio.sleep(0)
    disk.release()
    await disk.wait()
    assert not others[0].done()
    disk.release()
    with pytest.raises(asyncio.CancelledError):
        await others[0]
    await asyncio.gather(first, *others[1:])


async def test_other_folders_do_not_wait(tmp_path: Path, disk: Disk) -> None:
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    elsewhere = asyncio.ensure_future(store.put("warm", b""))
    await disk.wait()
    assert disk.rounds == 2  # both at the same time
    for _ in range(3):
        disk.release()
    await asyncio.gather(first, *others, elsewhere)


def forcing(syncs: Syncs, folder: Path) -> "asyncio.Future[None]":
    path = os.fsencode(folder)
    return syncs.folder(path, OpenFolder(path))


async def test_a_folder_that_was_made_again_is_another_one(tmp_path: Path, disk: Disk) -> None:
    syncs, folder = Syncs(), tmp_path / "f"
    folder.mkdir()
    first = forcing(syncs, folder)
    await disk.wait()
    folder.rmdir()
    (tmp_path / "takes the number").mkdir()
    folder.mkdir()
    second = forcing(syncs, folder)
    await disk.wait()  # does not wait for the first
    disk.release()
    disk.release()
    await asyncio.gather(first, second)
    assert disk.rounds == 2


def test_another_loop_does_not_wait_for_one_that_has_ended(tmp_path: Path, disk: Disk) -> None:
    """Nor does a forked child wait for the loop of its parent, which it cannot run."""
    syncs = Syncs()

    async def leave() -> None:
        for _ in range(2):
            forcing(syncs, tmp_path)
        await disk.wait()
        disk.release()

    async def force() -> None:
        disk.release()
        disk.release()
        await forcing(syncs, tmp_path)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    asyncio.run(force())
    assert disk.rounds == 2
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def test_who_is_gone_is_not_told(tmp_path: Path, disk: Disk) -> None:
    syncs = Syncs()
    wish = forcing(syncs, tmp_path)
    await disk.wait()
    wish.cancel()
    other = forcing(syncs, tmp_path)
    disk.release()
    disk.release()
    await other
    assert wish.cancelled()
    assert disk.rounds == 2


async def test_the_first_failure_is_told_when_all_have_ended() -> None:
    wishes = [asyncio.get_running_loop().create_future() for _ in range(3)]
    waiting = asyncio.ensure_future(all_safe(wishes))
    wishes[0].set_exception(OSError("first"))
    wishes[1].set_exception(OSError("second"))
    await asyncio.sleep(0)
    assert not waiting.done()
    wishes[2].set_result(None)
    with pytest.raises(OSError, match="first"):
        await waiting


async def test_who_is_cancelled_leaves_no_wish_behind() -> None:
    """It would fail with nobody to look at it: its file is closed."""
    wishes = [asyncio.get_running_loop().create_future() for _ in range(3)]
    waiting = asyncio.ensure_future(all_safe(wishes))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert [wish.cancelled() for wish in wishes] == [True] * 3
