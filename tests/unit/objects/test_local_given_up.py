"""Writes whose task or loop is gone, or for which too many files are open: nothing stays open, nobody is hurt."""

import asyncio
import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from holdfast.base.errors import Ambiguous
from holdfast.objects.local import LocalStore
from holdfast.objects.local import store as store_module
from holdfast.objects.local.files import OpenFolder
from holdfast.objects.local.locks import Locks
from holdfast.objects.local.syncs import Syncs
from holdfast.objects.local.writing import AT_ONCE_BYTES, Write
from holdfast.objects.store import CREATE, Version, Written, content_version
from tests.unit.objects.local_kit import files


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def open_files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def cancel_all() -> None:
    """As a loop does that is about to end: what a caller's cancellation spares is cancelled too."""
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()


async def test_a_write_that_is_given_up_names_no_file_of_somebody_else(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a lock in a thread, while its files are closed and their numbers given to others."""
    monkeypatch.setattr("holdfast.base.aio.PATIENCE_SECONDS", 0.05)
    await store.put("other/0", b"")
    with Locks(os.fsencode(tmp_path / ".%holdfast/locks")).writing((b"a", b"b")):
        given_up = asyncio.ensure_future(store.put("a/b", b"mine", CREATE))
        await asyncio.sleep(0.2)
        cancel_all()
        await asyncio.wait([given_up])
        others = [os.open(tmp_path / "other", how) for how in (os.O_DIRECTORY, os.O_WRONLY | os.O_TMPFILE)]
    await asyncio.sleep(0.2)
    for descriptor in others:
        os.close(descriptor)
    assert files(tmp_path / "other") == ["0"]


async def test_what_a_thread_opens_for_a_write_that_is_given_up_is_closed(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a/0", b"", CREATE)
    before, opened, go_on = open_files(), threading.Event(), threading.Event()
    begin = Write.begin

    def slowly(write: Write, body: bytes) -> bool:
        begun = begin(write, body)
        opened.set()
        go_on.wait(60)
        return begun

    monkeypatch.setattr(Write, "begin", slowly)
    given_up = asyncio.ensure_future(store.put("a/1", bytes(AT_ONCE_BYTES + 1), CREATE))
    while not opened.is_set():
        await asyncio.sleep(0.001)
    cancel_all()
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.wait([given_up])
    del given_up
    await asyncio.sleep(0.2)  # the thread lets go of it
    assert open_files() <= before
    assert files(tmp_path / "a") == ["0"]


async def test_a_folder_is_closed_although_those_above_it_cannot_be_opened(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put("a/0", b"", CREATE)
    before = open_files()

    def refuse(write: Write, folder: object, device: int) -> object:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(Write, "_above", refuse)
    store._root.writable().syncs.writers += 1  # somebody else, with whom folders are forced to disk on the loop
    with pytest.raises(Ambiguous) as kept:
        await store.put("a/1", b"")
    await asyncio.sleep(0.2)
    assert open_files() <= before
    assert kept.value.__cause__ is not None  # whose traceback knows the folder


def test_a_loop_that_is_closed_while_folders_are_forced_leaves_none_open(tmp_path: Path) -> None:
    syncs, path = Syncs(), os.fsencode(tmp_path)

    async def begin(wishes: int) -> list["asyncio.Future[None]"]:
        return [syncs.folder(path, OpenFolder(path)) for _ in range(wishes)]

    def use(wishes: int) -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin(wishes))
        loop.run_until_complete(loop.shutdown_default_executor())  # where threads force
        loop.close()

    use(1)
    before = open_files()
    for _ in range(20):
        use(2)
    assert open_files() < before + 20  # rings of the last loops may stay until another one is made


async def test_a_large_body_is_hashed_off_the_loop(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed_by: list[threading.Thread] = []

    def noted(body: bytes) -> Version:
        hashed_by.append(threading.current_thread())
        return content_version(body)

    monkeypatch.setattr(store_module, "content_version", noted)
    body = bytes(AT_ONCE_BYTES + 1)
    assert await store.put("large", body, CREATE) == Written(content_version(body))
    assert len(hashed_by) == 1
    assert threading.main_thread() not in hashed_by
