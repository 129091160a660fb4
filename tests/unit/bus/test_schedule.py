"""Cron ticks: once each across sessions, in their time zone, with a policy for what was missed."""

import asyncio
from typing import Any

import pytest

from holdfast.base.clock import iso, parse_iso
from holdfast.bus import BadSchedule, Schedule
from holdfast.bus.publish import Boundary, Publisher
from holdfast.bus.schedule import Ticker
from tests.unit.bus.desk import Desk, OrderPlaced

EVENT = OrderPlaced(order_id="tick")
HOUR = 3_600


def ticker(desk: Desk, *schedules: Schedule) -> Ticker:
    bus = desk.bus()
    boundary = Boundary(bus.store, bus.namespace, bus.ambient)
    return Ticker(
        bus.store, Publisher(bus.store, bus.namespace, bus.ambient, boundary=boundary), bus.ambient, schedules
    )


def fired(desk: Desk) -> list[str]:
    return [document["created_at"][:16] for document in desk.documents("events/").values()]


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"cron": "every day"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "* * * * * *"}, "cron"),
        ({"tz": "Mars/Base"}, "time zone"),
        ({"misfire": "maybe"}, "misfire"),
    ],
)
def test_what_cannot_be_read_is_refused_when_it_is_written(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(BadSchedule, match=match):
        Schedule(**{"cron": "0 3 * * *", "event": EVENT, **wrong})


def test_ticks_follow_the_time_zone() -> None:
    berlin = Schedule("0 3 * * *", EVENT, tz="Europe/Berlin")
    winter, summer = parse_iso("2026-01-10T00:00:00Z"), parse_iso("2026-07-10T00:00:00Z")
    assert iso(berlin.next_tick(winter))[:16] == "2026-01-10T02:00"
    assert iso(berlin.next_tick(summer))[:16] == "2026-07-10T01:00"


async def test_ten_sessions_fire_a_tick_once() -> None:
    desk = Desk()
    hourly = Schedule("0 * * * *", EVENT)
    tickers = [ticker(desk, hourly) for _ in range(10)]
    for each in tickers:
        assert await each.fire_due() == 0
    for _ in range(3):
        desk.watch.advance(seconds=HOUR)
        assert sum(await asyncio.gather(*(each.fire_due() for each in tickers))) == 1
    assert len(fired(desk)) == len(set(fired(desk))) == 3


async def test_cron_in_every_session_fires_as_often_as_there_are_sessions() -> None:
    """The naive way: each session publishes the tick under an id of its own."""
    desk = Desk()
    for _ in range(10):
        await desk.bus().publish(EVENT)
    assert len(fired(desk)) == 10


@pytest.mark.parametrize(("misfire", "made_good"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_what_was_missed_while_nobody_ran(misfire: Any, made_good: int) -> None:
    desk = Desk()
    hourly = Schedule("0 * * * *", EVENT, misfire=misfire)
    await ticker(desk, hourly).fire_due()
    desk.watch.advance(seconds=5 * HOUR)
    later = ticker(desk, hourly)
    assert await later.fire_due() == made_good
    assert await later.fire_due() == 0
    desk.watch.advance(seconds=HOUR)
    assert await later.fire_due() == 1
    assert len(fired(desk)) == made_good + 1
    assert 0 < later.rest_s() <= HOUR


async def test_schedules_with_a_name_share_their_ticks_and_others_do_not() -> None:
    desk = Desk()
    tickers = [
        ticker(desk, Schedule("0 * * * *", EVENT), Schedule("0 * * * *", OrderPlaced(order_id="other"))),
        ticker(desk, Schedule("0 * * * *", EVENT)),
    ]
    for each in tickers:
        await each.fire_due()
    desk.watch.advance(seconds=HOUR)
    assert sum([await each.fire_due() for each in tickers]) == 2


async def test_a_runner_fires_and_handles_in_one_go() -> None:
    desk = Desk()
    hourly = Schedule("0 * * * *", EVENT)
    await desk.bus().run([], schedules=[hourly], until_idle=True)
    desk.watch.advance(seconds=HOUR)
    assert (await desk.bus().run([], schedules=[hourly], until_idle=True)).fired == 1
