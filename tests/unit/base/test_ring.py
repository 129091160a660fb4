"""A ring that does not answer: what was not begun is made by threads, a slow disk is waited for, nobody waits for ever.

The kernel here is one that does as the test says; once it is the real one, kept busy."""

import asyncio
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.base import disk, ring
from holdfast.base.ring import Ring
from tests.unit.base.forcing import forced

ANSWERS, ARRAY, ANSWERS_AT = 512, 64, 4096
SIZE = 0x10000000 + 64 * 256


class Kernel:
    """Takes requests and gives no answer but those that a test has it give."""

    def __init__(self) -> None:
        self.memory = os.memfd_create("ring")
        os.truncate(self.memory, SIZE)
        self.view = mmap.mmap(self.memory, SIZE)
        self.taken: list[int] = []
        self.takes_back: Callable[[int], None] = lambda number: None
        self.asked_back: list[int] = []

    def set_up(self, parameters: "ctypes.Array[ctypes.c_char]") -> int:
        requests = [0, 4, 0, 0, 0, 0, ARRAY, 0, 0, 0]
        answers = [8, 12, 0, 0, 0, ANSWERS_AT, 0, 0, 0, 0]
        ring._PARAMETERS.pack_into(parameters, 0, ring.ENTRIES, ANSWERS, *requests, *answers)
        return os.dup(self.memory)

    def call(self, number: int, *args: object) -> int:
        if number == ring._REGISTER:
            self.event = os.dup(ctypes.cast(cast("Any", args[2]), ctypes.POINTER(ctypes.c_int)).contents.value)
            return 0
        count = int(str(args[1]))
        (tail,) = ring._NUMBER.unpack_from(self.view, 4)
        for place in range(tail - count, tail):
            at = 0x10000000 + (place % ring.ENTRIES) * ring._REQUEST.size
            deed, _, _, _, _, target, _, _, name = ring._REQUEST.unpack_from(self.view, at)
            if deed == ring._FSYNC:
                self.taken.append(name)
            else:
                assert (deed, name) == (ring._TAKE_BACK, target | ring._ABOUT)
                self.asked_back.append(target)
                self.takes_back(target)
        return count

    def answer(self, number: int, result: int) -> None:
        (tail,) = ring._NUMBER.unpack_from(self.view, 12)
        at = ANSWERS_AT + (tail % ANSWERS) * ring._ANSWER.size
        ring._ANSWER.pack_into(self.view, at, number, result, 0)
        ring._NUMBER.pack_into(self.view, 12, tail + 1)
        os.eventfd_write(self.event, 1)

    def had_not_begun(self, number: int) -> None:
        self.answer(number, -errno.ECANCELED)
        self.answer(number | ring._ABOUT, 0)

    def is_at_it(self, number: int) -> None:
        self.answer(number | ring._ABOUT, -errno.EALREADY)

    def knows_nothing(self, number: int) -> None:
        self.answer(number | ring._ABOUT, -errno.ENOENT)

    def close(self) -> None:
        self.view.close()
        os.close(self.memory)
        os.close(self.event)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    one = Kernel()
    monkeypatch.setattr(ring, "_set_up", one.set_up)
    monkeypatch.setattr(ring, "_call", one.call)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield one
    one.close()


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "TICK_S", 0.01)
    monkeypatch.setattr(Ring, "deaf", False)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_what_the_kernel_does_not_begin_is_made_by_threads(
    kernel: Kernel, file: int, synced: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    kernel.takes_back = kernel.had_not_begun
    async with asyncio.timeout(20):
        assert await asyncio.gather(*(forced(file) for _ in range(5))) == [None] * 5
    assert len(synced) == 5
    assert kernel.taken == kernel.asked_back == [1, 2, 3, 4, 5]
    assert await forced(file) is None
    assert (kernel.taken, len(synced)) == ([1, 2, 3, 4, 5], 6)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    with pytest.raises(OSError, match="a ring of this process was not answered"):
        Ring(asyncio.get_running_loop(), disk._instead)


async def test_only_the_oldest_is_asked_for_and_the_rest_if_it_had_not_begun(
    kernel: Kernel, file: int, synced: list[str]
) -> None:
    """The others wait for the disk, behind one that it is slow with."""
    kernel.takes_back = kernel.is_at_it
    waiting = asyncio.gather(*(forced(file) for _ in range(3)))
    await until(lambda: len(kernel.asked_back) == 3)
    assert kernel.asked_back == [1, 1, 1]
    kernel.answer(1, 0)
    await until(lambda: len(kernel.asked_back) == 4)
    assert kernel.asked_back[3] == 2
    kernel.answer(2, 0)
    kernel.answer(3, -errno.EIO)
    first, second, third = await waiting
    assert (first, second) == (None, None)
    assert third is not None
    assert third.errno == errno.EIO
    assert (synced, Ring.deaf) == ([], False)


async def test_a_disk_that_answers_now_and_then_is_not_doubted(kernel: Kernel, file: int) -> None:
    waiting = asyncio.gather(*(forced(file) for _ in range(30)))
    await until(lambda: len(kernel.taken) == 30)
    for number in kernel.taken:
        await asyncio.sleep(0.01)
        kernel.answer(number, 0)
    assert await waiting == [None] * 30
    assert (kernel.asked_back, Ring.deaf) == ([], False)


async def test_what_was_interrupted_is_made_again(kernel: Kernel, file: int, synced: list[str]) -> None:
    kernel.takes_back = lambda number: kernel.answer(number, -errno.EINTR)
    assert await forced(file) is None
    assert (len(synced), Ring.deaf) == (1, False)


@pytest.mark.parametrize("knows", [True, False])
async def test_nobody_waits_for_ever_nor_is_told_that_a_file_is_safe(
    kernel: Kernel, file: int, synced: list[str], *, knows: bool
) -> None:
    """Somebody may have been told of a write that was lost, and no other is told again."""
    if not knows:
        kernel.takes_back = kernel.knows_nothing
    async with asyncio.timeout(20):
        errors = await asyncio.gather(forced(file), forced(file))
    assert [error and error.errno for error in errors] == [errno.EIO] * 2
    assert (kernel.asked_back, synced, Ring.deaf) == ([1] if knows else [1, 1], [], True)
    kernel.answer(1, 0)  # after all
    kernel.answer(2, -errno.EIO)
    assert await forced(file) is None
    assert len(synced) == 1


async def test_one_that_is_never_answered_is_noticed_among_others_that_are(kernel: Kernel, file: int) -> None:
    kernel.takes_back = kernel.knows_nothing
    lost = asyncio.ensure_future(forced(file))
    await until(lambda: kernel.taken == [1])
    async with asyncio.timeout(20):
        while not lost.done():
            other = asyncio.ensure_future(forced(file))
            await asyncio.sleep(0.005)
            if not Ring.deaf:
                kernel.answer(kernel.taken[-1], 0)
            await other
    error = await lost
    assert error is not None
    assert error.errno == errno.EIO


async def test_an_answer_on_its_way_is_waited_for(kernel: Kernel, file: int) -> None:
    kernel.takes_back = kernel.knows_nothing
    waiting = asyncio.ensure_future(forced(file))
    await until(lambda: kernel.asked_back == [1])
    kernel.answer(1, 0)
    assert await waiting is None
    assert not Ring.deaf


async def test_what_comes_while_a_request_is_taken_back_is_made_too(
    kernel: Kernel, file: int, synced: list[str]
) -> None:
    others: list[asyncio.Future[OSError | None]] = []

    def is_asked_again(number: int) -> None:
        if not others:
            others.append(asyncio.get_running_loop().create_future())
            disk.force(file, others[0].set_result)
        kernel.had_not_begun(number)

    kernel.takes_back = is_asked_again
    async with asyncio.timeout(20):
        assert await forced(file) is None
        assert await others[0] is None
    assert len(synced) == 2


def test_a_real_kernel_that_is_busy_with_something_else_is_done_without(
    tmp_path: Path, file: int, synced: list[str]
) -> None:
    """Its only worker for this thread opens a pipe that nobody writes to."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    path = ctypes.create_string_buffer(os.fsencode(pipe))

    had_ring = False

    async def force_behind_it() -> OSError | None:
        nonlocal had_ring
        one = disk._ring_of(asyncio.get_running_loop())
        if one is not None:
            had_ring = True
            ring._call(ring._REGISTER, one._ring, 19, (ctypes.c_uint32 * 2)(1, 1), 2)
            at_once, opening = 1 << 4, 18
            ring._REQUEST.pack_into(one._requests, 0, opening, at_once, 0, -100, 0, ctypes.addressof(path), 0, 0, 99)
            assert one._enter(1) == 1
        async with asyncio.timeout(20):
            return await forced(file)

    outcomes: list[OSError | None] = []
    thread = threading.Thread(target=lambda: outcomes.append(asyncio.run(force_behind_it())))
    thread.start()
    thread.join()
    os.close(os.open(pipe, os.O_RDWR))  # which frees the worker, if it is still there
    assert (outcomes, len(synced)) == ([None], 1)
    assert had_ring is Ring.deaf
