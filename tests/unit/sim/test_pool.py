"""Runners of the simulator end with their context, whatever befalls whoever waits for that."""

import asyncio

import psutil
import pytest

from holdfast.sim.pool import Runner


async def test_a_runner_is_gone_even_if_its_owner_is_cancelled_while_it_ends() -> None:
    mine = psutil.Process()
    before = {child.pid for child in mine.children()}

    async def own() -> None:
        async with Runner():
            task = asyncio.current_task()
            if task is not None:
                asyncio.get_running_loop().call_soon(task.cancel)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(own())
    assert {child.pid for child in mine.children()} <= before
