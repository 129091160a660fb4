"""Many seeds on several cores: runners are processes that take shares of the work until none is left.

Runners work under a fixed hash seed. They end with the pool, whatever happens. Their errors appear on standard error.

``FairShares`` divides a time among scenarios. Seeds of one scenario take a thousand times as long as seeds of another,
so equal numbers of seeds would starve the last. Every scenario gets one seed first, however short the time; after that
the one that has had the least time gets as many at once as take half a second.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.sim.explore import Choices, Exploration, Limits
from holdfast.sim.run import Totals

HASH_SEED = 0
SHARE = 20
"""Seeds per task: few enough for a lively display."""
_LONGEST_LINE = 1 << 28


@dataclass(frozen=True, slots=True)
class Task:
    """Some seeds of one scenario."""

    scenario: str
    first: int
    count: int


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

    async def run(self, task: Task) -> tuple[Totals, float]:
        """The sums, and how many seconds the seeds themselves took."""
        answer = await self._ask("run", **asdict(task))
        seconds = float(answer.pop("seconds"))
        return _totals(answer), seconds

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
    tasks: Iterable[Task], done: Callable[[Task, Totals, float], None], *, jobs: int, hash_seed: int = HASH_SEED
) -> None:
    """Run every task, and tell ``done`` what came of it and how many seconds it took. The next one is asked for when a
    runner is free.
    """
    source = iter(tasks)

    async def work() -> None:
        async with Runner(hash_seed) as runner:
            for task in source:
                done(task, *await runner.run(task))

    async with asyncio.TaskGroup() as group:
        for _ in range(jobs):
            group.create_task(work())


def shares(scenario: str, seeds: range) -> Iterator[Task]:
    for first in range(seeds.start, seeds.stop, SHARE):
        yield Task(scenario, first, min(SHARE, seeds.stop - first))


def _totals(answer: dict[str, Any]) -> Totals:
    broken = {int(seed): violations for seed, violations in answer.pop("broken").items()}  # keys of JSON are text
    return Totals(**answer, broken=broken)


def _replayed(answer: dict[str, Any]) -> Replayed:
    settings, *lists = (answer.pop(name) for name in ("settings", "violations", "history", "trace"))
    return Replayed(_totals(answer), settings, *lists)


TURN_S = 0.5
MOST_SEEDS = 200
"""Per turn."""
GROWTH = 4
"""How much longer a turn may be than all before it: the first seeds tell little of the others."""


@dataclass
class _Account:
    next_seed: int
    spent_s: float = 0.0
    runs: int = 0
    reserved_s: dict[int, float] = field(default_factory=dict)
    """For turns that are being taken, by their first seed."""

    @property
    def per_run_s(self) -> float:
        return self.spent_s / self.runs if self.runs else TURN_S


class FairShares:
    def __init__(self, scenarios: Iterable[str], first_seed: int) -> None:
        self._accounts = {name: _Account(first_seed) for name in scenarios}
        self._unheard = list(self._accounts)

    @property
    def all_had_a_turn(self) -> bool:
        return not self._unheard

    def next(self) -> Task:
        if self._unheard:
            name, count = self._unheard.pop(0), 1
        else:
            name = min(self._accounts, key=lambda each: self._total(self._accounts[each]))
            known = self._accounts[name]
            count = max(1, min(MOST_SEEDS, GROWTH * known.runs, int(TURN_S / max(known.per_run_s, 1e-9))))
        account = self._accounts[name]
        task = Task(name, account.next_seed, count)
        account.reserved_s[account.next_seed] = count * account.per_run_s
        account.next_seed += count
        return task

    def done(self, task: Task, seconds: float) -> None:
        account = self._accounts[task.scenario]
        del account.reserved_s[task.first]
        account.spent_s += seconds
        account.runs += task.count

    @staticmethod
    def _total(account: _Account) -> float:
        return account.spent_s + sum(account.reserved_s.values())
