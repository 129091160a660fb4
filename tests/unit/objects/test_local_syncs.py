"""Writers of one folder have it forced to disk together; none is answered before that, or without it."""

import asyncio
import errno
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base.crew import Later
from holdfast.base.errors import Ambiguous
from holdfast.objects.local import LocalStore
from holdfast.objects.local.errors import Explained
from holdfast.objects.local.files import OpenFolder
from holdfast.objects.local.syncs import Syncs
from holdfast.objects.store import CREATE, Lost, Written


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
    while sum(len(leader.wishes) for leader in store._syncs._leaders.values()) < 3:
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
    assert store._syncs._leaders == {}


async def test_losers_are_answered_together_too(tmp_path: Path, disk: Disk) -> None:
    """Not before what they lost to is safe."""
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    losers = write(store, "a/1", "a/2", "a/3")
    while sum(len(leader.wishes) for leader in store._syncs._leaders.values()) < 6:
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


async def test_a_leader_that_fails_still_leads_the_others(tmp_path: Path, disk: Disk) -> None:
    store = LocalStore(tmp_path)
    first, others = await begin(store, tmp_path, disk)
    disk.broken = True
    disk.release()
    await disk.wait()
    disk.broken = False
    disk.release()
    assert all(isinstance(outcome, Written) for outcome in await asyncio.gather(*others))
    with pytest.raises(Ambiguous, match="put a/1"):
        await first


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


def leading(syncs: Syncs[int], folder: Path, disk: Disk) -> threading.Thread:
    path = os.fsencode(folder)
    work = threading.Thread(target=syncs.force, args=(path, OpenFolder(path), 1, Explained("put", path)))
    work.start()
    disk.begun.acquire()
    return work


def test_a_folder_that_was_made_again_is_another_one(tmp_path: Path, disk: Disk) -> None:
    syncs, folder = Syncs[int](), tmp_path / "f"
    folder.mkdir()
    path = os.fsencode(folder)
    work = leading(syncs, folder, disk)
    folder.rmdir()
    (tmp_path / "takes the number").mkdir()
    folder.mkdir()
    disk.release()
    disk.release()
    assert syncs.force(path, OpenFolder(path), 2, Explained("put", path)) == 2
    work.join()
    assert disk.rounds == 2


def test_a_forked_child_does_not_wait_for_a_thread_that_is_not_there(tmp_path: Path, disk: Disk) -> None:
    syncs, path = Syncs[int](), os.fsencode(tmp_path)
    work = leading(syncs, tmp_path, disk)
    assert isinstance(syncs.force(path, OpenFolder(path), 2, Explained("put", path)), Later)
    child = Syncs[int]()
    child._leaders, child._process = dict(syncs._leaders), -1  # as a child finds it
    for _ in range(3):
        disk.release()
    assert child.force(path, OpenFolder(path), 3, Explained("put", path)) == 3
    work.join()
