"""Every scenario holds over a few seeds, and a seed gives the same course of events again. `make soak` runs more seeds.

That each rule is needed is shown by the other modules of this folder: without it, the same scenario fails.
"""

from collections import Counter

import pytest

from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenario import built_in

SEEDS = 24
FEWER = {
    "gc-derived": 6,
    "ontology-erase": 12,
    "pipeline-derive": 8,
    "pipeline-silence": 6,
    "platform-handlers": 10,
}
"""Of scenarios in which a seed takes a tenth of a second or more."""
FIRST = 1_000
REGRESSIONS = [
    ("ingest-agents", 1_122),  # the name of a queue outlasts a power failure in its first write
    ("register-counter", 1_001_829),  # a replayed edit reads the number that it reports, and remembers none
    *(("runs-journal", seed) for seed in (101_006, 101_541, 101_587)),  # an append that lands late is written once
]


@pytest.mark.parametrize("name", built_in())
def test_scenario_holds(name: str) -> None:
    totals, count = Totals(), FEWER.get(name, SEEDS)
    for seed in range(FIRST, FIRST + count):
        totals.include(simulate(built_in()[name], seed))
    assert totals.broken == {}
    assert totals.operations >= totals.runs == count
    assert {"lost response", "lost request", "unavailable"} <= totals.tally.keys()
    assert name == "laws" or {"crashes", "pauses", "duplicate"} <= totals.tally.keys()


@pytest.mark.parametrize(("name", "seed"), REGRESSIONS)
def test_a_seed_that_once_found_an_error_holds(name: str, seed: int) -> None:
    assert simulate(built_in()[name], seed).violations == []


@pytest.mark.parametrize("name", built_in())
def test_a_seed_is_one_course_of_events(name: str) -> None:
    first, second = (simulate(built_in()[name], 1) for _ in range(2))
    assert first.trace.digest() == second.trace.digest()
    assert first.scenario == second.scenario


def test_every_law_is_judged_in_some_run() -> None:
    laws = built_in()["laws"]
    judged = Counter(simulate(laws, seed).trace.events[1].subject for seed in range(1, 201))
    assert judged.keys() == {f"judge {name}" for name in laws().laws}  # type: ignore[attr-defined]  # of this scenario
