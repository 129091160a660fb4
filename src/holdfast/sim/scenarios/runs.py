"""Workflows: callers that crash and overtake each other, workers that go by the index, and cancellation.

Step functions note every execution outside the simulated store, as a real side effect would be. The checkers read the
journal's bytes with a reader of their own and compare them with those notes and with the answers to callers.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from holdfast.base.errors import HoldfastError
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.runs.admin.control import reindex, request_cancel
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.worker import worker
from holdfast.runs.engine.workflow import Workflow, deliver, workflow
from holdfast.runs.errors import Cancelled, StepFailed
from holdfast.runs.journal.index import CREATION_MS, Rebuilt
from holdfast.sim.checkers.runs import ENDS, Execution, entries_of, executed_as_recorded, journals
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done, Violation, answers
from holdfast.sim.scenario import Scenario, surroundings
from holdfast.sim.wire import QUIET_S
from holdfast.sim.world import Process, World

RUN_ID = "run"
CALLS = 60
"""More calls than any dispatcher needs, so that a run which never ends is a finding."""


async def execute(executions: list[Execution], process: Process, ctx: Context, name: str, within_s: float = 0.1) -> str:
    """A step's function: takes a moment, and leaves a note outside the simulated store."""
    await asyncio.sleep(process.rng.random() * within_s)
    token = f"{name}-{process.ambient.ids.attempt()}"
    run_id, _, step = ctx.key.partition("/")
    executions.append(Execution(process.note("executes", ctx.key, token), ctx.session, run_id, step, token))
    return token


async def call_until_over(
    process: Process, work: Workflow, run_id: str, help_out: Callable[[], Awaitable[None]] | None = None
) -> None:
    """Call the run until it has ended; ``help_out`` after a third of all calls. The answers are status and result."""
    for turn in range(CALLS):
        if help_out is not None and turn == CALLS // 3:
            await help_out()
        starting = work.start(process.store, run_id=run_id)
        outcome = await process.perform("start", starting, key=run_id, show=lambda end: (end.status, end.result))
        if isinstance(outcome, Done) and outcome.result.finished:
            return
        await asyncio.sleep(process.rng.random() * 2)
    process.world.failures.append(f"{process.name} called {CALLS} times, and the run is not over")


@dataclass(frozen=True, kw_only=True)
class RunsWorkflow(Scenario):
    """Dispatchers call one workflow with steps, a parallel group, a wait and a sleep; everything is recorded once."""

    name: ClassVar[str] = "runs-workflow"
    explorable: ClassVar[bool] = False

    dispatchers: int = 2
    steps: int = 2
    wide: int = 0
    waits: bool = False
    sleep_s: float = 0.0
    notes: bool = False
    """Ask for the time and an id first, and use them in the steps after."""
    failing: bool = False
    """A group with a member that fails half of the time, which the workflow catches."""
    beside: int = 0
    """Steps in tasks of the workflow's own making."""
    executions: list[Execution] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            dispatchers=rng.randint(1, 4),
            steps=rng.randint(1, 6),
            wide=rng.choice((0, 2, 4)),
            waits=rng.random() < 0.5,
            sleep_s=rng.choice((0.0, 0.5)),
            notes=rng.random() < 0.5,
            failing=rng.random() < 0.5,
            beside=rng.choice((0, 0, 3)),
            **surroundings(rng, lost_response=rng.choice((0.05, 0.25))),
        )

    def begin(self, world: World) -> None:
        world.start_all("caller", self.dispatchers, self.caller)
        if self.waits:
            world.start("operator", self.operator)

    async def caller(self, process: Process) -> None:
        async def help_out() -> None:
            if self.waits:  # the operator may be dead for good
                await self.operator(process)

        await call_until_over(process, self.workflow(process), RUN_ID, help_out)

    async def operator(self, process: Process) -> None:
        store = process.store
        await asyncio.sleep(process.rng.random())
        while True:
            try:
                await deliver(store, RUN_ID, "approval", "granted", key="once")
            except HoldfastError:
                await asyncio.sleep(0.1)
            else:
                return

    def workflow(self, process: Process) -> Workflow:
        @workflow(version="1", name="simulated")
        async def simulated(ctx: Context) -> list[Any]:
            async def effect(name: str) -> str:
                return await execute(self.executions, process, ctx, name)

            async def perhaps(name: str) -> str:
                token = await effect(name)
                if process.rng.random() < 0.5:
                    raise ValueError(token)
                return token

            results: list[Any] = [await ctx.step("work", effect, f"work{n}") for n in range(self.steps)]
            note = ""
            if self.notes:
                note = f"{await ctx.unique()}{(await ctx.now()).isoformat()}"
            if self.failing:
                try:
                    calls = {"a": (effect, f"a{note}"), "b": (perhaps, f"b{note}"), "c": (effect, f"c{note}")}
                    results.append(await ctx.parallel("failing", calls, limit=2))
                except StepFailed as failed:
                    results.append(failed.message)
            if self.beside:
                keyed = (ctx.step("beside", effect, f"beside{note}{results[-1]}", key=n) for n in range(self.beside))
                results.append(await asyncio.gather(*keyed))
            if self.notes:
                results.append(note)
            if self.wide:
                results.append(await ctx.parallel("wide", {str(n): (effect, f"wide{n}") for n in range(self.wide)}))
            if self.waits:
                results.append(await ctx.suspend("approval"))
            if self.sleep_s:
                await ctx.sleep(seconds=self.sleep_s)
            results.append(await ctx.step("last", effect, "last"))
            return results

        return simulated

    def check(self, world: World) -> Iterator[Violation]:
        yield from executed_as_recorded(world.landings, self.executions)
        its_course = journals(world.landings).get(RUN_ID)
        entries = its_course[-1][1] if its_course else []
        yield from _one_result(world, entries)
        if self.notes:
            yield from _one_note(entries)


