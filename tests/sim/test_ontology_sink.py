"""The sink of a stream: whatever goes wrong, a batch is one commit; without the look for it, it is not."""

from dataclasses import dataclass
from random import Random
from typing import ClassVar, Self

import pytest

from holdfast.ontology.bulk.loader import Loader, Request
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.types.refs import Position
from holdfast.sim.checkers.ontology import ONCE
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.ontology import OntologySink


@pytest.mark.timeout(600)  # it is as fast as the machine
def test_a_batch_is_one_commit_whatever_goes_wrong() -> None:
    runs = [simulate(OntologySink, seed) for seed in range(60)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    met = sum((run.tally for run in runs), start=type(runs[0].tally)())
    assert {"crashes", "pauses", "lost response", "late", "duplicate", "contended", "unavailable"} <= met.keys()


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
    assert any(ONCE in {violation.partition(": ")[0] for violation in run.violations} for run in runs)
