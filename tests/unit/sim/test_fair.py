"""Scenarios that share a time: each gets a turn, and about the same time, whatever one seed of it takes."""

from collections import Counter

from holdfast.sim.pool import MOST_SEEDS, FairShares

COSTS = {"quick": 0.001, "slow": 3.0, "middling": 0.2}


def test_everyone_has_a_turn_first() -> None:
    fair = FairShares(COSTS, 50)
    assert not fair.all_had_a_turn
    first = [fair.next() for _ in COSTS]
    assert [task.scenario for task in first] == list(COSTS)
    assert {(task.first, task.count) for task in first} == {(50, 1)}
    assert fair.all_had_a_turn


def test_time_is_shared_and_no_seed_is_left_out() -> None:
    fair = FairShares(COSTS, 0)
    spent: Counter[str] = Counter()
    seeds: dict[str, list[int]] = {name: [] for name in COSTS}
    for _ in range(1_000):
        task = fair.next()
        cost_ms = int(task.count * COSTS[task.scenario] * 1000)
        seeds[task.scenario] += range(task.first, task.first + task.count)
        spent[task.scenario] += cost_ms
        fair.done(task, cost_ms / 1000)
        assert task.count <= MOST_SEEDS
    assert max(spent.values()) - min(spent.values()) <= 3_000, "one turn of the slowest"
    assert all(numbers == list(range(len(numbers))) for numbers in seeds.values())
    assert len(seeds["quick"]) > 100 * len(seeds["middling"]) > 1_000 * len(seeds["slow"])


def test_turns_that_are_being_taken_count() -> None:
    fair = FairShares(["a", "b"], 0)
    for _ in range(2):
        fair.done(fair.next(), 0.5)
    assert {fair.next().scenario, fair.next().scenario} == {"a", "b"}, "two runners do not take up the same one"
