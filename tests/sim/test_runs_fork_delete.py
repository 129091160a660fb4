"""Forks against deleters: the order of writing and looking on both sides is what keeps payloads."""

from dataclasses import dataclass

import pytest

from holdfast.runs import layout
from holdfast.runs.admin.delete import _TOMBSTONE, Deleted, _forks, _forks_in_need
from holdfast.runs.admin.fork import Forked, _check_undisturbed, _copy, _register
from holdfast.runs.journal.history import History, read_history
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.segments import SegmentPolicy
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.runs_journal import KEPT, RunsForkDelete
from holdfast.sim.world import Process

NO_TROUBLE = Limits(crashes=0, lost_responses=0)


def test_no_fork_is_robbed_whatever_goes_wrong() -> None:
    runs = [simulate(RunsForkDelete, seed) for seed in range(100)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        (RunsForkDelete(), Limits(crashes=1, lost_responses=0)),
        (RunsForkDelete(), Limits(crashes=0, lost_responses=1)),
    ],
    ids=["crash", "lost answer"],
)
def test_every_order_of_events(scenario: RunsForkDelete, limits: Limits) -> None:
    assert explore(scenario, limits).found is None


async def source_of(process: Process, source: str) -> History:
    history = await read_history(process.store, source)
    assert history is not None
    return history


async def copy(process: Process, history: History, name: str) -> None:
    base = await _copy(process.store, process.ambient, history, 2, name, SegmentPolicy())
    await Journal.begin(process.store, process.ambient, name, base, {})


@dataclass(frozen=True, kw_only=True)
class Unregistered(RunsForkDelete):
    async def fork(self, process: Process, source: str, name: str) -> Forked | None:
        await copy(process, await source_of(process, source), name)
        return None


@dataclass(frozen=True, kw_only=True)
class LooksFirst(RunsForkDelete):
    """The fork looks at its source, and registers then."""

    async def fork(self, process: Process, source: str, name: str) -> Forked | None:
        history = await source_of(process, source)
        await _check_undisturbed(process.store, history)
        await _register(process.store, process.ambient, {source}, name, source, 2)
        await copy(process, history, name)
        return None


@dataclass(frozen=True, kw_only=True)
class DeletesAfterLooking(RunsForkDelete):
    """The deleter looks for forks, and writes its tombstone then."""

    async def delete(self, process: Process, run_id: str) -> Deleted | None:
        store, ambient = process.store, process.ambient
        needed_by = await _forks_in_need(store, ambient, run_id)
        await Journal.supersede(store, ambient, await source_of(process, run_id), {}, _TOMBSTONE)
        if not needed_by:
            await store.delete_many([key async for key in store.keys(layout.payload_folder(run_id))])
        return None


@dataclass(frozen=True, kw_only=True)
class TakesAbsentForDead(RunsForkDelete):
    """A registration whose fork does not exist is taken for what a crash left behind."""

    async def delete(self, process: Process, run_id: str) -> Deleted | None:
        store = process.store
        await Journal.supersede(store, process.ambient, await source_of(process, run_id), {}, _TOMBSTONE)
        if not [name async for name, needs in _forks(store, run_id) if needs]:
            await store.delete_many([key async for key in store.keys(layout.payload_folder(run_id))])
        return None


@pytest.mark.parametrize(
    "naive",
    [Unregistered(), LooksFirst(), DeletesAfterLooking(), TakesAbsentForDead()],
    ids=lambda scenario: type(scenario).__name__,
)
def test_a_naive_order_robs_a_fork(naive: RunsForkDelete) -> None:
    found = explore(naive, NO_TROUBLE).found
    assert found is not None
    assert any(violation.startswith(KEPT) for violation in found.violations), found.violations
