"""Virtual time: nothing waits, everything of asyncio works, a gate stops whole processes."""

import asyncio
import contextvars
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from holdfast.base.aio import blocking
from holdfast.sim.loop import GATE, Deadlock, Gate, SimLoop


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop()
    yield loop
    loop.close()


def start(loop: SimLoop, gate: Gate, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    context = contextvars.copy_context()
    context.run(GATE.set, gate)
    return loop.create_task(work, context=context)


def test_sleeping_moves_time_and_takes_none(loop: SimLoop) -> None:
    loop.run_until_complete(asyncio.sleep(86_400 * 365))
    assert loop.time() == pytest.approx(86_400 * 365)


def test_timeouts_and_task_groups_work_unmodified(loop: SimLoop) -> None:
    async def work() -> list[object]:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asyncio.sleep(delay, delay)) for delay in (3, 1, 2)]
        return [loop.time(), *(task.result() for task in tasks)]

    assert loop.run_until_complete(work()) == [pytest.approx(8), 3, 1, 2]


def test_waiting_for_nothing_is_a_deadlock(loop: SimLoop) -> None:
    with pytest.raises(Deadlock, match="nothing is scheduled that could wake one"):
        loop.run_until_complete(loop.create_future())


def test_blocking_work_runs_in_place(loop: SimLoop) -> None:
    assert loop.run_until_complete(blocking(loop.is_running))


def test_the_idle_hook_comes_before_time(loop: SimLoop) -> None:
    answers = [1, 2]
    received: list[tuple[int, float]] = []

    def when_idle() -> bool:
        if answers:
            received.append((answers.pop(0), loop.time()))
            return True
        return False

    loop = SimLoop(when_idle=when_idle)
    loop.run_until_complete(asyncio.sleep(7))
    loop.close()
    assert received == [(1, 0.0), (2, 0.0)]


class TestGate:
    def test_closed_it_keeps_every_step_and_timer(self, loop: SimLoop) -> None:
        gate, steps = Gate(loop), list[float]()

        async def count() -> None:
            while True:
                steps.append(loop.time())
                await asyncio.sleep(1)

        task = start(loop, gate, count())
        loop.run_until_complete(asyncio.sleep(2.5))
        gate.closed = True
        loop.run_until_complete(asyncio.sleep(10))
        assert steps == pytest.approx([0, 1, 2])
        gate.open()
        loop.run_until_complete(asyncio.sleep(1.5))
        assert steps == pytest.approx([0, 1, 2, 12.5, 13.5])
        task.cancel()
        loop.run_until_complete(asyncio.wait([task]))

    def test_a_timer_that_was_cancelled_stays_away(self, loop: SimLoop) -> None:
        gate, fired = Gate(loop), list[str]()

        async def work() -> None:
            loop.call_later(1, fired.append, "kept")
            loop.call_soon(fired.append, "soon").cancel()

        start(loop, gate, work())
        loop.run_until_complete(asyncio.sleep(0.5))
        gate.closed = True
        handle = gate.keep(fired.append, ("cancelled",), None)
        handle.cancel()
        loop.run_until_complete(asyncio.sleep(1))
        gate.open()
        loop.run_until_complete(asyncio.sleep(1))
        assert fired == ["kept"]
