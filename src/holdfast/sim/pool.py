"""Many seeds on several cores: processes that take shares of the work until none is left.

The processes have a fixed hash seed: no run may depend on it, and one that does can still be replayed. They end with
the pool, whatever happens.

Scenarios that share a time take turns of about half a second, with at least one seed: a seed of one takes a thousand
times as long as a seed of another, so turns of equally many seeds would starve the quick ones.
"""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self, TypeVar

from holdfast.base.clock import SystemClock
from holdfast.base.errors import HoldfastError
from holdfast.sim.run import Run, Totals, naming_mistakes, simulate
from holdfast.sim.scenario import find

T = TypeVar("T")

HASH_SEED = 0
SHARE = 20
"""Seeds per task: few enough for a lively display."""
TURN_S = 0.5
MOST_SEEDS = 200
"""Per turn."""


@dataclass(frozen=True, slots=True)
class Task:
    """Some seeds of one scenario."""

    scenario: str
    first: int
    count: int
    within_s: float | None = None
    """Begin no further seed after this time."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One run with its history, as text."""

    totals: Totals
    settings: str
    violations: list[str]
    history: list[str]
    """What happened to processes and operations, without their requests."""
    trace: list[str]

    @classmethod
    def of(cls, run: Run) -> Self:
        totals = Totals()
        totals.include(run)
        history = [str(event) for event in run.trace.events if isinstance(event.subject, str)]
        return cls(totals, str(run.scenario), run.violations, history, list(run.trace.lines()))


class Pool:
    """Processes that run seeds, for as long as its context lasts."""

    def __init__(self, jobs: int = 1, *, hash_seed: int = HASH_SEED) -> None:
        self._executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), _ignore_interrupts)
        self._environment = {"PYTHONHASHSEED": str(hash_seed)}

    async def __aenter__(self) -> Self:
        self._before = {name: os.environ.get(name) for name in self._environment}
        os.environ.update(self._environment)  # processes are started when they are needed, and inherit it
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        for process in multiprocessing.active_children():
            process.kill()
        self._executor.shutdown(cancel_futures=True)

    async def run(self, task: Task) -> Totals:
        return await self._call(_run, task)

    async def replay(self, scenario: str, seed: int) -> Replayed:
        return await self._call(_replay, scenario, seed)

    async def _call(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, function, *args)
        except BrokenProcessPool as error:
            raise HoldfastError(
                "a process of the simulator died", remedy="run with --jobs 1, and look at what it printed above"
            ) from error


def _ignore_interrupts() -> None:
    """Ctrl-C goes to all processes of a terminal; the pool ends its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(task: Task) -> Totals:
    kind, clock, totals = find(task.scenario), SystemClock(), Totals()
    began_ns = clock.monotonic_ns()
    for seed in range(task.first, task.first + task.count):
        if task.within_s is not None and totals.runs and clock.monotonic_ns() - began_ns > task.within_s * 1e9:
            break
        with naming_mistakes(f"{task.scenario}, seed {seed}"):
            totals.include(simulate(kind, seed))
    return totals


def _replay(scenario: str, seed: int) -> Replayed:
    with naming_mistakes(f"{scenario}, seed {seed}"):
        return Replayed.of(simulate(find(scenario), seed))


async def run_all(
    tasks: Iterable[Task], done: Callable[[Task, Totals], None], *, jobs: int, hash_seed: int = HASH_SEED
) -> None:
    """Run every task, and call ``done`` with its sums. The next task is taken when a process is free."""
    source = iter(tasks)

    async with Pool(jobs, hash_seed=hash_seed) as pool, asyncio.TaskGroup() as group:

        async def work() -> None:
            for task in source:
                done(task, await pool.run(task))

        for _ in range(jobs):
            group.create_task(work())


def shares(scenario: str, seeds: range) -> Iterator[Task]:
    for first in range(seeds.start, seeds.stop, SHARE):
        yield Task(scenario, first, min(SHARE, seeds.stop - first))


def turns(scenarios: Sequence[str], first_seed: int) -> Iterator[Task]:
    """Turns of all scenarios in rotation, without end: first one seed of each, however short the time."""
    for number in count():
        for name in scenarios:
            yield Task(name, first_seed + number * MOST_SEEDS, MOST_SEEDS, TURN_S if number else 0.0)
