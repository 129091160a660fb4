"""The bus on a folder and on a real S3 server: workers side by side, each event handled once."""

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast.bus import Context, Event, on
from tests.integration.run_places import Place

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)


class StoreOrder(Event):
    n: int


async def test_workers_share_events(place: Place) -> None:
    seen: list[int] = []

    @on(StoreOrder, id="note", concurrency=4)
    async def note(ctx: Context, event: Any) -> None:
        seen.append(event.n)

    async with holdfast.open(place.uri, settings=place.settings) as hf:
        bus = hf.bus("shop")
        for number in range(12):
            await bus.publish(StoreOrder(n=number), key=str(number))
            await bus.publish(StoreOrder(n=number), key=str(number))
        worked = await asyncio.gather(*(hf.bus("shop").run([note], until_idle=True) for _ in range(3)))
        assert sorted(seen) == list(range(12))
        assert sum(each.handled for each in worked) == 12
        assert {each.status for each in await bus.events()} == {"acked"}
