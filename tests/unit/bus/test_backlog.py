"""The order of claims holds over the whole backlog, however little of it is at hand; counted, not timed."""

import random
from dataclasses import replace
from typing import Any

import pytest

from holdfast.bus import Bus, Handler, on
from holdfast.bus.digest import DigestShape, Section
from holdfast.bus.event import Envelope
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is large elsewhere is small here, so that small backlogs have all of it."""
    for name, value in {
        "known.OPEN_LIMIT": 32,
        "feed.OPEN_LIMIT": 32,
        "feed.SPILL_AT": 64,
        "feed.FETCH": 16,
        "feed.SHARE": 64,
        "piles.ROWS": 16,
    }.items():
        monkeypatch.setattr(f"holdfast.bus.{name}", value)


def recorder(done: list[str], concurrency: int = 1, **options: Any) -> Handler:
    @on(OrderPlaced, id="bill", concurrency=concurrency, **options)
    async def bill(ctx: Any, event: OrderPlaced) -> None:
        done.append(event.order_id)

    return bill


async def fill(desk: Desk, priorities: list[int], **options: Any) -> list[str]:
    """Publish one event per priority; the order in which they should be handed out."""
    bus = desk.bus()
    for number, priority in enumerate(priorities):
        await bus.publish(OrderPlaced(order_id=str(number)), priority=priority, **options)
    desk.watch.advance(seconds=20)
    return [str(number) for number, _ in sorted(enumerate(priorities), key=lambda each: (-each[1], each[0]))]


def section_of(desk: Desk, handler: str = "bill") -> Section:
    key = "bus/default/digest.json"
    return DigestShape().read(desk.documents(key)[key], key).sections[handler]


async def test_of_ten_thousand_the_last_comes_first_if_it_is_urgent() -> None:
    desk = Desk()
    done: list[str] = []
    await fill(desk, [100] * 10_000 + [200])
    desk.spent()
    runner = desk.bus().runner([recorder(done, concurrency=3)])
    assert await runner.step() == 3
    await runner.drain_flight()
    assert done == ["10000", "0", "1"]
    spent = desk.spent()
    # Every body once; the rest is digest, boundary, sheets. In all it is linear, and little.
    assert spent["get"] <= 10_001 + 20
    assert spent["put"] <= 30
    assert spent["list"] == 11
    await runner.feed.flush(leaving=True)
    desk.spent()
    size = len(desk.shelf.objects["bus/default/digest.json"].body)
    assert size < 1_000_000
    assert section_of(desk).count >= 10_001 - 3
    runner = desk.bus().runner([recorder(done)])  # another: what is known is known to all
    await runner.step()
    await runner.drain_flight()
    assert done[3:] == ["2"]
    assert sum(desk.spent().values()) <= 16


async def test_a_backlog_of_usual_priority_is_begun_before_it_is_read() -> None:
    desk = Desk()
    done: list[str] = []
    await fill(desk, [100] * 5_000)
    desk.spent()
    runner = desk.bus().runner([recorder(done)])
    await runner.step()
    await runner.drain_flight()
    assert done == ["0"]
    assert desk.spent()["get"] < 3_100


async def test_the_first_unusual_priority_is_noticed_by_who_has_enough_to_do(small: None) -> None:
    desk = Desk()
    done: list[str] = []
    await fill(desk, [100] * 1_500)
    runner = desk.bus().runner([recorder(done)])
    await runner.step()
    await runner.drain_flight()
    assert runner.feed.more
    await desk.bus().publish(OrderPlaced(order_id="urgent"), priority=101)
    desk.watch.advance(seconds=1)
    await runner.step()
    await runner.drain_flight()
    assert done == ["0", "urgent"]


@pytest.mark.parametrize("seed", range(6))
async def test_any_backlog_is_handed_out_in_order(small: None, seed: int) -> None:
    """By a lone worker exactly: priority, then age; also what comes while it works; and nothing twice."""
    desk, rng = Desk(), random.Random(seed)
    done: list[str] = []
    kinds = [rng.choice([1, 2, 3]), rng.choice([5, 1_000])]
    priorities = [rng.randrange(rng.choice(kinds)) for _ in range(rng.randrange(300, 900))]
    wanted = await fill(desk, priorities)
    runner = desk.bus().runner([recorder(done, concurrency=5)])
    handed: list[str] = []
    while len(handed) < len(wanted):
        started = await runner.step()
        assert started
        await runner.drain_flight()
        handed += sorted(done[len(handed) :], key=wanted.index)  # one batch is started at once
    assert handed == wanted
    await runner.feed.flush()
    assert (section_of(desk).count, section_of(desk).piles, section_of(desk).piled) == (0, (), {})
    assert desk.documents("bus/default/piles/") == {}


async def test_several_workers_keep_the_order_each_within_its_share(small: None) -> None:
    desk, rng = Desk(), random.Random(7)
    lists: list[list[str]] = [[], [], []]
    wanted = await fill(desk, [rng.randrange(50) for _ in range(400)])
    runners = [desk.bus().runner([recorder(done)]) for done in lists]
    for runner in [*runners, *runners]:  # they get to know each other
        await runner.feed.flush()
        await runner.feed.read()
    for _ in range(40):
        for runner in runners:
            await runner._poll()
            await runner._claim()
            await runner.drain_flight()
    for done in lists:
        assert len(done) >= 35
        assert done == sorted(done, key=wanted.index)
    while sum(map(len, lists)) < 400:
        desk.watch.advance(seconds=1)
        for runner in runners:
            await runner.step()
            await runner.drain_flight()
    assert sorted(wanted) == sorted(each for done in lists for each in done)


async def test_delayed_events_do_not_fill_the_digest(small: None) -> None:
    desk = Desk()
    done: list[str] = []
    bus = desk.bus()
    for number in range(300):
        await bus.publish(OrderPlaced(order_id=str(number)), delay=1_000 - number)
    await bus.publish(OrderPlaced(order_id="now"))
    desk.watch.advance(seconds=20)
    runner = desk.bus().runner([recorder(done, concurrency=50)])
    await runner.step()
    await runner.drain_flight()
    assert done == ["now"]
    await runner.feed.flush()
    assert len(section_of(desk).open) < 100
    assert section_of(desk).count == 300
    desk.watch.advance(seconds=781)
    while await runner.step():
        await runner.drain_flight()
    assert sorted(done[1:], key=int) == [str(number) for number in range(200, 300)]
    desk.watch.advance(seconds=2_000)
    while await runner.step():
        await runner.drain_flight()
    assert len(set(done)) == len(done) == 301


async def test_a_sheet_that_is_lost_costs_requests_and_no_event(small: None) -> None:
    desk = Desk()
    done: list[str] = []
    wanted = await fill(desk, [number % 3 for number in range(400)])
    runner = desk.bus().runner([recorder(done)])
    await runner.step()
    await runner.drain_flight()
    sheets = list(desk.documents("bus/default/piles/"))
    assert len(sheets) > 5
    for place, key in enumerate(sheets):
        if place % 2:
            desk.shelf.remove(key)
        else:
            desk.shelf.place(replace(desk.shelf.objects[key], body=b"{}"))
    for _ in range(2_000):
        desk.watch.advance(seconds=1)
        await runner.step()
        await runner.drain_flight()
        if len(done) == 400:
            break
    assert sorted(done) == sorted(wanted)


async def test_cleanup_keeps_what_lies_in_piles_and_removes_what_nobody_refers_to(small: None) -> None:
    desk = Desk()
    done: list[str] = []
    wanted = await fill(desk, [number % 3 for number in range(400)])
    runner = desk.bus().runner([recorder(done)])
    await runner.step()
    await runner.drain_flight()
    await runner.feed._piles.spill(list(section_of(desk).open.items()), "ready")  # and then it died
    before = len(desk.documents("bus/default/piles/"))
    desk.watch.advance(seconds=6 * 86_400)
    assert await runner.sweep.run(whole=True) == 0
    cleaned = await desk.bus().cleanup(before_ns=desk.watch.ns - 86_400 * 10**9)
    assert cleaned.events == 0
    assert len(desk.documents("bus/default/piles/")) == before - 2
    while await runner.step():
        await runner.drain_flight()
    assert sorted(done) == sorted(wanted)


async def test_the_sweep_is_content_with_piles_and_finds_what_is_in_none(small: None) -> None:
    desk = Desk()
    done: list[str] = []
    wanted = await fill(desk, [number % 3 for number in range(400)])
    bus = desk.bus()
    runner = bus.runner([recorder(done)])
    await runner.step()
    await runner.drain_flight()
    await runner.sweep.run(whole=True)
    desk.spent()
    assert await runner.sweep.run(whole=True) == 0
    assert sum(desk.spent().values()) <= 5
    late_ns = desk.watch.ns - 60 * 10**9
    late = Envelope("late", "default", "order.placed", {"order_id": "late"}, late_ns, 100, "late", 0)
    await bus.store.put(late.key, late.body())
    assert await runner.sweep.run(whole=True) == 1
    while await runner.step():
        await runner.drain_flight()
    assert sorted(done) == sorted([*wanted, "late"])


async def test_figures_count_what_lies_in_piles(small: None) -> None:
    desk = Desk()
    await fill(desk, [number % 3 for number in range(400)])
    bus: Bus = desk.bus()
    runner = bus.runner([recorder([])])
    await runner.feed.poll()
    await runner.feed.flush()
    (figures,) = await bus.stats()
    assert (figures.open, figures.due, figures.by_type) == (400, 400, {"order.placed": 400})
