"""Bounded fan-out keeps order and limit and stops at the first failure; blocking work leaves the loop free."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import aio
from holdfast.base.aio import blocking, finishing, in_own_thread, map_bounded, stream_bounded
from holdfast.base.errors import Invalid


class Workers:
    """Counts the calls in progress, each of which takes a number of turns on the loop."""

    def __init__(self) -> None:
        self.now = self.most = self.begun = self.cancelled = 0

    async def work(self, turns: int) -> int:
        self.begun += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(turns):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.now -= 1
        return turns * 10


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8))
async def test_results_are_in_the_order_of_the_items(turns: list[int], limit: int) -> None:
    for run in ("map", "stream"):
        workers = Workers()
        if run == "map":
            found = await map_bounded(turns, workers.work, limit=limit)
        else:
            found = [each async for each in stream_bounded(turns, workers.work, limit=limit)]
        assert found == [turn * 10 for turn in turns]
        assert workers.most <= limit
        assert workers.now == 0


async def test_closing_a_stream_cancels_its_calls_and_draws_no_more_items() -> None:
    workers, drawn = Workers(), list[int]()

    def items() -> Iterator[int]:
        for number in range(100):
            drawn.append(number)
            yield 0 if number == 0 else 1_000

    stream = stream_bounded(items(), workers.work, limit=3)
    assert await anext(stream) == 0
    await asyncio.sleep(0)
    await stream.aclose()
    assert (len(drawn), workers.now, workers.cancelled) == (3, 0, 2)


async def test_the_first_failure_is_raised_unchanged_and_cancels_the_others() -> None:
    workers = Workers()

    async def work(number: int) -> int:
        if number == 2:
            await asyncio.sleep(0)
            raise KeyError("two")
        return await workers.work(1_000)

    with pytest.raises(KeyError, match="two"):
        await map_bounded([2, 0, 1, 3, 4, 5], work, limit=4)
    assert (workers.begun, workers.cancelled, workers.now) == (3, 3, 0)
    with pytest.raises(Invalid, match="is less than 1"):
        await map_bounded([1, 2], workers.work, limit=0)


async def test_a_slow_item_does_not_delay_those_behind_it() -> None:
    slow, rest = asyncio.Event(), Workers()

    async def work(number: int) -> int:
        if number == 0:
            await slow.wait()
            return 0
        done = await rest.work(1)
        if rest.begun == 19:
            slow.set()
        return done

    assert await map_bounded(range(20), work, limit=2) == [0] + [10] * 19


async def test_a_blocking_call_runs_in_a_thread_with_the_context_of_its_caller() -> None:
    variable = ContextVar("variable", default=0)
    variable.set(5)
    for run in (blocking, finishing, in_own_thread):
        assert await run(threading.get_ident) != threading.get_ident()
        assert await run(divmod, 17, 5) == (3, 2)
        assert await run(sorted, [3, 1, 2], reverse=True) == [3, 2, 1]
        assert await run(variable.get) == 5
    assert (await in_own_thread(threading.current_thread)).daemon


def test_a_simulated_loop_makes_the_call_itself() -> None:
    class Inline(asyncio.SelectorEventLoop):
        runs_blocking_inline = True

    async def ident(of: Callable[[], int]) -> list[int]:
        return [await run(of) for run in (blocking, finishing, in_own_thread)]

    with asyncio.Runner(loop_factory=Inline) as runner:
        assert runner.run(ident(threading.get_ident)) == [threading.get_ident()] * 3


class Write:
    """A blocking function that runs until it is released."""

    def __init__(self, error: Exception | None = None) -> None:
        self.begun, self.release, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.error = error

    def __call__(self) -> None:
        self.begun.set()
        self.release.wait(30)
        self.ended.set()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, OSError("disk")])
async def test_a_cancelled_caller_waits_for_a_write_that_has_begun(error: Exception | None) -> None:
    write = Write(error)
    task = asyncio.ensure_future(finishing(write))
    await blocking(write.begun.wait, 30)
    task.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not task.done()
    write.release.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert write.ended.is_set()


async def test_a_cancelled_caller_waits_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Write()
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 0.01)
    task = asyncio.ensure_future(finishing(write))
    await blocking(write.begun.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not write.ended.is_set()
    write.release.set()


async def test_a_write_of_a_cancelled_caller_that_has_not_begun_never_begins() -> None:
    busy, ran = Write(), list[int]()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    first = asyncio.ensure_future(blocking(busy))
    task = asyncio.ensure_future(finishing(ran.append, 1))
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    busy.release.set()
    await first
    await blocking(ran.append, 2)
    assert ran == [2]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration()])
async def test_every_exception_of_a_function_in_its_own_thread_is_raised(error: BaseException) -> None:
    def fail() -> None:
        raise error

    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        await in_own_thread(fail)


async def test_functions_that_hang_in_their_own_threads_block_no_others() -> None:
    release = threading.Event()
    hanging = [asyncio.ensure_future(in_own_thread(release.wait)) for _ in range(64)]  # more than the loop has threads
    try:
        assert await blocking(lambda: "done") == "done"
        for each in hanging:
            each.cancel()
        outcomes = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in outcomes)
    finally:
        release.set()
