"""Cancelling runs that have children, under crashes and lost answers; and what happens without the rules."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.store import Store
from holdfast.runs.admin.control import request_cancel
from holdfast.runs.engine import children
from holdfast.runs.engine.replay import Replay
from holdfast.runs.engine.workflow import Workflow
from holdfast.sim.run import Run, Totals, simulate, simulate_drawn
from holdfast.sim.scenarios.runs import AFTERWARDS, CLEAN, PARENT, TOGETHER, RunsCancel
from holdfast.sim.world import Seed

SEEDS = range(1, 121)


def broken(run: Run) -> str:
    return "; ".join(run.violations)


def test_runs_and_their_children_are_cancelled_together_and_clean_up() -> None:
    totals = Totals()
    ended: set[object] = set()
    for seed in SEEDS:
        run = simulate(RunsCancel, seed)
        totals.include(run)
        ended |= {event.detail.value for event in run.trace.events if hasattr(event.detail, "value")}
    assert totals.broken == {}
    assert {"cancelled", "cancelling", "success"} <= ended, "all of them happen"
    assert totals.tally["crashes"] > 50


def test_children_that_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def leave(*_: Any) -> None:
        """The child is not this run's business."""

    monkeypatch.setattr(children, "stop", leave)
    found = [broken(simulate(RunsCancel, seed)) for seed in SEEDS]
    assert any(TOGETHER in each for each in found)
    assert any(AFTERWARDS in each for each in found)


def test_a_child_that_is_not_there_yet_is_left_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = children.stop

    async def stop_if_there(child: Workflow, store: Store, ambient: Ambient, parent: Mapping[str, str]) -> None:
        if await store.find(f"runs/{children.child_id(parent)}/journal.jsonl") is not None:
            await stop(child, store, ambient, parent)

    monkeypatch.setattr(children, "stop", stop_if_there)
    assert any(AFTERWARDS in broken(simulate(RunsCancel, seed)) for seed in range(1, 400))


@dataclass(frozen=True, kw_only=True)
class AtOnce(RunsCancel):
    """Whoever cancels ends the run in the same write."""

    name: ClassVar[str] = "at-once"

    async def request(self, store: Client) -> Any:
        return await request_cancel(store, PARENT, now=True)


def test_a_run_that_is_ended_at_once_cleans_up_nothing() -> None:
    drawn = [replace(AtOnce.drawn(Seed(seed).stream("settings")), with_code=False) for seed in SEEDS]
    found = [broken(simulate_drawn(each, Seed(seed))) for seed, each in zip(SEEDS, drawn, strict=True)]
    assert any(CLEAN in each for each in found)


def test_whoever_was_never_told_counts_as_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    noticed = property(lambda replay: replay._cancelled_at is not None, lambda *_: None)
    monkeypatch.setattr(Replay, "cancel_noticed", noticed, raising=False)
    assert any(CLEAN in broken(simulate(RunsCancel, seed)) for seed in range(1, 300))
