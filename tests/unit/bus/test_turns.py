"""Ordered delivery over a whole backlog: of every key the oldest, of those the highest priority; counted, not timed."""

import random
from typing import Any

import pytest

from holdfast.bus import Later, on
from holdfast.bus.pile import READY, Item, Pile, Sheet
from holdfast.bus.turns import Backlog, Columns, Turns
from tests.fakes.orders import OrderPlaced
from tests.unit.bus.desk import Desk
from tests.unit.bus.test_backlog import recorder, section_of, small

__all__ = ["small"]


async def test_ordered_delivery_holds_over_a_large_backlog(small: None) -> None:
    """The younger of a key has the higher priority, and waits all the same; both lie in piles at first."""
    desk = Desk()
    done: list[str] = []
    bus = desk.bus()
    for number in range(400):
        await bus.publish(OrderPlaced(order_id=str(number)), priority=number, order_key=str(number % 7))
    desk.watch.advance(seconds=1)
    runner = desk.bus().runner([recorder(done, concurrency=20, ordered=True)])
    while await runner.step():
        await runner.drain_flight()
    assert len(done) == 400
    for key in range(7):
        numbers = [int(each) for each in done if int(each) % 7 == key]
        assert numbers == sorted(numbers)


class Lines:
    """What ordered delivery should do: of every key the oldest that is not done, the highest priority first."""

    def __init__(self) -> None:
        self.lines: dict[str, list[tuple[int, int]]] = {}
        self.asleep: dict[int, float] = {}

    def add(self, number: int, priority: int, key: str | None) -> None:
        self.lines.setdefault(key if key is not None else f"#{number}", []).append((-priority, number))

    def next(self, count: int, now: float) -> list[int]:
        heads = sorted(line[0] for line in self.lines.values() if line)
        return [number for _, number in heads if self.asleep.get(number, 0) <= now][:count]

    def done(self, number: int) -> None:
        for line in self.lines.values():
            if line and line[0][1] == number:
                line.pop(0)


@pytest.mark.parametrize("seed", range(6))
async def test_in_an_ordered_handler_the_best_of_all_first_ones_goes_first(small: None, seed: int) -> None:
    """Over the whole backlog, by a lone worker exactly: with few keys or many, with some that wait and hold up their
    key alone, and with what comes while it works."""
    desk, rng, model = Desk(), random.Random(seed), Lines()
    keys, spread, count = rng.choice([1, 3, 40, 500]), rng.choice([1, 2, 1_000]), rng.choice([1, 4])
    started: list[int] = []
    bus, published = desk.bus(), 0

    @on(OrderPlaced, id="bill", concurrency=count, ordered=True)
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
            model.add(published, priority, key)
            desk.watch.advance(seconds=0.001)
            published += 1

    await publish(rng.randrange(200, 500))
    runner = desk.bus().runner([bill])
    for turn in range(2_000):
        desk.watch.advance(seconds=1)
        wanted = model.next(count, desk.watch.ns)
        started.clear()
        await runner.step()
        await runner.drain_flight()
        assert sorted(started) == sorted(wanted)
        if turn % 10 == 0 and turn < 100:
            await publish(rng.randrange(30))
        if not any(model.lines.values()):
            break
    assert not any(model.lines.values())
    await runner.feed.flush()
    assert (section_of(desk).count, section_of(desk).piles, section_of(desk).piled) == (0, (), {})
    assert desk.documents("bus/default/piles/") == {}


async def test_of_thousands_the_last_comes_first_though_the_handler_is_ordered() -> None:
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    for number in range(6_000):
        await bus.publish(OrderPlaced(order_id=str(number)), order_key=f"k{number % 3_000}")
    await bus.publish(OrderPlaced(order_id="urgent"), order_key="other", priority=101)
    await bus.publish(OrderPlaced(order_id="behind"), order_key="k3", priority=200)
    desk.watch.advance(seconds=20)
    desk.spent()
    runner = desk.bus().runner([recorder(done, concurrency=3, ordered=True)])
    assert await runner.step() == 3
    await runner.drain_flight()
    assert done == ["urgent", "0", "1"]
    spent = desk.spent()
    assert spent["get"] <= 6_002 + 20  # every body once
    assert spent["put"] <= 30
    await runner.feed.flush()
    assert len(desk.shelf.objects["bus/default/digest.json"].body) < 1_000_000
    desk.spent()
    for _ in range(100):
        await runner._claim()
        await runner.drain_flight()
    assert done[3:303] == [str(number) for number in range(2, 302)]
    assert sum(desk.spent().values()) <= 100 * (3 + 3 + 1) + 16  # three claims, three acks, the boundary; and piles
    desk.spent()
    other = desk.bus().runner([recorder(done, ordered=True)])  # it reads the sheets, and no event but its own
    await other.step()
    await other.drain_flight()
    assert sum(desk.spent().values()) <= 24


async def test_an_idle_poll_beside_a_piled_line_takes_two_requests(small: None) -> None:
    """Everything waits for the first of its key, which waits for tomorrow."""
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="first"), order_key="k", delay=86_400)
    for number in range(300):
        await bus.publish(OrderPlaced(order_id=str(number)), order_key="k", priority=number)
    desk.watch.advance(seconds=20)
    runner = desk.bus().runner([recorder(done, ordered=True)])
    await runner.step()
    await runner.feed.flush()
    assert section_of(desk).count == 301
    assert section_of(desk).piles
    await runner.step()
    desk.spent()
    assert await runner.step() == 0
    assert desk.spent() == {"get": 1, "list": 1}
    assert done == []


