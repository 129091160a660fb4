"""Cron ticks: once each across sessions, in their time zone, with a policy for what was missed."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from holdfast.base.clock import iso, parse_iso
from holdfast.base.errors import Corrupt
from holdfast.bus import BadSchedule, Schedule
from holdfast.bus.publish import Boundary, Publisher
from holdfast.bus.schedule import Ticker
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk

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
        ({"cron": None}, "cron"),
        ({"cron": "R 3 * * *"}, "cron"),
        ({"cron": "0 h(1-3) * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "never comes"),
        ({"cron": "0 0 31 4 *"}, "never comes"),
        ({"tz": "Mars/Base"}, "time zone"),
        ({"tz": "../etc/passwd"}, "time zone"),
        ({"tz": None}, "time zone"),
        ({"event": {"a": 1}}, "a dict is not an event"),
        ({"misfire": "maybe"}, "misfire"),
    ],
)
def test_what_cannot_be_read_is_refused_when_it_is_written(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(BadSchedule, match=match):
        Schedule(**{"cron": "0 3 * * *", "event": EVENT, **wrong})


def test_ticks_follow_the_time_zone() -> None:
    berlin = Schedule("0 3 * * *", EVENT, tz="Europe/Berlin")
    winter, summer = parse_iso("2026-01-10T00:00:00Z"), parse_iso("2026-07-10T00:00:00Z")
    assert [iso(each)[:16] for each in (berlin.next_tick(winter), berlin.next_tick(summer)) if each] == [
        "2026-01-10T02:00",
        "2026-07-10T01:00",
    ]


def local(cron: str, tz: str, begin: str, end: str) -> list[str]:
    ticks = Schedule(cron, EVENT, tz=tz).ticks(parse_iso(begin), parse_iso(end))
    return [datetime.fromtimestamp(tick / 1e9, ZoneInfo(tz)).isoformat()[5:] for tick in ticks]


@pytest.mark.parametrize(
    ("cron", "tz", "begin", "end", "expected"),
    [
        # the hour that does not exist: right after the gap
        (
            "30 2 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", "2027-03-29T12:00:00Z",
            ["03-28T03:00:00+02:00", "03-29T02:30:00+02:00"],
        ),
        # the hour that comes twice: once
        (
            "30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", "2027-11-01T12:00:00Z",
            ["10-31T02:30:00+02:00", "11-01T02:30:00+01:00"],
        ),
        # every hour means every hour
        (
            "0 * * * *", "Europe/Berlin", "2027-10-30T23:30:00Z", "2027-10-31T02:30:00Z",
            ["10-31T02:00:00+02:00", "10-31T02:00:00+01:00", "10-31T03:00:00+01:00"],
        ),
        (
            "0 0 * * *", "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-05T12:00:00Z",
            ["11-04T01:00:00-02:00", "11-05T00:00:00-02:00"],
        ),
        ("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", "2033-01-01T00:00:00Z",
         ["02-29T00:00:00+00:00", "02-29T00:00:00+00:00"]),
    ],
)  # fmt: skip
def test_days_on_which_clocks_change(cron: str, tz: str, begin: str, end: str, expected: list[str]) -> None:
    assert local(cron, tz, begin, end) == expected


async def test_a_schedule_that_cannot_fire_keeps_no_other_from_it() -> None:
    desk = Desk()
    first, second = Schedule("0 * * * *", EVENT, name="first"), Schedule("0 * * * *", EVENT, name="second")
    each = ticker(desk, first, second)
    await each.store.put("bus/default/schedules/first.json", b"garbage")
    with pytest.raises(Corrupt, match=r"first\.json"):
        await each.fire_due()
    desk.watch.advance(seconds=HOUR)
    with pytest.raises(Corrupt, match=r"first\.json"):
        await each.fire_due()
    assert each.fired == 1
    assert len(desk.documents("events/")) == 1
    assert 0 < each.rest_s() <= HOUR


@pytest.mark.parametrize(("misfire", "made_good"), [("skip", 0), ("once", 1), ("all", 5)])
async def test_ticks_that_came_while_no_worker_ran(misfire: Any, made_good: int) -> None:
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
