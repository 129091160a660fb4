"""The scenarios of the ground pass, and Register and Lease pass a hundred thousand operations of them."""

import asyncio
from itertools import chain

import pytest

from holdfast.sim.pool import run_all, shares
from holdfast.sim.run import Totals, simulate
from holdfast.sim.scenario import find

GROUND = [
    "laws",
    "lease",
    "lease-fenced-writes",
    "names",
    "register-counter",
    "register-foreign",
    "register-history",
    "store-cache",
    "store-cas",
    "store-listing",
]
LOSSY = ["lease", "lease-fenced-writes", "register-counter", "register-history"]
SEEDS = range(1, 701)


@pytest.mark.parametrize("name", GROUND)
def test_scenario_holds(name: str) -> None:
    kind, totals = find(name), Totals()
    for seed in range(1_000, 1_060):
        totals.include(simulate(kind, seed))
    assert totals.broken == {}
    assert totals.operations >= totals.runs == 60
    assert {"lost response", "lost request", "unavailable", "slow"} <= totals.tally.keys()


def test_every_law_is_judged_in_some_run() -> None:
    laws = find("laws")
    judged = {simulate(laws, seed).trace.events[1].subject for seed in range(1, 201)}
    assert judged == {f"judge {name}" for name in laws().laws}  # type: ignore[attr-defined]  # of this scenario


def test_register_and_lease_hold_for_a_hundred_thousand_operations_with_a_quarter_of_responses_lost() -> None:
    totals = Totals()
    tasks = chain.from_iterable(shares(name, SEEDS) for name in LOSSY)
    asyncio.run(run_all(tasks, lambda _, share, __: totals.add(share), jobs=2))
    assert totals.broken == {}
    assert totals.runs == len(LOSSY) * len(SEEDS)
    assert totals.operations >= 100_000
    assert totals.tally["lost response"] == pytest.approx(totals.requests / 4, rel=0.02)


def test_what_a_replayed_edit_says_is_not_remembered_but_read() -> None:
    """Seed 1001829: a clerk took up an addition, found it in the state it remembered, and told that old number."""
    run = simulate(find("register-counter"), 1_001_829)
    assert run.violations == []
