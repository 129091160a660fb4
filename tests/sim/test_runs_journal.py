"""Journals of runs under every kind of trouble, and in every order of events of a small world."""

import json

import pytest

from holdfast.runs.journal.segments import SegmentPolicy
from holdfast.sim.checkers.objects import MONOTONE
from holdfast.sim.checkers.runs import APPEND_ONLY, FENCED_OFF, READABLE, course, well_formed
from holdfast.sim.explore import Limits, explore
from holdfast.sim.history import Landing
from holdfast.sim.run import simulate
from holdfast.sim.scenarios.runs_journal import RunsJournal

SEALING = SegmentPolicy(lines=1, size=1, fan_in=2)


def test_what_sessions_were_told_holds_whatever_goes_wrong() -> None:
    runs = [simulate(RunsJournal, seed) for seed in range(80)]
    assert [(run.seed, run.violations) for run in runs if run.violations] == []
    met = sum((run.tally for run in runs), start=type(runs[0].tally)())
    assert {"crashes", "pauses", "lost response", "late", "duplicate", "contended", "unavailable"} <= met.keys()


LATE_COPY = (101006, 101541, 101587)
"""An append in doubt was asked for again, and the first copy landed late, while the second was already on its way."""


@pytest.mark.parametrize("seed", LATE_COPY)
def test_an_append_that_lands_late_is_not_written_again(seed: int) -> None:
    assert simulate(RunsJournal, seed).violations == []


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


def line(kind: str, session: int, offset: int, **fields: object) -> bytes:
    return json.dumps({"type": kind, "session": session, "offset": offset, **fields}).encode() + b"\n"


def landings(*bodies: bytes, **others: bytes) -> list[Landing]:
    before = [Landing(0, "p", f"runs/r/{name}/x", body) for name, body in others.items()]
    return before + [Landing(n, "p", "runs/r/journal.jsonl", body) for n, body in enumerate(bodies, 1)]


START, STEP = line("start", 1, 0), line("step", 1, 1)


@pytest.mark.parametrize(
    ("course_of_events", "rule"),
    [
        (landings(START, START + STEP, START), APPEND_ONLY),
        (landings(START + STEP, START + line("step", 1, 1, stepId="x")), APPEND_ONLY),
        (landings(START, line("start", 2, 0, generation=1)), APPEND_ONLY),
        (landings(START, line("start", 2, 0, previous={"key": "runs/r/generations/x"})), READABLE),
        (landings(b'{"type":"segments","refs":[[0,0,1,1,"a",""]]}\n'), READABLE),
        (landings(b"{"), READABLE),
        (landings(START + line("start", 2, 1) + line("step", 1, 2)), FENCED_OFF),
        (landings(START + line("start", 1, 1)), MONOTONE),
        (landings(START + line("step", 1, 2)), MONOTONE),
    ],
)
def test_the_checker_sees_what_must_not_be(course_of_events: list[Landing], rule: str) -> None:
    found = course(course_of_events, "runs/r/")
    assert rule in [violation.rule for violation in (*found.violations, *well_formed(found.generations))]


def test_the_checker_lets_pass_what_may_be() -> None:
    fresh = line("start", 2, 0, generation=1, previous={"key": "runs/r/generations/x"})
    found = course(landings(START, START + STEP, fresh, generations=START + STEP), "runs/r/")
    assert (found.violations, list(well_formed(found.generations))) == ([], [])
    assert [part.number for part in found.generations] == [0, 1]
