"""Journals of runs under every kind of trouble, and in every order of events of a small world."""

import pytest

from holdfast.runs.segments import SegmentPolicy
from holdfast.sim.explore import Limits, explore
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.runs_journal import RunsJournal

SEALING = SegmentPolicy(lines=1, size=1, fan_in=2)


def test_what_sessions_were_told_holds_whatever_goes_wrong() -> None:
    runs = [simulate(RunsJournal, seed) for seed in range(80)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    met = sum((run.tally for run in runs), start=type(runs[0].tally)())
    assert {"crashes", "pauses", "lost response", "late", "duplicate", "contended", "unavailable"} <= met.keys()


@pytest.mark.parametrize(
    ("scenario", "limits"),
    [
        (RunsJournal(settled=False), Limits(crashes=1, lost_responses=1)),
        (RunsJournal(settled=False, again=1.0), Limits(crashes=0, lost_responses=1)),
        (RunsJournal(settled=False), Limits(crashes=0, lost_responses=0, duplicates=1)),
        (RunsJournal(settled=False, appends=1), Limits(crashes=0, lost_responses=0, timeouts=1)),
        (RunsJournal(appends=1), Limits(crashes=1, lost_responses=1)),
        (RunsJournal(settled=False, appends=1, policy=SEALING), Limits(crashes=1, lost_responses=0)),
        (RunsJournal(workers=1, plain=2), Limits(crashes=0, lost_responses=1)),
    ],
    ids=["crash and lost answer", "asked again", "duplicate", "late", "settled", "sealing", "plain writer"],
)
def test_every_order_of_events_of_two_sessions(scenario: RunsJournal, limits: Limits) -> None:
    result = explore(scenario, limits)
    assert result.found is None
    assert result.paths > 100
