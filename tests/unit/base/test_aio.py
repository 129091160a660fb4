"""Bounded fan-out: order kept, limit kept, the first failure stops the rest; blocking work leaves the loop free."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import aio
from holdfast.base.aio import apart, blocking, finishing, map_bounded, stream_bounded
from holdfast.base.errors import Invalid


class Crowd:
    """Counts who is at work, and lets each worker take a number of turns on the loop."""

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
    crowd = Crowd()
    assert await map_bounded(turns, crowd.work, limit=limit) == [turn * 10 for turn in turns]
    assert crowd.most <= limit
    assert crowd.now == 0


async def test_items_are_drawn_no_faster_than_they_are_worked_on() -> None:
    drawn: list[int] = []

    def items() -> object:
        for number in range(100):
            drawn.append(number)
            yield number

    stream = stream_bounded(items(), Crowd().work, limit=4)  # type: ignore[arg-type]  # a generator of numbers
    assert await anext(stream) == 0
    assert len(drawn) == 4
    await stream.aclose()
    assert len(drawn) == 4


async def test_the_first_failure_is_raised_as_itself_and_stops_the_others() -> None:
    crowd = Crowd()

    async def work(number: int) -> int:
        if number == 2:
            await asyncio.sleep(0)
            raise KeyError("two")
        return await crowd.work(1_000)

    with pytest.raises(KeyError, match="two"):
        await map_bounded([2, 0, 1, 3, 4, 5], work, limit=4)
    assert crowd.begun == 3
    assert crowd.cancelled == 3
    assert crowd.now == 0


async def test_a_slow_item_does_not_hold_up_those_behind_it() -> None:
    slow, rest = asyncio.Event(), Crowd()

    async def work(number: int) -> int:
        if number == 0:
            await slow.wait()
            return 0
        done = await rest.work(1)
        if rest.begun == 19:
            slow.set()
        return done

    assert await map_bounded(range(20), work, limit=2) == [0] + [10] * 19


async def test_closing_a_stream_cancels_what_is_under_way() -> None:
    crowd = Crowd()
    stream = stream_bounded([0, 1_000, 1_000, 1_000], crowd.work, limit=3)
    assert await anext(stream) == 0
    await asyncio.sleep(0)
    await stream.aclose()
    assert crowd.now == 0
    assert crowd.cancelled == 2


@pytest.mark.parametrize("limit", [0, -1])
async def test_a_limit_that_would_never_begin_is_refused(limit: int) -> None:
    with pytest.raises(Invalid, match="would never begin"):
        await map_bounded([1, 2], Crowd().work, limit=limit)


class TestBlocking:
    async def test_it_runs_elsewhere_and_brings_back_the_result(self) -> None:
        assert await blocking(threading.get_ident) != threading.get_ident()
        assert await blocking(divmod, 17, 5) == (3, 2)
        assert await blocking(sorted, [3, 1, 2], reverse=True) == [3, 2, 1]

    def test_a_simulated_loop_gets_the_call_made_in_place(self) -> None:
        class Inline(asyncio.SelectorEventLoop):
            runs_blocking_inline = True

        async def ident(of: Callable[[], int]) -> int:
            return await blocking(of)

        with asyncio.Runner(loop_factory=Inline) as runner:
            assert runner.run(ident(threading.get_ident)) == threading.get_ident()

    async def test_a_call_sees_the_context_of_its_caller(self) -> None:
        variable = ContextVar("variable", default=0)
        variable.set(5)
        assert await blocking(variable.get) == 5


class TestFinishing:
    """A write goes on in its thread, so a caller that gives it up must not go on before it ends."""

    @pytest.mark.parametrize("error", [None, OSError("disk")])
    async def test_a_cancelled_caller_waits_for_what_has_begun(self, error: Exception | None) -> None:
        begun, release, ended = threading.Event(), threading.Event(), threading.Event()

        def write() -> None:
            begun.set()
            release.wait(30)
            ended.set()
            if error is not None:
                raise error

        task = asyncio.ensure_future(finishing(write))
        await blocking(begun.wait, 30)
        task.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not task.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()

    async def test_what_has_not_begun_never_does(self) -> None:
        release, ran = threading.Event(), list[int]()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        busy = asyncio.ensure_future(blocking(release.wait, 30))
        task = asyncio.ensure_future(finishing(ran.append, 1))
        for _ in range(5):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        release.set()
        await busy
        await blocking(ran.append, 2)
        assert ran == [2]

    async def test_patience_has_an_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        begun, release = threading.Event(), threading.Event()

        def write() -> None:
            begun.set()
            release.wait(30)

        monkeypatch.setattr(aio, "PATIENCE_SECONDS", 0.01)
        task = asyncio.ensure_future(finishing(write))
        await blocking(begun.wait, 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not release.is_set()
        release.set()


async def test_what_is_refused_because_the_executor_has_ended_never_runs() -> None:
    executor, ran = ThreadPoolExecutor(1), list[int]()
    asyncio.get_running_loop().set_default_executor(executor)
    await asyncio.get_running_loop().run_in_executor(None, ran.clear)
    executor.shutdown()
    for call in (blocking, finishing):
        with pytest.raises(RuntimeError, match="shutdown"):
            await call(ran.append, 1)
    assert ran == []


async def test_what_runs_apart_has_a_thread_of_its_own_and_its_callers_context() -> None:
    mark: ContextVar[str] = ContextVar("mark")
    mark.set("here")
    answer = await apart(lambda: (threading.current_thread(), mark.get()))
    assert answer[0] is not threading.current_thread()
    assert answer[0].daemon
    assert answer[1] == "here"


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration()])
async def test_whatever_is_raised_apart_comes_back(error: BaseException) -> None:
    def fail() -> None:
        raise error

    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        await apart(fail)


async def test_what_hangs_apart_takes_no_thread_from_others_and_may_be_left() -> None:
    release = threading.Event()
    hanging = [asyncio.ensure_future(apart(release.wait)) for _ in range(64)]  # more than the loop has threads
    try:
        assert await blocking(lambda: "done") == "done"
        for each in hanging:
            each.cancel()
        answer = await asyncio.gather(*hanging, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in answer)
    finally:
        release.set()
