"""Workers that find runs through the derived index alone, while clients start runs, deliver events and die.

A run's key is written before its first entry, so a run whose client died is found without a repair: when the others
have stopped, a janitor first works off what the index shows, and no run may then be in the middle of its work. Mail
whose nudge was not written needs a repair: the janitor rebuilds the index and works again. In the end every run must be
over, and the index must say of each what its journal says. All of it is judged by keys and bytes.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from holdfast.base.errors import HoldfastError
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.runs.admin.control import reindex
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.worker import worker
from holdfast.runs.engine.workflow import Workflow, deliver, workflow
from holdfast.runs.journal.index import CREATION_MS, Rebuilt
from holdfast.sim.checkers.effects import ENDS, Execution, effects, entries_of, journals
from holdfast.sim.checkers.journal import course, well_formed
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.scenario import Scenario
from holdfast.sim.wire import QUIET_S
from holdfast.sim.world import Process, World

ROUNDS = 100
"""More than any janitor needs, so that a run which never ends is a finding."""

ALL_BACK_S = 15.0
"""Later than any process is crashed, paused or brought back."""

FOUND = "workers find every run that has begun, without a repair of the index"
OVER = "every run is over when the janitor is done"
INDEXED = "the index says of every run what its journal says, once"
NOTHING_ELSE = "the index speaks of no run that is not there"

_STATUS = {"complete": "success", "error": "failed", "cancel": "cancelled"}


@dataclass(frozen=True, kw_only=True)
class RunsWorker(Scenario):
    """Runs are started, woken and abandoned; workers find them through the index, and a repair finds the rest."""

    name: ClassVar[str] = "runs-worker"
    explorable: ClassVar[bool] = False

    clients: int = 1
    runs: int = 2
    workers: int = 1
    sleep_s: float = 0.0
    executions: list[Execution] = field(default_factory=list, compare=False, repr=False)
    missed: list[str] = field(default_factory=list, compare=False, repr=False)
    """Runs that no worker found before the first repair."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            clients=rng.randint(1, 2),
            runs=rng.randint(1, 3),
            workers=rng.randint(1, 2),
            sleep_s=rng.choice((0.0, 0.5)),
            faults=Faults.drawn(rng, lost_response=rng.choice((0.05, 0.2))),
            troubles=Troubles.drawn(rng),
            retry=RetryPolicy(attempts=rng.randint(4, 8), base_ms=rng.choice((1, 50)), max_ms=500, deadline_ms=20_000),
        )

    def begin(self, world: World) -> None:
        for number in range(self.clients):
            world.start(f"client{number + 1}", self.client)
        for number in range(self.workers):
            world.start(f"worker{number + 1}", self.work)
        world.start("janitor", self.janitor)

    async def client(self, process: Process) -> None:
        """Starts each run once, and answers it once: whoever dies in between is not replaced."""
        store = open_store(process)
        for number in range(self.runs):
            run_id = f"{process.name}-{number + 1}"
            await process.perform(
                "start", self.workflow(process).start(store, run_id=run_id), key=run_id, show=lambda told: told.status
            )
            await process.perform("deliver", deliver(store, run_id, "go", "yes", key="once"), key=run_id)

    async def work(self, process: Process) -> None:
        """Looks now and then, for a while."""
        for _ in range(4):
            await self.round(process)
            await asyncio.sleep(process.rng.random())

    async def round(self, process: Process) -> bool:
        store, flows = open_store(process), [self.workflow(process)]
        try:
            await worker(store, flows, concurrency=2, poll_ms=50, stale_after_ms=1_000, until_idle=True)
        except HoldfastError as error:
            process.note("gives up", str(error))
            return False
        return True

    async def janitor(self, process: Process) -> None:
        """Comes when the others have left; repairs, answers what nobody has answered, and works until all is over."""
        await asyncio.sleep(ALL_BACK_S)
        while any(other.working for other in process.world.processes if other.family != "janitor"):  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(1)
        store = open_store(process)
        await self.work_without_repair(process)
        for _ in range(ROUNDS):
            try:
                await self.answer_all(store)
                await self.repair(store)
            except HoldfastError as error:
                process.note("gives up", str(error))
                continue
            await self.round(process)
            await asyncio.sleep(2)
            if not _unfinished(process.world):
                await self.settle(process, store)
                return

    async def work_without_repair(self, process: Process) -> None:
        """Work off what the index shows, until two rounds in a row meet no fault. A run that is then still in the
        middle of its work was missed.
        """
        await asyncio.sleep(QUIET_S)
        for _ in range(ROUNDS):
            await asyncio.sleep(2)
            if await self.round(process) and await self.round(process):
                self.missed.extend(_at_work(process.world))
                return

    async def answer_all(self, store: Client) -> None:
        """Deliver to the runs that have no mail at all; those that have are to be found by the repair."""
        pages = [page async for page in store.list("runs/", delimiter=True)]
        for folder in (folder for page in pages for folder in page.folders):
            if not [key async for key in store.keys(f"{folder}mail/")]:
                await deliver(store, folder.split("/")[1], "go", "yes", key="once")

    async def repair(self, store: Client) -> Rebuilt:
        return await reindex(store)

    async def settle(self, process: Process, store: Client) -> None:
        """Repair until there is nothing left to repair, once no request and no creation of a run is under way."""
        await asyncio.sleep(2 * CREATION_MS / 1000)  # clocks differ
        for _ in range(ROUNDS):
            await asyncio.sleep(QUIET_S)
            try:
                mended = await self.repair(store)
            except HoldfastError as error:
                process.note("gives up", str(error))
            else:
                if not mended.written + mended.removed:
                    return

    def workflow(self, process: Process) -> Workflow:
        @workflow(version="1", name="errand")
        async def errand(ctx: Context) -> Any:
            async def effect(name: str) -> str:
                await asyncio.sleep(process.rng.random() * 0.1)
                token = f"{name}-{process.ambient.ids.attempt()}"
                run_id, _, step = ctx.key.partition("/")
                position = process.note("executes", ctx.key, token)
                self.executions.append(Execution(position, ctx.session, run_id, step, token))
                return token

            await ctx.step("before", effect, "before")
            answer = await ctx.suspend("go")
            if self.sleep_s:
                await ctx.sleep(seconds=self.sleep_s)
            return [answer, await ctx.step("after", effect, "after")]

        return errand

    def check(self, world: World) -> Iterator[Violation]:
        for run_id, its_course in journals(world.landings).items():
            grown = course(world.landings, f"runs/{run_id}/")
            yield from grown.violations
            yield from well_formed(grown.generations)
            yield from effects(run_id, its_course, self.executions)
        janitors = [process for process in world.processes if process.family == "janitor"]
        if not any(event.what == "finishes" and event.who == janitors[-1].name for event in world.trace.events):
            return  # it died for good, and nothing is promised without it
        if self.missed:
            yield Violation(FOUND, ", ".join(self.missed))
        if left := _unfinished(world):
            yield Violation(OVER, f"{left} after {ROUNDS} rounds")
            return
        yield from _index_is_right(world)


