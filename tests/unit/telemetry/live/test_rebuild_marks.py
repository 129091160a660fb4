"""Live state at the start of a collector without a spool: all that anybody had acknowledged before, at little cost."""

import asyncio
import random
from collections import Counter

import pytest

from holdfast.base.clock import Clock
from holdfast.base.ids import Ambient
from holdfast.objects.client import Usage
from holdfast.objects.store import OVERWRITE
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from holdfast.telemetry.accept.heard import SKEW_NS
from holdfast.telemetry.accept.marks import Mark, Marks
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live
from tests.unit.telemetry.accept.accept_desk import AcceptDesk
from tests.unit.telemetry.live.test_rebuild import submission

EVERY_MS = 40
SESSION = "0" * 32
SECOND = 1_000_000_000


class Fleet:
    """Collectors whose marks are written when a test says so, and one that starts."""

    def __init__(self) -> None:
        self.desk = AcceptDesk()
        self.usage = Usage()
        self.store = self.desk.store()
        self.live = Live(self.desk.watch, max_bytes=1 << 24, window_ns=900 * SECOND)

    async def collector(self, name: str = "a") -> tuple[Collector, Marks]:
        inner = self.desk.collector(name)
        marks = Marks(self.store, self.desk.ambient(), inner.references, collector_id=name, every_ms=EVERY_MS)
        await marks.write()
        return inner, marks

    def start(self, own: str = "", *, follows: bool = False) -> "asyncio.Task[int]":
        self.follower = Follower(self.desk.store(usage=self.usage), self.live, self.desk.watch, Limits(), own=own)
        return asyncio.create_task(Rebuild(self.follower, follows=follows).run())

    async def let_go_by(self, starting: "asyncio.Task[int]", *writing: Marks) -> int:
        """Until it is done. The clock goes on, and some write their marks."""
        async with asyncio.timeout(30):
            while not starting.done():
                for marks in writing:
                    await marks.write()
                await asyncio.wait([starting], timeout=0.02)
                self.desk.watch.advance(seconds=0.02)
        return starting.result()

    def shown(self) -> list[int]:
        return sorted(kept.identity.seq_start for kept in self.live.kept())

    def lists(self) -> Counter[str]:
        families = ("accepted", "collectors", "acceptances")
        return Counter({family: self.usage.requests("list", family) for family in families})


async def test_what_a_killed_collector_acknowledged_is_found_by_the_next_that_starts() -> None:
    fleet = Fleet()
    killed, _ = await fleet.collector()
    for number in range(3):
        await killed.accept(submission(number))
    starting = fleet.start()
    await asyncio.sleep(0)
    assert await fleet.let_go_by(starting) == 3
    assert fleet.shown() == [0, 1, 2]
    assert fleet.lists()["accepted"] == 1  # once it is known that nobody tells of them


async def test_who_is_alive_tells_it_and_no_manifests_are_listed() -> None:
    fleet = Fleet()
    neighbour, marks = await fleet.collector()
    for number in range(3):
        await neighbour.accept(submission(number))
    starting = fleet.start()
    while not fleet.lists()["acceptances"]:
        await asyncio.sleep(0.005)
    await neighbour.accept(submission(3))
    await neighbour.references.flush()
    assert await fleet.let_go_by(starting, marks) == 4
    assert fleet.shown() == [0, 1, 2, 3]
    assert fleet.lists()["accepted"] == 0


