"""Slots are given in order, several at once or none, and never lost."""

import asyncio

import pytest

from holdfast.objects.cloud.slots import Slots


async def hold(slots: Slots, wanted: int, name: str, log: list[str], leave: asyncio.Event) -> None:
    async with slots.taken(wanted):
        log.append(name)
        await leave.wait()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_large_request_waits_for_all_its_slots_and_is_not_overtaken() -> None:
    slots, log = Slots(4), list[str]()
    first, second = asyncio.Event(), asyncio.Event()
    tasks = [
        asyncio.ensure_future(hold(slots, 1, "small", log, first)),
        asyncio.ensure_future(hold(slots, 4, "large", log, second)),
        asyncio.ensure_future(hold(slots, 1, "later", log, second)),
    ]
    await settled()
    assert log == ["small"]
    first.set()
    await settled()
    assert log == ["small", "large"]
    second.set()
    await asyncio.gather(*tasks)
    assert log == ["small", "large", "later"]


async def test_more_slots_than_there_are_means_all_of_them() -> None:
    slots = Slots(2)
    async with slots.taken(9):
        waiting = asyncio.ensure_future(slots.take(1))
        await settled()
        assert not waiting.done()
    await waiting


@pytest.mark.parametrize("given", [False, True])
async def test_whoever_gives_up_takes_no_slot_along(given: bool) -> None:
    slots, log, leave = Slots(1), list[str](), asyncio.Event()
    leave.set()
    async with slots.taken():
        gives_up = asyncio.ensure_future(hold(slots, 1, "gives up", log, leave))
        patient = asyncio.ensure_future(hold(slots, 1, "patient", log, leave))
        await settled()
        if not given:
            gives_up.cancel()
            await settled()
    gives_up.cancel()  # where it was given the slot, it has not woken up yet
    await asyncio.gather(gives_up, patient, return_exceptions=True)
    assert log == ["patient"]
    async with slots.taken():
        log.append("free again")
    assert log == ["patient", "free again"]