def _one_note(entries: list[dict[str, Any]]) -> Iterator[Violation]:
    """What was drawn once is what every recorded step was given."""
    drawn = {entry["name"]: entry["result"] for entry in entries if entry.get("name") in ("now", "unique")}
    users = [entry for entry in entries if entry.get("name") in ("failing", "beside")]
    for entry in users:
        said = entry["error"]["message"] if "error" in entry else entry["result"]
        if len(drawn) < 2 or f"{drawn['unique']}{drawn['now']}" not in said:
            yield Violation("a recorded note is the one that steps were given", f"{entry}, but {drawn}")


def _one_result(world: World, entries: list[dict[str, Any]]) -> Iterator[Violation]:
    results = [result for _, (status, result) in answers(world.operations, "start") if status == "success"]
    final = [entry["result"] for entry in entries if entry["type"] == "complete"]
    if len(final) > 1 or any(result != final[0] for result in results if final) or (results and not final):
        yield Violation("every caller gets the one recorded result", f"answered {results}, recorded {final}")


ROUNDS = 100
"""More than any janitor needs, so that a run which never ends is a finding."""

ALL_BACK_S = 15.0
"""Later than any process is crashed, paused or brought back."""

FOUND = "workers find every run that has begun, without a repair of the index"
OVER = "every run has ended when the janitor is done"
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
        world.start_all("client", self.clients, self.client)
        world.start_all("worker", self.workers, self.work)
        world.start("janitor", self.janitor)

    async def client(self, process: Process) -> None:
        """Starts each run once, and answers it once: a client that dies in between is not replaced."""
        store = process.store
        for number in range(self.runs):
            run_id = f"{process.name}-{number + 1}"
            await process.perform(
                "start",
                self.workflow(process).start(store, run_id=run_id),
                key=run_id,
                show=lambda reported: reported.status,
            )
            await process.perform("deliver", deliver(store, run_id, "go", "yes", key="once"), key=run_id)

    async def work(self, process: Process) -> None:
        """Looks now and then, for a while."""
        for _ in range(4):
            await self.round(process)
            await asyncio.sleep(process.rng.random())

    async def round(self, process: Process) -> bool:
        flows = [self.workflow(process)]
        try:
            await worker(process.store, flows, concurrency=2, poll_ms=50, stale_after_ms=1_000, until_idle=True)
        except HoldfastError as error:
            process.note("gives up", str(error))
            return False
        return True

    async def janitor(self, process: Process) -> None:
        """Starts when the others have ended; repairs, answers what is unanswered, works until all runs have ended."""
        await asyncio.sleep(ALL_BACK_S)
        while any(other.working for other in process.world.processes if other.family != "janitor"):  # noqa: ASYNC110  # there is no event
            await asyncio.sleep(1)
        store = process.store
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
                return await execute(self.executions, process, ctx, name)

            await ctx.step("before", effect, "before")
            answer = await ctx.suspend("go")
            if self.sleep_s:
                await ctx.sleep(seconds=self.sleep_s)
            return [answer, await ctx.step("after", effect, "after")]

        return errand

    def check(self, world: World) -> Iterator[Violation]:
        yield from executed_as_recorded(world.landings, self.executions)
        janitors = [process for process in world.processes if process.family == "janitor"]
        if not any(event.what == "finishes" and event.who == janitors[-1].name for event in world.trace.events):
            return  # it died for good, and nothing is promised without it
        if self.missed:
            yield Violation(FOUND, ", ".join(self.missed))
        if left := _unfinished(world):
            yield Violation(OVER, f"{left} after {ROUNDS} rounds")
            return
        yield from _index_is_right(world)


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


PARENT = "parent"
CHILD = "parent.child"

CLEAN = "a run that was cancelled has given back what it took"
STOPPED = "a run that was asked to stop before its last step does not succeed"
TOGETHER = "a child has ended, or is cleaning up, when its cancelled parent has ended"
AFTERWARDS = "a child accepts nothing any more when its cancelled parent has ended"
ANSWERED = "every caller learns how the run ended"


