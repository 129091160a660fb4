"""Runners of the simulator end with their context, also when the task that waits for it is cancelled."""

import asyncio

import pytest

from holdfast.sim.pool import Runner


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
