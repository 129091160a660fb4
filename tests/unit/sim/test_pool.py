"""Runners of the simulator: they end with their context, and scenarios take turns of about the same time."""

import asyncio
from itertools import islice

import pytest

from holdfast.sim.pool import MOST_SEEDS, TURN_S, Runner, Task, turns


async def test_a_runner_is_seen_out_even_if_its_owner_is_cancelled_while_it_ends() -> None:
    runner = Runner()

    async def own() -> None:
        async with runner:
            task = asyncio.current_task()
            if task is not None:
                asyncio.get_running_loop().call_soon(task.cancel)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(own())
    assert runner._process.returncode is not None


async def test_a_turn_ends_with_its_time_and_has_at_least_one_seed() -> None:
    async with Runner() as runner:
        assert (await runner.run(Task("store-cas", 7, 1_000, within_s=0.0))).runs == 1
        assert 1 < (await runner.run(Task("store-cas", 7, 100_000, within_s=0.2))).runs < 100_000
        assert (await runner.run(Task("store-cas", 7, 3))).runs == 3


def test_scenarios_take_turns_and_no_seed_comes_twice() -> None:
    taken = list(islice(turns(["a", "b"], 50), 4))
    assert [each.within_s for each in taken] == [0.0, 0.0, TURN_S, TURN_S]
    assert [(each.scenario, each.first) for each in taken] == [
        ("a", 50), ("b", 50), ("a", 50 + MOST_SEEDS), ("b", 50 + MOST_SEEDS),
    ]  # fmt: skip
