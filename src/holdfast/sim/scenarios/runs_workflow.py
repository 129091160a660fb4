"""A workflow called again and again by dispatchers that crash, pause and overtake each other.

Step functions note every execution outside the simulated store, as a real side effect would be. The checkers read the
journal's bytes with a reader of their own and compare them with those notes and with what the dispatchers were told.
"""

import asyncio
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

from holdfast.base.errors import HoldfastError
from holdfast.runs.engine.context import Context
from holdfast.runs.engine.workflow import Workflow, deliver, workflow
from holdfast.runs.errors import StepFailed
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.faults import Faults, Troubles
from holdfast.sim.history import Done
from holdfast.sim.scenario import Scenario, retries
from holdfast.sim.world import Process, World

RUN_ID = "run"
JOURNAL = f"runs/{RUN_ID}/journal.jsonl"
CALLS = 60
"""More calls than any dispatcher needs, so that a run which never ends is a finding."""


class Execution(NamedTuple):
    """A step's function ran: where in the order of events, for whom, under which key, with what result."""

    position: int
    session: int
    key: str
    result: str


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
            faults=Faults.drawn(rng, lost_response=rng.choice((0.05, 0.25))),
            troubles=Troubles.drawn(rng),
            retry=retries(rng),
        )

    def begin(self, world: World) -> None:
        for number in range(self.dispatchers):
            world.start(f"caller{number + 1}", self.caller)
        if self.waits:
            world.start("operator", self.operator)

    async def caller(self, process: Process) -> None:
        store = process.store
        work = self.workflow(process)
        for turn in range(CALLS):
            if self.waits and turn == CALLS // 3:  # the operator may be dead for good
                await self.operator(process)
            outcome = await process.perform(
                "start", work.start(store, run_id=RUN_ID), key=RUN_ID, show=lambda told: (told.status, told.result)
            )
            if isinstance(outcome, Done) and outcome.result.finished:
                return
            await asyncio.sleep(process.rng.random() * 2)
        process.world.failures.append(f"{process.name} called {CALLS} times, and the run is not finished")

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
                await asyncio.sleep(process.rng.random() * 0.1)
                token = f"{name}-{process.ambient.ids.attempt()}"
                position = process.note("executes", ctx.key, token)
                self.executions.append(Execution(position, ctx.session, ctx.key, token))
                return token

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
        landed = [(landing.position, _lines(landing.body)) for landing in world.landings if landing.key == JOURNAL]
        recorded: dict[str, tuple[int, dict[str, Any]]] = {}
        for (_, before), (position, after) in zip([(0, list[Any]()), *landed], landed, strict=False):
            if after[: len(before)] != before:
                yield Violation("a journal only grows", f"{after} replaced {before}")
            for entry in after[len(before) :]:
                if entry["type"] == "step":
                    if entry["stepId"] in recorded:
                        yield Violation("a step is recorded once", f"{entry['stepId']} in {after}")
                    recorded[entry["stepId"]] = position, entry
        entries = landed[-1][1] if landed else []
        yield from _one_writer_at_a_time(entries)
        yield from self._recorded_is_what_ran(recorded, _starts(landed))
        yield from _one_result(world, entries)
        if self.notes:
            yield from _one_note(entries)

    def _recorded_is_what_ran(
        self, recorded: dict[str, tuple[int, dict[str, Any]]], starts: dict[int, int]
    ) -> Iterator[Violation]:
        for step, (position, entry) in recorded.items():
            runs = [execution for execution in self.executions if execution.key == f"{RUN_ID}/{step}"]
            if entry["name"] in ("now", "unique"):
                continue
            said = entry["error"]["message"] if "error" in entry else entry["result"]
            if not any(run.session == entry["session"] and run.result == said for run in runs):
                yield Violation("what is recorded was executed by the session that recorded it", f"{entry} of {runs}")
            again = [run for run in runs if position < starts.get(run.session, 0)]
            if again:
                yield Violation("a recorded step never runs again", f"{step} was recorded at {position}: {again}")


def _one_note(entries: list[dict[str, Any]]) -> Iterator[Violation]:
    """What was drawn once is what every recorded step was given."""
    drawn = {entry["name"]: entry["result"] for entry in entries if entry.get("name") in ("now", "unique")}
    users = [entry for entry in entries if entry.get("name") in ("failing", "beside")]
    for entry in users:
        said = entry["error"]["message"] if "error" in entry else entry["result"]
        if len(drawn) < 2 or f"{drawn['unique']}{drawn['now']}" not in said:
            yield Violation("a recorded note is the one that steps were given", f"{entry}, but {drawn}")


def _lines(body: bytes | None) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (body or b"").splitlines()]


def _starts(landed: list[tuple[int, list[dict[str, Any]]]]) -> dict[int, int]:
    """Where each session's ``start`` landed."""
    starts: dict[int, int] = {}
    for position, entries in landed:
        for entry in entries:
            if entry["type"] == "start":
                starts.setdefault(entry["session"], position)
    return starts


def _one_writer_at_a_time(entries: list[dict[str, Any]]) -> Iterator[Violation]:
    newest = 0
    for offset, entry in enumerate(entries):
        if entry["offset"] != offset:
            yield Violation("offsets count up", f"{entry} at {offset}")
        if entry["session"] < newest or (entry["type"] == "start" and entry["session"] <= newest):
            yield Violation("no older session writes after a newer one has started", f"{entry} after session {newest}")
        newest = max(newest, entry["session"])


def _one_result(world: World, entries: list[dict[str, Any]]) -> Iterator[Violation]:
    told = [operation.outcome.value for operation in world.operations if isinstance(operation.outcome, Done)]
    results = [value[1] for value in told if isinstance(value, tuple) and value[0] == "success"]
    final = [entry["result"] for entry in entries if entry["type"] == "complete"]
    if len(final) > 1 or any(result != final[0] for result in results if final) or (results and not final):
        yield Violation("every caller is told the one recorded result", f"told {results}, recorded {final}")
