"""Commits and sinks of an ontology: the scenarios hold, and each naive part breaks its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar, Self

import pytest

from holdfast.objects.store import Lost, Object, Written
from holdfast.ontology.bulk.load import Loader, Request
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.chain.state import Latest, latest_rows, read_ledger
from holdfast.ontology.commit.attempt import Attempt, Draft, Order
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index
from holdfast.ontology.types.refs import FileRef, Position, TypeId
from holdfast.sim.checkers.objects import NO_FALSE_CONFLICT, ONCE
from holdfast.sim.checkers.ontology import ATOMIC, KEPT, MONOTONIC, NO_LOST_UPDATE, SAME_ROWS, TRUE_NO_OP, UNBROKEN
from holdfast.sim.checkers.ontology import ONCE as BATCH_ONCE
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.ontology import OntologyCommit, OntologySink
from holdfast.sim.world import Process

LOST_ANSWER = Limits(crashes=0, lost_responses=1)


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        pytest.param(OntologyCommit(settled=False), LOST_ANSWER, id="lost answer"),
        pytest.param(OntologyCommit(settled=False, again=1), LOST_ANSWER, id="asked again", marks=pytest.mark.soak),
        pytest.param(OntologyCommit(), Limits(crashes=1, lost_responses=0), id="crash", marks=pytest.mark.soak),
        pytest.param(OntologyCommit(), LOST_ANSWER, id="settled", marks=pytest.mark.soak),
        pytest.param(OntologyCommit(writers=1, plain=1), LOST_ANSWER, id="plain writer"),
    ],
)
def test_every_order_of_events_of_two_committers(scenario: OntologyCommit, limits: Limits) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.paths > 100


NO_TROUBLE = Limits(crashes=0, lost_responses=0)
LATE = Limits(crashes=0, lost_responses=0, timeouts=1)


class WithoutLookingIntoTheChain(Committer):
    """Takes every lost race and every lost answer for proof that its commit is not there."""

    async def landed(self, attempt: Attempt) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class NoLook(OntologyCommit):
    committer: ClassVar[type[Committer]] = WithoutLookingIntoTheChain
    settled: bool = False
    again: int = 1


class WithStaleDelta(Committer):
    """After a lost race it publishes what it had computed before."""

    drafted: Draft | None = None

    async def _draft(self, metadata: Mapping[str, Any], order: Order) -> Draft | None:
        if self.drafted is None:
            self.drafted = await super()._draft(metadata, order)
        return self.drafted

    async def refresh(self, found: Object | None = None) -> None:
        await super().refresh(found)
        await self._view.states(self._types)


class WithFreshVersion(Committer):
    """Fetches the head's version just before it writes, so that its write always fits: over whatever is there."""

    async def _publish(self, attempt: Attempt) -> Written | Lost:
        self._view.head = replace(self._view.head, version=(await read_head(self._store)).version)
        return await super()._publish(attempt)


@dataclass(frozen=True, kw_only=True)
class FreshVersion(OntologyCommit):
    committer: ClassVar[type[Committer]] = WithFreshVersion


class WithCredulousNoOp(Committer):
    """Believes its own state for ever."""

    async def _moved(self) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class CredulousNoOp(OntologyCommit):
    committer: ClassVar[type[Committer]] = WithCredulousNoOp
    work: tuple[str, ...] = ("flag",)
    writers: int = 2
    commits: int = 3


class WithHastyCleaning(Committer):
    """Removes an attempt as soon as it is in doubt, although the head may still come to name it."""

    async def _settle_doubts(self) -> None:
        for attempt in self._doubts:
            if attempt.place.commit_id > self._view.head.commit_id:
                await self._delete(attempt.keys)
        await super()._settle_doubts()


@dataclass(frozen=True, kw_only=True)
class HastyCleaning(OntologyCommit):
    committer: ClassVar[type[Committer]] = WithHastyCleaning
    writers: int = 1
    settled: bool = False
    again: int = 1


@pytest.mark.parametrize(
    ("scenario", "limits", "rules"),
    [
        (NoLook(), LOST_ANSWER, {ONCE, KEPT, NO_FALSE_CONFLICT}),
        (FreshVersion(), NO_TROUBLE, {UNBROKEN, MONOTONIC}),
        (HastyCleaning(), LATE, {ATOMIC, KEPT}),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, OntologyCommit) else "",
)
def test_a_small_world_shows_the_harm(scenario: OntologyCommit, limits: Limits, rules: set[str]) -> None:
    found = explore(scenario, limits).found
    assert found is not None
    assert {violation.partition(": ")[0] for violation in found.violations} & rules


def broken_rules(kind: type[OntologyCommit], seeds: int) -> set[str]:
    """The rules that are seen broken, up to the first seed that breaks one."""
    for seed in range(seeds):
        run = simulate(kind, seed)
        if run.violations:
            return {violation.partition(": ")[0] for violation in run.violations}
    return set()


@dataclass(frozen=True, kw_only=True)
class DrawnStaleCount(OntologyCommit):
    committer: ClassVar[type[Committer]] = WithStaleDelta

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return cls(work=("count",), writers=3, commits=3, idle_ms=20.0, again=2)


@dataclass(frozen=True, kw_only=True)
class DrawnCredulousNoOp(CredulousNoOp):
    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return cls(writers=3, commits=4, idle_ms=50.0)


@dataclass(frozen=True, kw_only=True)
class TrustingReader(OntologyCommit):
    """Takes an index at its word."""

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return replace(super().drawn(rng), locked=True, lies=10, readers=2, commits=5, idle_ms=50.0, work=("mark",))

    async def read(self, process: Process, type_id: TypeId) -> Latest:
        ledger = await read_ledger(process.store, Chain(process.store))
        index = await read_index(process.store, type_id)
        files = [FileRef(entry.last, type_id, entry.path) for entry in index.entries]
        existing = [ref for ref in files if await process.store.find(ref.path) is not None]
        rows = await latest_rows(process.store, existing, newest=ledger.commit_id, fence=RedactionFence())
        return Latest(ledger.commit_id, rows)


@pytest.mark.parametrize(
    ("kind", "rules"),
    [(DrawnStaleCount, {NO_LOST_UPDATE}), (DrawnCredulousNoOp, {TRUE_NO_OP}), (TrustingReader, {SAME_ROWS})],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_few_seeds_show_the_harm(kind: type[OntologyCommit], rules: set[str]) -> None:
    assert broken_rules(kind, 20) & rules


class Forgetful(Committer):
    """Does not look whether the batch is committed."""

    async def _done_already(self, order: Order) -> Commit | None:
        return None


class Careless(Loader):
    def _position(self, request: Request, ledger: Ledger) -> Position | None:
        return None


@dataclass(frozen=True, kw_only=True)
class WithoutLooking(OntologySink):
    committer: ClassVar[type[Committer]] = Forgetful
    loader: ClassVar[type[Loader]] = Careless

    @classmethod
    def drawn(cls, rng: Random) -> Self:
        return cls(drivers=3, batches=3, rivals=30, idle_ms=200.0)


def test_who_does_not_look_commits_twice() -> None:
    runs = (simulate(WithoutLooking, seed) for seed in range(5, 25))
    assert any(BATCH_ONCE in {violation.partition(": ")[0] for violation in run.violations} for run in runs)