async def test_a_promise_of_a_clock_that_is_a_little_ahead_is_not_taken_at_once() -> None:
    fleet = Fleet()
    neighbour, marks = await fleet.collector()
    await neighbour.accept(submission(1))
    soon = Mark(marks.session, "a", fleet.desk.watch.wall_ns() + SKEW_NS // 2, 0, 0, EVERY_MS)
    await fleet.store.put(soon.key, soon.encode(), OVERWRITE)
    starting = fleet.start()
    while not fleet.lists()["acceptances"]:
        await asyncio.sleep(0.005)
    assert not starting.done()
    await neighbour.references.flush()
    assert await fleet.let_go_by(starting, marks) == 1
    assert fleet.lists()["accepted"] == 0


class Ahead:
    """A clock that is three seconds ahead of another."""

    def __init__(self, other: Clock) -> None:
        self._other = other

    def wall_ns(self) -> int:
        return self._other.wall_ns() + 3 * SECOND

    def monotonic_ns(self) -> int:
        return self._other.monotonic_ns()


async def test_what_was_owed_when_one_whose_clock_is_ahead_wrote_its_mark_is_waited_for() -> None:
    fleet = Fleet()
    ambient = Ambient(Ahead(fleet.desk.watch), random.Random(5))
    neighbour = Collector(fleet.store, ambient, fleet.desk.collector("b").authority, CollectorOptions("b"))
    marks = Marks(fleet.store, ambient, neighbour.references, collector_id="b", every_ms=EVERY_MS)
    await marks.write()
    fleet.desk.watch.advance(seconds=1)
    await neighbour.accept(submission(7))
    fleet.desk.watch.advance(seconds=0.5)
    assert await fleet.let_go_by(fleet.start(), marks) == 1
    assert fleet.shown() == [7]


async def test_who_began_with_a_clock_that_was_set_back_since_is_looked_for_from_the_beginning() -> None:
    fleet = Fleet()
    neighbour, marks = await fleet.collector()
    await neighbour.accept(submission(1))
    now_ns = fleet.desk.watch.wall_ns()
    mark = Mark(marks.session, "a", now_ns, 1, now_ns + 3_600 * SECOND, EVERY_MS)
    await fleet.store.put(mark.key, mark.encode(), OVERWRITE)
    assert await fleet.let_go_by(fleet.start()) == 1


async def test_a_mark_on_its_way_before_the_start_tells_nothing_of_it() -> None:
    fleet = Fleet()
    neighbour, marks = await fleet.collector()
    on_its_way = Mark(marks.session, "a", now := fleet.desk.watch.wall_ns(), 0, 0, EVERY_MS, written_unix_ns=now)
    await neighbour.accept(submission(1))
    starting = fleet.start()
    while not fleet.lists()["acceptances"]:
        await asyncio.sleep(0.005)
    await fleet.store.put(on_its_way.key, on_its_way.encode("late"), OVERWRITE)
    assert await fleet.let_go_by(starting) == 1


async def test_after_a_good_end_nothing_is_waited_for_and_nothing_is_listed_twice() -> None:
    fleet = Fleet()
    before, marks = await fleet.collector()
    for number in range(2):
        await before.accept(submission(number))
    await before.references.flush()
    await marks.write(ended=True)
    _, own = await fleet.collector("b")
    assert await fleet.start(own.session) == 2
    assert fleet.lists()["collectors"] == 1
    assert fleet.lists()["accepted"] == 0
    assert fleet.lists()["acceptances"] <= 2  # of the hours


async def test_one_that_is_alive_and_never_tells_is_waited_for_no_longer_than_a_dead_one() -> None:
    fleet = Fleet()
    neighbour, marks = await fleet.collector()
    await neighbour.accept(submission(1))
    assert await fleet.let_go_by(fleet.start(), marks) == 1
    assert len(neighbour.references) == 1
    assert fleet.lists()["accepted"] == 1


@pytest.mark.parametrize("flaw", ["unreadable", "ahead", "unlisted"])
async def test_where_a_mark_cannot_be_relied_on_manifests_are_listed_at_once(flaw: str) -> None:
    fleet = Fleet()
    before, marks = await fleet.collector()
    await before.accept(submission(1))
    now_ns = fleet.desk.watch.wall_ns()
    mark = {
        "unreadable": b"{}",
        "ahead": Mark(marks.session, "a", now_ns + 7_200 * SECOND, 0, now_ns, EVERY_MS, ended=True).encode(),
        "unlisted": Mark(marks.session, "a", now_ns, 1, now_ns - SECOND, EVERY_MS, ended=True).encode(),
    }[flaw]
    await fleet.store.put(layout.mark_key(marks.session), mark, OVERWRITE)
    assert await fleet.start() == 1
    assert fleet.lists()["accepted"] == 1


async def test_who_begins_later_and_who_is_of_another_day_are_not_waited_for() -> None:
    fleet = Fleet()
    await fleet.collector("of another day")
    fleet.desk.watch.advance(seconds=3_600)
    neighbour, marks = await fleet.collector()
    starting = fleet.start()
    while not fleet.lists()["acceptances"]:
        await asyncio.sleep(0.005)
    await fleet.collector("later")
    assert len(neighbour.references) == 0
    assert await fleet.let_go_by(starting, marks) == 0
    assert fleet.lists()["accepted"] == 0


async def test_a_query_collector_hears_the_others_all_the_time_and_does_not_wait() -> None:
    fleet = Fleet()
    killed, _ = await fleet.collector()
    await killed.accept(submission(1))
    assert await fleet.start(follows=True) == 0
    assert (fleet.lists()["accepted"], fleet.lists()["collectors"]) == (0, 0)


async def test_what_was_told_before_is_not_read_again_when_manifests_are_listed() -> None:
    fleet = Fleet()
    fleet.live.max_bytes = 3 * 8_192  # of the four that were told it holds two
    killed, marks = await fleet.collector()
    for number in range(4):
        await killed.accept(submission(number))
    await killed.references.flush()
    fleet.desk.watch.advance(seconds=2 * SKEW_NS / SECOND)
    await marks.write()
    await killed.accept(submission(4))
    fleet.live.window_ns = 10 * SKEW_NS
    await fleet.let_go_by(fleet.start())
    assert 4 in fleet.shown()
    assert fleet.usage.requests("get", "accepted") == 1
    assert fleet.live.missing
