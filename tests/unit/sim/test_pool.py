"""Processes of the simulator: they end with their pool, and scenarios take turns of about the same time."""

import asyncio
import multiprocessing
import os
from itertools import islice

import pytest

from holdfast.sim.pool import MOST_SEEDS, TURN_S, Pool, Task, turns


async def test_processes_end_with_the_pool_even_if_its_owner_is_cancelled() -> None:
    async def own() -> None:
        async with Pool(2) as pool:
            await pool.run(Task("store-cas", 7, 1_000_000))

    owner = asyncio.create_task(own())
    while len(multiprocessing.active_children()) < 1:
        await asyncio.sleep(0.01)
    owner.cancel()
    with pytest.raises(asyncio.CancelledError):
        await owner
    assert multiprocessing.active_children() == []
    assert "PYTHONHASHSEED" not in os.environ


async def test_a_turn_ends_with_its_time_and_has_at_least_one_seed() -> None:
    async with Pool() as pool:
        assert (await pool.run(Task("store-cas", 7, 1_000, within_s=0.0))).runs == 1
        assert 1 < (await pool.run(Task("store-cas", 7, 100_000, within_s=0.2))).runs < 100_000
        assert (await pool.run(Task("store-cas", 7, 3))).runs == 3


def test_scenarios_take_turns_and_no_seed_comes_twice() -> None:
    taken = list(islice(turns(["a", "b"], 50), 4))
    assert [each.within_s for each in taken] == [0.0, 0.0, TURN_S, TURN_S]
    assert [(each.scenario, each.first) for each in taken] == [
        ("a", 50), ("b", 50), ("a", 50 + MOST_SEEDS), ("b", 50 + MOST_SEEDS),
    ]  # fmt: skip
