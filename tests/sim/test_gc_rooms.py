"""Garbage collection of the ontology and of runs, beside all who work on them: what is referred to, or may come to be,
stays; and each rule is needed, for without it a world shows the harm.
"""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout as commits
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.types.refs import Place
from holdfast.pipeline.gc.sweep import Sweep
from holdfast.pipeline.jobs.gc import Sweeper
from holdfast.runs import layout
from holdfast.runs.journal.history import read_history
from holdfast.sim.checkers.gc import CHAINED, OWNED
from holdfast.sim.explore import Limits, explore
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.gc import GcOntology, GcRuns
from holdfast.sim.scenarios.ontology import MARK

QUIET = Limits(crashes=0, lost_responses=0)


SMALL = [
    (GcOntology(compactors=0, marks=1), Limits(crashes=1, lost_responses=0)),
    (GcOntology(writers=0), QUIET),
    (GcRuns(deleters=0), Limits(crashes=1, lost_responses=0)),
    (GcRuns(forkers=0, late=1), QUIET),
    pytest.param(
        GcRuns(forkers=0, deleters=0, workers=1, sessions=2),
        Limits(crashes=1, lost_responses=0),
        marks=pytest.mark.soak,
    ),
]


@pytest.mark.timeout(600)  # as above
@pytest.mark.parametrize(
    ("scenario", "limits"),
    SMALL,
    ids=["a committer", "a compactor", "a fork", "a deletion and what comes late", "two sessions"],
)
def test_no_course_of_one_collector_of_garbage_and_one_other_does_harm(scenario: Scenario, limits: Limits) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.states > 20


# --- every rule is needed ---


async def takes_what_is_not_on_the_chain(_: str, out: Sweep) -> None:
    """Attempts at the next commit too: it is not made yet."""
    store = out.store
    head = (await read_head(store)).place
    async for page in store.list(commits.COMMITS, delimiter=True):
        for folder in page.folders:
            place = Place(commits.commit_of_folder(folder) or 0, f"{folder}manifest.json")
            if head is None or place.commit_id > head.commit_id or not await Chain(store).contains(head, place):
                for key in [key async for key in store.keys(folder)]:
                    await out.remove(key, 0, "not on the chain")


async def looks_at_the_index_first(_: str, out: Sweep) -> None:
    """What is published between the look and the listing is not named by what was seen."""
    store = out.store
    named = {entry.path for entry in (await read_index(store, MARK)).entries}
    for key in [key async for key in store.keys(commits.SNAPSHOTS)]:
        if key not in named:
            await out.remove(key, 0, "no index names it")


async def takes_what_has_no_journal(_: str, out: Sweep) -> None:
    """A fork that is on its way has payloads first."""
    store = out.store
    async for page in store.list(layout.ROOT, delimiter=True):
        for run_id in map(layout.run_of_folder, page.folders):
            keys = [key async for key in store.keys(layout.run_folder(run_id))]
            if layout.journal_key(run_id) not in keys:
                for key in keys:
                    await out.remove(key, 0, "its run does not exist")


async def lists_after_the_journal(_: str, out: Sweep) -> None:
    """A session that goes on with the run writes its payload in between."""
    store = out.store
    async for page in store.list(layout.ROOT, delimiter=True):
        for run_id in map(layout.run_of_folder, page.folders):
            history = await read_history(store, run_id)
            if history is None or not history.state.finished:
                continue
            used = {str(each.fields["payload"]["key"]) for each in history.entries if "payload" in each.fields}
            for key in [key async for key in store.keys(layout.payload_folder(run_id))]:
                if key not in used:
                    await out.remove(key, 0, "nothing refers to it")


@dataclass(frozen=True, kw_only=True)
class NotOnTheChain(GcOntology):
    sweep: ClassVar[Sweeper] = staticmethod(takes_what_is_not_on_the_chain)
    compactors: int = 0
    marks: int = 1


@dataclass(frozen=True, kw_only=True)
class IndexFirst(GcOntology):
    sweep: ClassVar[Sweeper] = staticmethod(looks_at_the_index_first)
    writers: int = 0


@dataclass(frozen=True, kw_only=True)
class JournalFirst(GcRuns):
    sweep: ClassVar[Sweeper] = staticmethod(lists_after_the_journal)
    forkers: int = 0
    deleters: int = 0
    workers: int = 1
    sessions: int = 2


@dataclass(frozen=True, kw_only=True)
class UnbornForksDead(GcRuns):
    sweep: ClassVar[Sweeper] = staticmethod(takes_what_has_no_journal)
    deleters: int = 0


@pytest.mark.parametrize(
    ("naive", "harm"),
    [(NotOnTheChain(), CHAINED), (IndexFirst(), CHAINED), (JournalFirst(), OWNED), (UnbornForksDead(), OWNED)],
    ids=lambda value: type(value).__name__ if isinstance(value, Scenario) else "",
)
def test_a_naive_collector_of_garbage_does_harm(naive: Scenario, harm: str) -> None:
    found = explore(naive, QUIET).found
    assert found is not None
    assert any(violation.startswith(harm) for violation in found.violations), found.violations