@dataclass(frozen=True, kw_only=True)
class RunsCancel(Scenario):
    """A run and its child are cancelled while others work on them; both clean up, and nothing continues after them."""

    name: ClassVar[str] = "runs-cancel"
    explorable: ClassVar[bool] = False

    dispatchers: int = 2
    takes: int = 2
    notes: bool = False
    """Ask for an id just before the child: it is recorded with what comes next."""
    child: bool = True
    with_code: bool = True
    """Whether the one who cancels has the workflow's code."""
    executions: list[Execution] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def drawn(cls, rng: random.Random) -> Self:
        return cls(
            dispatchers=rng.randint(1, 3),
            takes=rng.randint(1, 3),
            notes=rng.random() < 0.5,
            child=rng.random() < 0.8,
            with_code=rng.random() < 0.5,
            **surroundings(rng, lost_response=rng.choice((0.05, 0.25))),
        )

    def begin(self, world: World) -> None:
        world.start_all("caller", self.dispatchers, self.caller)
        world.start("canceller", self.canceller)

    async def caller(self, process: Process) -> None:
        await call_until_over(process, self.workflows(process), PARENT)

    async def canceller(self, process: Process) -> None:
        store = process.store
        parent = self.workflows(process)
        for _ in range(CALLS):
            await asyncio.sleep(process.rng.random())
            work: Awaitable[Any] = parent.cancel(store, PARENT) if self.with_code else self.request(store)
            outcome = await process.perform("cancel", work, key=PARENT, show=lambda reported: reported.status)
            if isinstance(outcome, Done) and outcome.value in ("cancelled", "cancelling", "success"):
                return

    async def request(self, store: Client) -> Any:
        return await request_cancel(store, PARENT)

    def workflows(self, process: Process) -> Workflow:
        async def effect(ctx: Context, name: str) -> str:
            return await execute(self.executions, process, ctx, name, within_s=0.2)

        async def take_and_give(ctx: Context) -> list[str]:
            """Take things one by one; when cancelled, give back those that were taken."""
            taken: list[str] = []
            try:
                for number in range(self.takes):
                    await ctx.step("take", effect, ctx, f"take{number}", key=number)
                    taken.append(str(number))
                if ctx.run_id == PARENT and self.notes:
                    await ctx.unique()
                if ctx.run_id == PARENT and self.child:
                    await ctx.run(child)
                await ctx.step("use", effect, ctx, "use")
            except Cancelled:
                for thing in taken:
                    await ctx.step("give", effect, ctx, f"give{thing}", key=thing)
                raise
            return taken

        @workflow(version="1", name="child")
        async def child(ctx: Context) -> list[str]:
            return await take_and_give(ctx)

        @workflow(version="1", name=PARENT)
        async def parent(ctx: Context) -> list[str]:
            return await take_and_give(ctx)

        return parent

    def check(self, world: World) -> Iterator[Violation]:
        yield from executed_as_recorded(world.landings, self.executions)
        found = journals(world.landings)
        for run_id, its_course in found.items():
            yield from _cleaned_up(run_id, its_course[-1][1])
        yield from _together(found)
        if PARENT in found:
            yield from _answered(world, found[PARENT][-1][1])


def _cleaned_up(run_id: str, entries: list[dict[str, Any]]) -> Iterator[Violation]:
    asked = next((entry["offset"] for entry in entries if entry.get("cancelling")), None)
    late = {entry["type"] for entry in entries[asked:]} if asked is not None else set()
    if late >= {"step", "complete"}:
        yield Violation(STOPPED, f"{run_id}: {entries[asked:]}")
    if entries[-1]["type"] != "cancel":
        return
    taken = [entry["stepId"] for entry in entries if entry.get("name") == "take"]
    given = [entry["stepId"] for entry in entries if entry.get("name") == "give"]
    if given != [step.replace("take", "give") for step in taken]:
        yield Violation(CLEAN, f"{run_id} took {taken} and gave back {given}")


def _together(found: dict[str, list[tuple[int, list[dict[str, Any]]]]]) -> Iterator[Violation]:
    """The parent ended by a cancellation: what of its child, then and afterwards?"""
    ended = [position for position, entries in found.get(PARENT, ()) if entries[-1]["type"] == "cancel"]
    if not ended or CHILD not in found:
        return
    before = [entries for position, entries in found[CHILD] if position < ended[0]]
    last = found[CHILD][-1][1]
    if last[-1]["type"] not in ENDS and not any(entry.get("cancelling") for entry in last):
        yield Violation(TOGETHER, f"the child's last entries are {last[-2:]}")
    known = len(before[-1]) if before else 0
    late = [entry for entry in last[known:] if entry.get("name") in ("take", "use")]
    if late:
        yield Violation(AFTERWARDS, f"recorded after the parent's end: {late}")


def _answered(world: World, entries: list[dict[str, Any]]) -> Iterator[Violation]:
    said = {str(status) for _, status in answers(world.operations, "cancel")}
    said |= {str(status) for _, (status, _) in answers(world.operations, "start")}
    over = said & {"cancelled", "success", "failed"}
    ends = {"cancel": "cancelled", "complete": "success", "error": "failed"}
    if over and over != {ends.get(entries[-1]["type"])}:
        yield Violation(ANSWERED, f"answered {sorted(over)}, and the journal ends with {entries[-1]}")
