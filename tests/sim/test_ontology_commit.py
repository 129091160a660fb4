"""Commits of an ontology under every kind of trouble, and in every order of events of a small world."""

import pytest

from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.ontology import OntologyCommit


def test_what_writers_and_readers_were_told_holds_whatever_goes_wrong() -> None:
    runs = [simulate(OntologyCommit, seed) for seed in range(72)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    met = sum((run.tally for run in runs), start=type(runs[0].tally)())
    assert {"crashes", "pauses", "lost response", "late", "duplicate", "contended", "unavailable"} <= met.keys()


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        (OntologyCommit(settled=False), Limits(crashes=0, lost_responses=1)),
        (OntologyCommit(settled=False, again=1), Limits(crashes=0, lost_responses=1)),
        (OntologyCommit(), Limits(crashes=1, lost_responses=0)),
        (OntologyCommit(), Limits(crashes=0, lost_responses=1)),
        (OntologyCommit(writers=1, plain=1), Limits(crashes=0, lost_responses=1)),
    ],
    ids=["lost answer", "asked again", "crash", "settled", "plain writer"],
)
def test_every_order_of_events_of_two_committers(scenario: OntologyCommit, limits: Limits) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.paths > 100
