"""The window of a handler: bounded, in order of priority, and never closed by events that wait; counted, not timed."""

import json
import random
from typing import Any

import pytest

from holdfast.bus import Handler, Later, on
from holdfast.bus.worker.digest import DigestShape, Section
from holdfast.bus.worker.runner import Runner
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk, finish, recorder, turn


def bill(done: list[str], concurrency: int = 1, **options: Any) -> Handler:
    return recorder(done, handler_id="bill", concurrency=concurrency, **options)


async def fill(desk: Desk, priorities: list[int], **options: Any) -> None:
    bus = desk.bus()
    for number, priority in enumerate(priorities):
        await bus.publish(OrderPlaced(order_id=str(number)), priority=priority, **options)
    desk.watch.advance(seconds=20)


def section_of(desk: Desk, handler: str = "bill") -> Section:
    key = "bus/default/digest.json"
    return DigestShape().read(desk.documents(key)[key], key).sections[handler]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.bus.worker.digest.WINDOW", 32)


async def test_a_full_window_stops_the_reading_and_the_cursor_and_skips_nothing() -> None:
    desk, done = Desk(), list[str]()
    await fill(desk, [100] * 4_000)
    desk.spent()
    runner = desk.bus().runner([bill(done, concurrency=100)])
    await turn(runner)
    await runner.feed.flush()
    spent = desk.spent()
    assert 2_048 <= spent["get"] <= 2_048 + 20  # bodies, and now and then the digest
    assert len(section_of(desk).open) <= 2_048
    assert len(desk.shelf.objects["bus/default/digest.json"].body) < 400_000
    desk.spent()
    assert await runner.feed.poll() == 0  # enough to do: no listing
    assert "list" not in desk.spent()
    for _ in range(4_000):
        await turn(runner)
        if len(done) == 4_000:
            break
    assert sorted(done, key=int) == [str(number) for number in range(4_000)]


async def test_within_the_window_the_highest_priority_goes_first_beyond_it_the_oldest(narrow: None) -> None:
    desk, done = Desk(), list[str]()
    await fill(desk, [number % 5 for number in range(200)])
    runner = desk.bus().runner([bill(done)])
    await turn(runner)
    names = [event.envelope.name for event in reversed(await desk.bus().events(limit=None))]
    assert set(runner.feed.view("bill").open) == set(names[:32])  # the oldest
    assert done == ["4"]  # of them the oldest of the highest priority
    while await turn(runner):
        pass
    assert len(done) == len(set(done)) == 200
    lag = max(place - int(number) for place, number in enumerate(done))
    assert lag < 200  # the lowest priority is overtaken, and done in the end


class CountsAll(Section):
    """A naive window, in which every open event takes a place."""

    def places(self, now_ns: int, *, ordered: bool) -> int:
        return len(self.open)


async def delayed(desk: Desk, done: list[str], *, events: int = 5_000) -> Runner:
    """Many delayed events, then a few that are due; one worker works for thirty polls."""
    bus = desk.bus()
    for number in range(events):
        await bus.publish(OrderPlaced(order_id=f"delayed{number}"), delay=3_600, order_key=f"d{number % 50}")
    for number in range(60):
        await bus.publish(OrderPlaced(order_id=f"k{number % 3}/{number}"), order_key=f"k{number % 3}")
    desk.watch.advance(seconds=20)
    runner = desk.bus().runner([bill(done, concurrency=100, ordered=True)])
    for _ in range(30):
        await turn(runner)
    return runner


async def test_five_thousand_delayed_events_hold_up_no_other_and_no_order() -> None:
    desk, done = Desk(), list[str]()
    runner = await delayed(desk, done)
    assert len(done) == 60
    for key in ("k0", "k1", "k2"):
        numbers = [int(each.partition("/")[2]) for each in done if each.startswith(key)]
        assert numbers == sorted(numbers)
    desk.watch.advance(seconds=3_600)
    while await turn(runner):
        pass
    assert len(done) == len(set(done)) == 5_060
    numbers = [int(each[7:]) for each in done if each.startswith("delayed")]
    for rest in range(50):
        of_key = [number for number in numbers if number % 50 == rest]
        assert of_key == sorted(of_key)


async def test_a_window_in_which_delayed_events_take_a_place_holds_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Section, "places", CountsAll.places)
    desk, done = Desk(), list[str]()
    await delayed(desk, done)
    assert done == []


async def test_a_key_that_waits_for_long_holds_up_no_other_key(narrow: None) -> None:
    """Its younger events are due, and cannot be tried: they take no place in the window."""
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="first"), delay=3_600, order_key="slow")
    for number in range(100):
        await bus.publish(OrderPlaced(order_id=f"behind{number}"), order_key="slow")
    await bus.publish(OrderPlaced(order_id="other"), order_key="other")
    desk.watch.advance(seconds=20)
    runner = desk.bus().runner([bill(done, concurrency=20, ordered=True)])
    for _ in range(10):
        await turn(runner)
    assert done == ["other"]
    desk.watch.advance(seconds=3_600)
    while await turn(runner):
        pass
    assert done == ["other", "first", *(f"behind{number}" for number in range(100))]


