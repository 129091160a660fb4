"""Files are forced to disk by the kernel's ring where there is one, else by threads; nobody sees which."""

import asyncio
import errno
import gc
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.base import disk, ring
from holdfast.base.ring import ENTRIES, Ring


def has_ring() -> bool:
    loop = asyncio.new_event_loop()
    try:
        Ring(loop).close()
    except OSError:
        return False
    finally:
        loop.close()
    return True


needs_ring = pytest.mark.skipif(not has_ring(), reason="this system has no io_uring, or does not allow it")


@pytest.fixture(params=[pytest.param(True, marks=needs_ring, id="ring"), pytest.param(False, id="threads")])
def rings(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(disk, "RINGS", request.param)
    return bool(request.param)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_CREAT | os.O_WRONLY)
    os.write(descriptor, b"bytes")
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have called ``os.fsync``."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        names.append(threading.current_thread().name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


async def forced(descriptor: int) -> OSError | None:
    ended: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    disk.force(descriptor, ended.set_result)
    return await ended


async def test_files_and_folders_are_forced(rings: bool, file: int, tmp_path: Path, synced: list[str]) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    assert [await forced(each) for each in (file, folder, file)] == [None, None, None]
    os.close(folder)
    assert len(synced) == (0 if rings else 3)
    assert threading.current_thread().name not in synced


async def test_what_goes_wrong_is_told(rings: bool) -> None:
    reading, writing = os.pipe()
    try:
        error = await forced(reading)
        assert error is not None
        assert (error.errno, error.strerror) == (errno.EINVAL, os.strerror(errno.EINVAL))
    finally:
        os.close(reading)
        os.close(writing)
    error = await forced(reading)
    assert error is not None
    assert error.errno == errno.EBADF


async def test_more_than_fit_are_forced_all_the_same(rings: bool, file: int, synced: list[str]) -> None:
    assert await asyncio.gather(*(forced(file) for _ in range(ENTRIES + 50))) == [None] * (ENTRIES + 50)
    assert len(synced) == (50 if rings else ENTRIES + 50)
    for _ in range(3):  # round and round
        assert await asyncio.gather(*(forced(file) for _ in range(ENTRIES))) == [None] * ENTRIES


@needs_ring
async def test_a_kernel_that_takes_nothing_more_is_done_without(
    file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await forced(file) is None
    call = ring._call

    def refuse(number: int, *args: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    def take_one(number: int, fd: int, count: int, *args: object) -> int:
        return call(number, fd, 1, *args)

    for answer, by_hand in ((refuse, 3), (take_one, 2)):
        synced.clear()
        monkeypatch.setattr(ring, "_call", answer)
        assert await asyncio.gather(*(forced(file) for _ in range(3))) == [None] * 3
        assert len(synced) == by_hand
    monkeypatch.setattr(ring, "_call", call)
    synced.clear()
    assert await asyncio.gather(*(forced(file) for _ in range(3))) == [None] * 3
    assert synced == []


@pytest.mark.parametrize("error", [OSError(errno.EPERM, "not allowed"), OSError(errno.ENOSYS, "not there")])
async def test_a_system_without_a_ring_is_asked_once(
    file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    asked = 0

    def refuse(parameters: object) -> int:
        nonlocal asked
        asked += 1
        raise error

    monkeypatch.setattr(ring, "_set_up", refuse)
    assert await asyncio.gather(*(forced(file) for _ in range(3))) == [None] * 3
    assert asked == 1
    assert len(synced) == 3


@needs_ring
async def test_a_kernel_of_before_has_a_ring_too(file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "_QUIETLY", 1 << 31)  # a flag that no kernel knows
    assert await forced(file) is None
    assert synced == []


@needs_ring
async def test_a_forked_child_leaves_its_parents_ring_alone(
    file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await forced(file) is None
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as the child is told
    assert await forced(file) is None
    assert len(synced) == 1


@needs_ring
@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_a_loop_that_is_gone_leaves_nothing_open(file: int) -> None:
    def use() -> None:
        asyncio.run(forced(file))

    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        use()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_simulated_loop_forces_in_place(file: int, synced: list[str]) -> None:
    class Inline(asyncio.SelectorEventLoop):
        runs_blocking_inline = True

    with asyncio.Runner(loop_factory=Inline) as runner:
        assert runner.run(forced(file)) is None
    assert synced == [threading.current_thread().name]
