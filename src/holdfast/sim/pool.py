"""Many seeds on several cores: runners are processes that take shares of the work until none is left.

Runners work under a fixed hash seed. They end with the pool, whatever happens. Their errors appear on standard error.

Scenarios that share a time take turns of about half a second, with at least one seed: a seed of one takes a thousand
times as long as a seed of another, so turns of equally many seeds would starve the quick ones.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.sim.explore import Choices, Exploration, Limits
from holdfast.sim.run import Totals

HASH_SEED = 0
SHARE = 20
"""Seeds per task: few enough for a lively display."""
TURN_S = 0.5
MOST_SEEDS = 200
"""Per turn."""
_LONGEST_LINE = 1 << 28


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
    """One run with its history."""

    totals: Totals
    settings: str
    violations: list[str]
    history: list[str]
    """What processes did and what befell them, without their requests."""
    trace: list[str]


class Remote(Exception):
    """The traceback of an error in a runner, as text; for ``--verbose``."""

    def __str__(self) -> str:
        return f"in a runner of the simulator\n{self.args[0]}"


class Runner:
    """One process that runs seeds, for as long as its context lasts."""

    def __init__(self, hash_seed: int = HASH_SEED) -> None:
        self._hash_seed = hash_seed

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast.sim.runner",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONHASHSEED": str(self._hash_seed)},
            limit=_LONGEST_LINE,
            start_new_session=True,  # Ctrl-C goes to the parent alone
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        gone = asyncio.ensure_future(self._process.wait())
        try:
            await asyncio.shield(gone)
        except asyncio.CancelledError:
            await gone  # it was killed, so this takes a moment; who leaves before leaves an open pipe behind
            raise

    async def run(self, task: Task) -> Totals:
        return _totals(await self._ask("run", **asdict(task)))

    async def replay(self, scenario: str, seed: int) -> Replayed:
        return _replayed(await self._ask("replay", scenario=scenario, seed=seed))

    async def explore(self, scenario: str, limits: Limits) -> AsyncIterator[Exploration]:
        """How far it has come, now and then; the last one is the result."""
        answer = await self._ask("explore", scenario=scenario, limits=asdict(limits))
        while not answer.pop("finished"):
            yield Exploration.of(answer)
            answer = await self._hear("explore")
        yield Exploration.of(answer)

    async def follow(self, scenario: str, limits: Limits, choices: Choices) -> Replayed:
        return _replayed(await self._ask("follow", scenario=scenario, limits=asdict(limits), choices=choices))

    async def _ask(self, what: str, **request: Any) -> dict[str, Any]:
        if self._process.stdin is not None:
            with suppress(ConnectionError):  # that it has died is noticed when it does not answer
                self._process.stdin.write(json.dumps({"do": what, **request}).encode() + b"\n")
                await self._process.stdin.drain()
        return await self._hear(what)

    async def _hear(self, what: str) -> dict[str, Any]:
        line = await self._process.stdout.readline() if self._process.stdout is not None else b""
        if not line:
            raise HoldfastError(f"a runner of the simulator died over {what}", remedy="see what it printed above")
        answer: dict[str, Any] = json.loads(line)
        if "invalid" in answer:
            cause = answer.get("traceback")
            raise Invalid(answer["invalid"], remedy=answer["remedy"]) from (Remote(cause) if cause else None)
        return answer


async def run_all(
    tasks: Iterable[Task], done: Callable[[Task, Totals], None], *, jobs: int, hash_seed: int = HASH_SEED
) -> None:
    """Run every task, and give ``done`` its sums. The next task is taken when a runner is free."""
    source = iter(tasks)

    async def work() -> None:
        async with Runner(hash_seed) as runner:
            for task in source:
                done(task, await runner.run(task))

    async with asyncio.TaskGroup() as group:
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


def _totals(answer: dict[str, Any]) -> Totals:
    broken = {int(seed): violations for seed, violations in answer.pop("broken").items()}  # keys of JSON are text
    return Totals(**answer, broken=broken)


def _replayed(answer: dict[str, Any]) -> Replayed:
    settings, *lists = (answer.pop(name) for name in ("settings", "violations", "history", "trace"))
    return Replayed(_totals(answer), settings, *lists)
