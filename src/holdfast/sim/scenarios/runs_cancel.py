"""A parent and its child, called by dispatchers that crash and overtake each other, and cancelled meanwhile.

Steps take something from the world outside, clean-up steps give it back. The checkers know what was taken, given back
and recorded, from notes outside the store and from the bytes of the journals.
"""

import asyncio
import random
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from holdfast.objects.client import Client
from holdfast.runs.admin.control import request_cancel
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.workflow import Workflow, workflow
from holdfast.runs.errors import Cancelled
from holdfast.sim.checkers.effects import ENDS, Execution, effects, journals
from holdfast.sim.checkers.journal import course, well_formed
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

PARENT = "parent"
CHILD = "parent.child"
CALLS = 60

CLEAN = "a run that was cancelled has given back what it took"
STOPPED = "a run that was asked to stop before its last step does not succeed"
TOGETHER = "a child is over, or cleaning up, when its cancelled parent is over"
AFTERWARDS = "a child takes nothing any more when its cancelled parent is over"
TOLD = "every caller is told how the run ended"


@dataclass(frozen=True, kw_only=True)
class RunsCancel(Scenario):
    """A run and its child are cancelled while others work on them; both clean up, and nothing goes on behind them."""

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
            faults=Faults.drawn(rng, lost_response=rng.choice((0.05, 0.25))),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.dispatchers):
            world.start(f"caller{number + 1}", self.caller)
        world.start("canceller", self.canceller)

    async def caller(self, process: Process) -> None:
        store = self.open(process)
        parent = self.workflows(process)
        for _ in range(CALLS):
            outcome = await process.perform(
                "start", parent.start(store, run_id=PARENT), key=PARENT, show=lambda told: told.status
            )
            if isinstance(outcome, Done) and outcome.result.finished:
                return
            await asyncio.sleep(process.rng.random() * 2)
        process.world.failures.append(f"{process.name} called {CALLS} times, and the run is not over")

    async def canceller(self, process: Process) -> None:
        store = self.open(process)
        parent = self.workflows(process)
        for _ in range(CALLS):
            await asyncio.sleep(process.rng.random())
            work: Awaitable[Any] = parent.cancel(store, PARENT) if self.with_code else self.request(store)
            outcome = await process.perform("cancel", work, key=PARENT, show=lambda told: told.status)
            if isinstance(outcome, Done) and outcome.value in ("cancelled", "cancelling", "success"):
                return

    async def request(self, store: Client) -> Any:
        return await request_cancel(store, PARENT)

    def open(self, process: Process) -> Client:
        return process.store

    def workflows(self, process: Process) -> Workflow:
        async def effect(ctx: Context, name: str) -> str:
            await asyncio.sleep(process.rng.random() * 0.2)
            token = f"{name}-{process.ambient.ids.attempt()}"
            run_id, _, step = ctx.key.partition("/")
            position = process.note("executes", ctx.key, token)
            self.executions.append(Execution(position, ctx.session, run_id, step, token))
            return token

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
        found = journals(world.landings)
        for run_id, its_course in found.items():
            grown = course(world.landings, f"runs/{run_id}/")
            yield from grown.violations
            yield from well_formed(grown.generations)
            yield from effects(run_id, its_course, self.executions)
            yield from _cleaned_up(run_id, its_course[-1][1])
        yield from _together(found)
        if PARENT in found:
            yield from _told(world, found[PARENT][-1][1])


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


def _told(world: World, entries: list[dict[str, Any]]) -> Iterator[Violation]:
    said = {str(operation.outcome.value) for operation in world.operations if isinstance(operation.outcome, Done)}
    over = said & {"cancelled", "success", "failed"}
    ends = {"cancel": "cancelled", "complete": "success", "error": "failed"}
    if over and over != {ends.get(entries[-1]["type"])}:
        yield Violation(TOLD, f"told {sorted(over)}, and the journal ends with {entries[-1]}")
