"""Agents in the simulator: nothing is lost over crashes, power failures, full disks and bad roads."""

from collections import Counter

import pytest

from holdfast.sim.run import simulate
from holdfast.sim.scenarios.agents import IngestAgents


@pytest.mark.parametrize("first", range(1, 61, 20))
def test_agents_lose_nothing(first: int) -> None:
    faults: Counter[str] = Counter()
    for seed in range(first, first + 20):
        run = simulate(IngestAgents, seed)
        assert run.violations == []
        faults.update(run.tally)
    assert faults["crashes"] > 0


def test_the_name_of_a_queue_outlasts_a_power_failure_in_its_first_write() -> None:
    assert simulate(IngestAgents, 1122).violations == []