async def test_a_worker_that_drains_does_not_wait_for_what_waits_for_tomorrow(small: None) -> None:
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    await bus.publish(OrderPlaced(order_id="first"), order_key="k", delay=86_400)
    for number in range(100):
        await bus.publish(OrderPlaced(order_id=str(number)), order_key="k")
    await bus.publish(OrderPlaced(order_id="other"), order_key="other")
    worked = await desk.bus().run([recorder(done, ordered=True)], until_idle=True)
    assert done == ["other"]
    assert worked.waiting == 101


async def test_a_key_with_many_events_whose_first_fails_holds_up_no_other(small: None) -> None:
    """Nor does it if nothing has another priority than usual, and the others are not read yet."""
    desk, done = Desk(), list[str]()
    bus = desk.bus()

    @on(OrderPlaced, id="bill", ordered=True)
    async def bill(ctx: Any, event: OrderPlaced) -> None:
        if event.order_id == "0":
            raise Later(seconds=86_400)
        done.append(event.order_id)

    for number in range(1_200):
        await bus.publish(OrderPlaced(order_id=str(number)), order_key="busy")
    await bus.publish(OrderPlaced(order_id="other"), order_key="other")
    desk.watch.advance(seconds=20)
    runner = desk.bus().runner([bill])
    for _ in range(4):
        await runner.step()
        await runner.drain_flight()
    assert done == ["other"]


async def test_a_long_line_is_begun_before_it_is_read_and_others_are_read_meanwhile() -> None:
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    for number in range(5_000):
        await bus.publish(OrderPlaced(order_id=str(number)), order_key="busy")
    await bus.publish(OrderPlaced(order_id="other"), order_key="other")
    desk.watch.advance(seconds=20)
    desk.spent()
    runner = desk.bus().runner([recorder(done, concurrency=2, ordered=True)])
    await runner.step()
    await runner.drain_flight()
    assert done == ["0"]
    assert desk.spent()["get"] < 3_100
    for _ in range(3):
        await runner.step()
        await runner.drain_flight()
    assert sorted(done) == ["0", "1", "2", "3", "other"]


async def test_many_delayed_events_with_keys_do_not_fill_the_digest(small: None) -> None:
    desk, done = Desk(), list[str]()
    bus = desk.bus()
    for number in range(300):
        await bus.publish(OrderPlaced(order_id=f"{number} first"), order_key=str(number), delay=1_000 - number)
        await bus.publish(OrderPlaced(order_id=f"{number} then"), order_key=str(number))
    desk.watch.advance(seconds=20)
    runner = desk.bus().runner([recorder(done, concurrency=50, ordered=True)])
    assert await runner.step() == 0
    await runner.feed.flush()
    assert len(section_of(desk).open) < 200
    assert section_of(desk).count == 600
    desk.watch.advance(seconds=781)
    while await runner.step():
        await runner.drain_flight()
    assert len(done) == 200
    desk.watch.advance(seconds=2_000)
    while await runner.step():
        await runner.drain_flight()
    assert len(set(done)) == len(done) == 600
    for number in range(300):
        assert done.index(f"{number} first") < done.index(f"{number} then")


async def test_several_workers_with_an_ordered_handler_keep_each_key_in_order(small: None) -> None:
    """All of them hand out, each by priority within its share; of one key nothing is overtaken."""
    desk, rng, done = Desk(), random.Random(3), list[str]()
    shares: list[list[str]] = [[], [], []]
    bus, keys = desk.bus(), dict[str, str]()
    for number in range(400):
        keys[str(number)] = f"k{rng.randrange(60)}"
        await bus.publish(OrderPlaced(order_id=str(number)), order_key=keys[str(number)], priority=rng.randrange(5))
        desk.watch.advance(seconds=0.001)

    def shared(share: list[str]) -> Any:
        @on(OrderPlaced, id="bill", ordered=True, concurrency=4)
        async def bill(ctx: Any, event: OrderPlaced) -> None:
            done.append(event.order_id)
            share.append(event.order_id)

        return bill

    runners = [desk.bus().runner([shared(share)]) for share in shares]
    for _ in range(1_000):
        desk.watch.advance(seconds=1)
        for runner in runners:
            await runner.step()
            await runner.drain_flight()
        if len(done) == 400:
            break
    assert sorted(done, key=int) == [str(number) for number in range(400)]
    assert all(shares)
    for key in set(keys.values()):
        numbers = [int(each) for each in done if keys[each] == key]
        assert numbers == sorted(numbers)


def test_the_next_of_a_line_comes_along_unless_it_would_have_to_wait() -> None:
    rows = [
        ("1_a", Item(5, "t", 0, "k")),
        ("2_b", Item(9, "t", 0, "k")),
        ("3_c", Item(1, "t", 0, "k")),
        ("4_d", Item(4, "t", 0, "l")),
        ("5_e", Item(3, "t", 0, "m")),
    ]
    pile = Pile(READY, 0, 0, (0, ""), (Sheet("s", len(rows), (0, "")),))
    turns = Turns(Backlog({"s": Columns.of(rows)}), (pile,))
    look = turns.look({}, now_ns=1)
    assert look.fence == (-5, "1_a")
    assert {sheet: sorted(places) for sheet, places in turns.choose(look, 2).items()} == {"s": [0, 1, 3]}
    at_hand = Columns.of([("0_x", Item(1, "t", 0, "k")), ("6_y", Item(9, "t", 0, "m"))]).lines.tolist()
    look = turns.look(dict(zip(at_hand, ["0_x", "6_y"], strict=True)), now_ns=1)
    assert look.fence == (-4, "4_d")
    assert look.behind == {at_hand[1]}