class Lines:
    """A model of ordered delivery without priorities: of every key the oldest event that is not done."""

    def __init__(self) -> None:
        self.lines: dict[str, list[int]] = {}
        self.asleep: dict[int, float] = {}

    def add(self, number: int, key: str | None) -> None:
        self.lines.setdefault(key if key is not None else f"#{number}", []).append(number)

    def next(self, now: float) -> set[int]:
        heads = {line[0] for line in self.lines.values() if line}
        return {number for number in heads if self.asleep.get(number, 0) <= now}

    def done(self, number: int) -> None:
        for line in self.lines.values():
            if line and line[0] == number:
                line.pop(0)


@pytest.mark.parametrize("seed", range(4))
async def test_of_every_ordering_key_only_the_oldest_is_handed_out(narrow: None, seed: int) -> None:
    """With few keys or many, in a small window, with events that wait and hold up their key alone, with what comes
    while the worker works: what is handed out is the head of its key, and everything is handed out in the end."""
    desk, rng, model = Desk(), random.Random(seed), Lines()
    keys, spread = rng.choice([1, 3, 40, 500]), rng.choice([1, 5])
    started: list[int] = []
    bus, published = desk.bus(), 0

    @on(OrderPlaced, id="bill", concurrency=4, ordered=True)
    async def bill(ctx: Any, event: OrderPlaced) -> None:
        number = int(event.order_id)
        started.append(number)
        if number % 29 == 0 and number not in model.asleep:
            model.asleep[number] = desk.watch.ns + 40 * 10**9
            raise Later(seconds=40)
        model.done(number)

    async def publish(many: int) -> None:
        nonlocal published
        for _ in range(many):
            priority, key = rng.randrange(spread), rng.choice([None, *(f"k{rng.randrange(keys)}" for _ in range(9))])
            await bus.publish(OrderPlaced(order_id=str(published)), priority=priority, order_key=key)
            model.add(published, key)
            desk.watch.advance(seconds=0.001)
            published += 1

    await publish(rng.randrange(200, 400))
    runner = desk.bus().runner([bill])
    for number in range(3_000):
        desk.watch.advance(seconds=1)
        wanted = model.next(desk.watch.ns)
        started.clear()
        await turn(runner)
        assert set(started) <= wanted
        if number % 10 == 0 and number < 100:
            await publish(rng.randrange(30))
        if not any(model.lines.values()):
            break
    assert not any(model.lines.values())


async def test_events_whose_owner_is_dead_are_taken_after_three_polls_first_one_then_more() -> None:
    desk, done = Desk(), list[str]()
    await desk.bus().runner([bill([])]).feed.flush()  # joins, and dies
    await fill(desk, [100] * 40)
    runner = desk.bus().runner([bill(done, concurrency=40)])
    handled = []
    for _ in range(8):
        await turn(runner)
        handled.append(len(done))
    assert 0 < handled[0] < 40
    assert handled[0] == handled[1] == handled[2]
    assert handled[3] == handled[0] + 1
    assert handled[-1] == 40


async def test_workers_with_other_handlers_have_no_share_of_a_handlers_events() -> None:
    desk, done = Desk(), list[str]()
    await desk.bus().runner([recorder([], handler_id="audit")]).feed.flush()
    await fill(desk, [100] * 40)
    await turn(desk.bus().runner([bill(done, concurrency=40)]))
    assert len(done) == 40


async def test_a_handler_whose_window_is_full_holds_up_no_other_handler(narrow: None) -> None:
    desk, done = Desk(), list[str]()
    await fill(desk, [100] * 300)

    @on(OrderPlaced, id="slow", concurrency=1)
    async def slow(ctx: Any, event: OrderPlaced) -> None: ...

    runner = desk.bus().runner([bill(done, concurrency=16), slow])
    while len(done) < 300:
        await turn(runner)
    await runner.feed.flush()
    assert section_of(desk, "slow").settled < 60
    assert len(section_of(desk, "slow").open) <= 64  # full, and what was read for the other one in the same batch
    await finish(runner)
    assert section_of(desk, "slow").settled == 300


async def test_one_worker_has_all_events_of_an_ordering_key() -> None:
    desk = Desk()
    lists: list[list[str]] = [[], []]
    bus = desk.bus()
    for number in range(120):
        await bus.publish(OrderPlaced(order_id=str(number)), order_key=f"k{number % 12}")
    desk.watch.advance(seconds=20)
    runners = [desk.bus().runner([bill(done, concurrency=20, ordered=True)]) for done in lists]
    for runner in [*runners, *runners]:  # they learn of each other
        await runner.feed.flush()
        await runner.feed.read()
    for runner in runners:
        while await turn(runner):  # without waiting for what the other worker writes
            pass
    first, second = ({int(each) % 12 for each in done} for done in lists)
    assert first | second == set(range(12))
    assert not first & second
    assert min(len(first), len(second)) > 1


async def test_a_section_of_an_older_version_with_events_beside_the_digest_is_derived_anew() -> None:
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    await fill(desk, [100] * 10)
    runner = bus.runner([bill(done, concurrency=4)])
    await turn(runner)
    await runner.feed.flush(leaving=True)
    key = "bus/default/digest.json"
    document = desk.documents(key)[key]
    section = document["handlers"]["bill"]
    section |= {"cursor": max(section["open"]), "open": {}, "recent": [], "piles": [["ready", 0, 0, [-100, "x"], []]]}
    await bus.store.put(key, json.dumps(document).encode())
    worked = await desk.bus().run([bill(done)], until_idle=True)
    assert worked.handled == 6
    assert len(done) == len(set(done)) == 10
