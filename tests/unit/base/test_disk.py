"""Files are forced to disk by the kernel's ring where there is one, else by threads; nobody sees which."""

import asyncio
import errno
import gc
import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.base import disk, ring
from holdfast.base.ring import ENTRIES, Ring
from tests.unit.base.forcing import forced


@pytest.fixture(params=["ring", "threads"])
def rings(has_ring: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    wanted = has_ring and request.param == "ring"
    monkeypatch.setattr(disk, "RINGS", wanted)
    return wanted


def stays_open(use: Callable[[], None]) -> int:
    """How many files more are open when something was done twenty times more. A ring has two, and the last rings of
    closed loops stay until another one is made."""
    use()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        use()
    gc.collect()
    return len(os.listdir("/proc/self/fd")) - before


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


async def test_a_kernel_that_takes_nothing_more_is_done_without(
    has_ring: bool, file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch
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
        assert len(synced) == (by_hand if has_ring else 3)
    monkeypatch.setattr(ring, "_call", call)
    synced.clear()
    assert await asyncio.gather(*(forced(file) for _ in range(3))) == [None] * 3
    assert len(synced) == (0 if has_ring else 3)


@pytest.mark.parametrize("error", [OSError(errno.EPERM, "not allowed"), OSError(errno.ENOSYS, "not there")])
async def test_a_system_without_a_ring_is_asked_once(
    file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    asked = 0

    def refuse(parameters: object) -> int:
        nonlocal asked
        asked += 1
        raise error

    monkeypatch.setattr(Ring, "deaf", False)
    monkeypatch.setattr(ring, "_set_up", refuse)
    assert await asyncio.gather(*(forced(file) for _ in range(3))) == [None] * 3
    assert asked == 1
    assert len(synced) == 3


async def test_a_kernel_of_before_has_a_ring_too(
    has_ring: bool, file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ring, "_QUIETLY", 1 << 31)  # a flag that no kernel knows
    assert await forced(file) is None
    assert len(synced) == (0 if has_ring else 1)


async def test_a_forked_child_leaves_its_parents_ring_alone(
    has_ring: bool, file: int, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await forced(file) is None
    monkeypatch.setattr(os, "getpid", lambda: -1)  # as the child is told
    assert await forced(file) is None
    assert len(synced) == (1 if has_ring else 2)


def test_a_loop_that_is_gone_leaves_nothing_open(file: int) -> None:
    def use() -> None:
        asyncio.run(forced(file))

    assert stays_open(use) < 20


def test_a_loop_that_is_closed_with_requests_under_way_is_forgotten(file: int) -> None:
    async def begin() -> None:
        ended = asyncio.get_running_loop().create_future()  # which holds the loop
        disk.force(file, ended.set_result)

    def use() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        loop.run_until_complete(loop.shutdown_default_executor())  # where threads force
        loop.close()

    assert stays_open(use) < 20


@pytest.mark.parametrize("machine", ["aarch64", platform.machine()])
async def test_a_ring_that_cannot_be_had_leaves_nothing(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    unraisable: list[object] = []

    def refuse(*args: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(Ring, "deaf", False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(os, "eventfd", refuse, raising=False)
    with pytest.raises(OSError, match=r"aarch64|Too many"):
        Ring(asyncio.get_running_loop(), disk._instead)
    gc.collect()
    assert unraisable == []


async def test_one_who_fails_on_being_told_does_not_keep_others_from_it(file: int) -> None:
    loop = asyncio.get_running_loop()
    reported: list[object] = []
    loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
    failure = RuntimeError("told")

    def fail(error: OSError | None) -> None:
        raise failure

    others = [loop.create_future() for _ in range(8)]
    for other in others:
        disk.force(file, fail)
        disk.force(file, other.set_result)
    await asyncio.sleep(0)
    time.sleep(0.2)  # so that all the answers are there when the loop looks
    async with asyncio.timeout(20):
        assert await asyncio.gather(*others) == [None] * 8
    assert reported == [failure] * 8


async def test_a_look_at_nothing_is_no_harm(has_ring: bool, file: int) -> None:
    assert await forced(file) is None
    ring = disk._rings[asyncio.get_running_loop()]
    assert (ring is not None) is has_ring
    if ring is not None:
        ring._look()
    assert await forced(file) is None


async def test_in_a_hurry_the_kernel_is_asked_before_the_loop_turns(rings: bool, file: int) -> None:
    assert await forced(file) is None
    ring = disk._rings.get(asyncio.get_running_loop())
    assert (ring is not None) is rings
    ended: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    disk.force(file, ended.set_result)
    assert ring is None or len(ring._written) == 1
    disk.hurry()
    disk.hurry()  # there is nothing more to ask for
    assert ring is None or ring._written == []
    assert await ended is None


def test_a_simulated_loop_forces_in_place(file: int, synced: list[str]) -> None:
    class Inline(asyncio.SelectorEventLoop):
        runs_blocking_inline = True

    with asyncio.Runner(loop_factory=Inline) as runner:
        assert runner.run(forced(file)) is None
    assert synced == [threading.current_thread().name]


async def test_whatever_goes_wrong_in_a_thread_is_told(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> OSError | None:
        raise ValueError("not what was expected")

    monkeypatch.setattr(disk, "RINGS", False)
    monkeypatch.setattr(disk, "forced", broken)
    error = await forced(file)
    assert error is not None
    assert error.errno == errno.EIO
    assert isinstance(error.__cause__, ValueError)
