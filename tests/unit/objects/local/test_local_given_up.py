"""Writes that fail, race, or whose caller is gone: nothing is left behind, and nothing is said that is not so."""

import asyncio
import errno
import gc
import os
import stat
from pathlib import Path

import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.local import LocalStore
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Written, content_version
from tests.unit.objects.local.local_kit import contents, files, locks, staged


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_a_write_that_hangs_is_given_up_and_leaves_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a lock, as if the process that holds it were stopped."""
    monkeypatch.setattr("holdfast.base.aio.PATIENCE_SECONDS", 0.01)
    await store.put("a/0", b"")
    before = open_files()
    with locks(root).writing((b"a", b"b")):
        given_up = asyncio.ensure_future(store.put("a/b", b"mine", CREATE))
        while not staged(root):
            await asyncio.sleep(0.001)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert files(root) == ["a", "a/0"]
    del given_up
    while staged(root) or open_files() > before:
        await asyncio.sleep(0.001)
    assert await contents(store) == {"a/0": b"", "a/b": b"mine"}


@pytest.mark.parametrize("mode", [OVERWRITE, CREATE], ids=["overwrite", "create"])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
async def test_a_write_that_fails_leaves_nothing(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, call: str
) -> None:
    await store.put("x/warm", b"")
    before = open_files()
    function = getattr(os, call)

    def full(target: int | bytes, *args: object, **named: object) -> object:
        if isinstance(target, int) and stat.S_ISDIR(os.fstat(target).st_mode):
            return function(target, *args, **named)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(Unavailable, match="No space left"):
            await store.put("x/y/z/a", b"1", mode)
    assert files(root) == ["x", "x/warm"]
    assert staged(root) == []
    await store.close()
    assert open_files() <= before
    assert isinstance(await store.put("x/y/z/a", b"1", CREATE), Written)


async def test_an_fsync_that_failed_is_not_tried_again(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system reports lost writes once: a second fsync of the same file would succeed, and prove nothing."""
    await store.put("a", b"old")
    tried: list[int] = []

    def fail(descriptor: int) -> None:
        tried.append(os.fstat(descriptor).st_ino)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Unavailable, match="Input/output error"):
        await store.put("a", b"new")
    assert len(tried) == 1
    assert await contents(store) == {"a": b"old"}


async def test_a_directory_whose_name_could_not_be_fsynced_is_fsynced_by_the_next_writer(
    store: LocalStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("warm", b"")
    fsync, number, synced = os.fsync, root.stat().st_ino, list[int]()

    def fail(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == number:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(Unavailable, match="Input/output error"):
        await store.put("x/1", b"1", CREATE)
    monkeypatch.setattr(os, "fsync", noted)
    assert isinstance(await store.put("x/2", b"2", CREATE), Written)
    assert number in synced


async def test_an_object_that_moves_is_not_created_a_second_time(store: LocalStore, root: Path) -> None:
    """Its plain name is free for a moment, while its mover holds the lock of its path."""
    await store.put("warm", b"")
    with locks(root).writing((b"a",)):
        rival = asyncio.create_task(store.put("a", b"ours", CREATE))
        while not staged(root):
            await asyncio.sleep(0.001)
        (root / "%moving").mkdir()
        (root / "%moving/a").write_bytes(b"theirs")
    assert await rival == Lost()
    assert (await store.get("a")).body == b"theirs"
    assert files(root) == ["a", "a/%self", "warm"]


async def test_a_store_works_on_either_side_of_a_fork(store: LocalStore, root: Path) -> None:
    async def work(name: str) -> bool:
        found = [await store.put(f"x/{name}/{number}", b"", CREATE) for number in range(5)]
        version = content_version(b"")
        return all(outcome == Written(version) for outcome in found) and (await store.get("x/a")).body == b"1"

    await store.put("x/a", b"1")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if asyncio.run(work("child")) else 1
        finally:
            os._exit(status)
    assert await work("parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(await contents(store)) == 11