def open_store(process: Process) -> Client:
    return process.store


def _ends(world: World) -> dict[str, str]:
    """Of every run, the type of its last entry."""
    return {
        key.split("/")[1]: entries_of(found.body)[-1]["type"]
        for key, found in world.truth.shelf.objects.items()
        if key.startswith("runs/") and key.endswith("/journal.jsonl")
    }


def _at_work(world: World) -> list[str]:
    return [run_id for run_id, last in _ends(world).items() if last in ("start", "step", "resume")]


def _unfinished(world: World) -> list[str]:
    return [run_id for run_id, last in _ends(world).items() if last not in ENDS]


def _index_is_right(world: World) -> Iterator[Violation]:
    keys = [key.split("/") for key in world.truth.shelf.objects if key.startswith("runs-index/")]
    ends = _ends(world)
    for run_id, last in ends.items():
        said = [parts for parts in keys if run_id in parts]
        right = [parts for parts in said if parts[2] == "done" and parts[-1].split(".")[2] == _STATUS[last]]
        if len(said) != 1 or right != said:
            yield Violation(INDEXED, f"{run_id} ended with {last}, and the index has {said}")
    for parts in keys:
        if not ends.keys() & set(parts) and not parts[-1].startswith("!"):  # mail may come before its run
            yield Violation(NOTHING_ELSE, "/".join(parts))
