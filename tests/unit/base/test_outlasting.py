"""A write of several steps goes on until the last of them, although its caller was cancelled."""

import asyncio

import pytest

from holdfast.base import aio
from holdfast.base.aio import outlasting


async def test_it_is_awaiting_otherwise() -> None:
    assert await outlasting(asyncio.sleep(0, 7)) == 7
    with pytest.raises(TimeoutError):
        await outlasting(fail())


async def fail() -> None:
    raise TimeoutError


@pytest.mark.parametrize("error", [None, OSError("disk")])
async def test_a_cancelled_caller_goes_on_when_all_steps_are_taken(error: Exception | None) -> None:
    release, steps = asyncio.Event(), 0

    async def write() -> None:
        nonlocal steps
        for _ in range(3):
            await release.wait()
            await asyncio.sleep(0)
            steps += 1
        if error is not None:
            raise error

    writing = asyncio.ensure_future(outlasting(write()))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.sleep(0)
    assert not writing.done()
    release.set()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert steps == 3


async def test_one_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 0.01)
    hanging = asyncio.Event()
    writing = asyncio.ensure_future(outlasting(hanging.wait()))
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    hanging.set()
