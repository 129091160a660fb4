"""Marks of collectors, and what a follower makes of them: complete only up to where everything was told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from holdfast.base.errors import Ambiguous
from holdfast.objects.client import Usage
from holdfast.objects.store import OVERWRITE
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.collector import Collector
from holdfast.telemetry.accept.heard import SKEW_NS
from holdfast.telemetry.accept.marks import Mark, Marked, Marks
from holdfast.telemetry.accept.submit import submission_of
from holdfast.telemetry.frame import Limits, decode, encode, pack
from holdfast.telemetry.live import follow
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge
from tests.unit.telemetry.accept.accept_desk import AcceptDesk

EVERY_MS = 60_000
"""Real time never gets there: tests write marks themselves, and move the desk's own clock."""


class Fleet:
    """Collectors that keep marks, and one follower, on one shelf."""

    def __init__(self) -> None:
        self.desk = AcceptDesk()
        self.usage = Usage()
        live = Live(self.desk.watch, max_bytes=10**9, window_ns=3_600 * 10**9)
        self.follower = Follower(self.desk.store(usage=self.usage), live, self.desk.watch, Limits())

    @asynccontextmanager
    async def collector(self, name: str, *script: str) -> AsyncIterator[tuple[Marked, Collector, Marks]]:
        inner = self.desk.collector(name, attempts=1)
        store = self.desk.store(*script, attempts=1)
        marks = Marks(store, self.desk.ambient(), inner.references, collector_id=name, every_ms=EVERY_MS)
        async with marks:
            yield Marked(inner, marks), inner, marks

    async def look(self) -> None:
        await self.follower.poll()
        if not self.follower.audited or self.follower.heard.wanting():
            await self.follower.audit()
            await self.follower.poll()

    def knows(self, number: int) -> bool:
        return self.follower.live.knows(submission_of_frame(number).identity.manifest_id)

    def complete(self) -> bool:
        return self.follower.audited and self.follower.heard.why() is None

    @property
    def now_ns(self) -> int:
        return self.desk.watch.wall_ns()


def submission_of_frame(number: int) -> Submission:
    body = encode(pack("web-1", "boot", [Gauge("load", 1.0, 1_000)], seq_start=number))
    return submission_of(body, decode(body))


async def test_a_mark_goes_no_further_than_what_is_told() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (acceptor, inner, marks):
        await fleet.look()
        await acceptor.accept(submission_of_frame(1))
        acknowledged = fleet.now_ns
        await marks.write()
        await fleet.look()
        assert not fleet.knows(1)
        assert fleet.complete()
        assert fleet.follower.through_ns is not None
        assert fleet.follower.through_ns < acknowledged  # so nothing is said of the batch
        await inner.references.flush()
        await marks.write()
        after = fleet.now_ns
        await fleet.look()
        assert fleet.knows(1)
        assert acknowledged < fleet.follower.through_ns <= after


async def test_who_falls_silent_is_looked_for_once_and_then_left() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (acceptor, _, _):
        await fleet.look()
        await acceptor.accept(submission_of_frame(1))  # and from here on nothing comes of it any more
        told_ns = fleet.now_ns
        fleet.desk.watch.advance(seconds=170)
        await fleet.look()
        assert fleet.follower.through_ns is not None
        assert fleet.follower.through_ns < told_ns
        fleet.desk.watch.advance(seconds=20)
        await fleet.follower.poll()
        assert not fleet.knows(1)
        assert "what a accepted last" in (fleet.follower.heard.why() or "")
        fleet.usage.tallies.clear()
        await fleet.follower.audit()
        assert fleet.usage.by_verb == {"list": 1, "get": 2}  # manifests; the one that nobody knew, and its bytes
        assert fleet.knows(1)
        assert fleet.complete()
        fleet.usage.tallies.clear()
        await fleet.look()
        assert fleet.follower.through_ns > told_ns  # the one that is gone holds nobody up
        assert fleet.usage.requests("list", "accepted") == 0
        assert fleet.usage.requests("list", "collectors") == 1


async def test_who_comes_back_is_heard_again() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (acceptor, inner, marks):
        await fleet.look()
        fleet.desk.watch.advance(seconds=200)
        await fleet.look()
        assert fleet.complete()
        given_up_ns = fleet.now_ns
        # It was only paused, and writes its mark before it acknowledges anything.
        lapsed = [marks.lapsed]
        await acceptor.accept(submission_of_frame(1))
        assert [*lapsed, marks.lapsed] == [True, False]
        await fleet.look()
        assert not fleet.knows(1)
        assert fleet.follower.through_ns is not None
        assert given_up_ns < fleet.follower.through_ns < fleet.now_ns
        fleet.desk.watch.advance(seconds=200)
        await fleet.look()
        assert fleet.knows(1)
        assert len(inner.references) == 1  # it never told


async def test_a_collector_that_ends_owes_nothing_and_is_not_looked_for() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (acceptor, inner, _):
        await fleet.look()
        await acceptor.accept(submission_of_frame(1))
        await inner.references.flush()
    fleet.desk.watch.advance(seconds=10_000)
    fleet.usage.tallies.clear()
    await fleet.look()
    assert fleet.usage.requests("list", "accepted") == 0
    assert fleet.complete()


async def test_one_that_could_not_tell_everything_says_so_when_it_ends() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (acceptor, _, _):
        await fleet.look()
        await acceptor.accept(submission_of_frame(1))
    await fleet.follower.poll()
    assert not fleet.complete()
    await fleet.look()
    assert fleet.knows(1)
    assert fleet.complete()


async def test_what_may_have_landed_is_looked_for() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (_, inner, marks):
        await fleet.look()
        other = fleet.desk.collector("a", "ok", "late", attempts=1)
        other.references = inner.references
        with pytest.raises(Ambiguous):
            await other.accept(submission_of_frame(1))
        assert inner.references.doubted == 1
        await other.store.put("elsewhere", b"")  # and now it lands
        await marks.write()
        await fleet.follower.poll()
        assert not fleet.complete()
        await fleet.look()
        assert fleet.complete()
        assert fleet.knows(1)


async def test_an_audit_of_many_goes_on_where_it_left_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "AUDIT_PAGES", 1)
    fleet = Fleet()
    inner = fleet.desk.collector("a")
    for number in range(3):
        await inner.accept(submission_of_frame(number))
    store = fleet.desk.store()
    for number in range(2_000):
        await store.put(f"{layout.ACCEPTED}agent=00/boot=00/{number:020d}-{number:020d}.json", b"{}")
    fleet.follower.live.window_ns = 10**6  # nothing of that is recent
    done = []
    for _ in range(4):
        fleet.usage.tallies.clear()
        await fleet.follower.audit()
        assert fleet.usage.by_verb == {"list": 1}
        done.append(fleet.follower.audited)
    assert done == [False, False, False, True]


async def test_marks_that_cannot_be_read_or_are_ahead_are_said() -> None:
    fleet = Fleet()
    session = "0" * 32
    await fleet.look()
    assert fleet.complete()
    store = fleet.desk.store()
    await store.put(layout.mark_key(session), b"{}", OVERWRITE)
    await fleet.look()
    assert "cannot be read" in (fleet.follower.heard.why() or "")
    fleet.desk.watch.advance(seconds=1)
    ahead = Mark(session, "late", fleet.now_ns + 3_600 * 10**9, 0, fleet.now_ns, EVERY_MS)
    await store.put(ahead.key, ahead.encode(), OVERWRITE)
    await fleet.look()
    assert "the clock of late is ahead" in (fleet.follower.heard.why() or "")


async def test_an_idle_look_is_three_listings_and_a_mark_is_read_when_it_is_written() -> None:
    fleet = Fleet()
    async with fleet.collector("a") as (_, _, marks), fleet.collector("b"):
        await fleet.look()
        fleet.usage.tallies.clear()
        await fleet.follower.poll()
        hours = {layout.hour_path(fleet.now_ns + each) for each in (-SKEW_NS, 0, SKEW_NS)}
        assert fleet.usage.by_verb == {"list": 1 + 2 * len(hours)}
        await marks.write()
        fleet.usage.tallies.clear()
        await fleet.follower.poll()
        assert fleet.usage.by_verb == {"list": 1 + 2 * len(hours), "get": 1}


async def test_a_mark_that_cannot_be_written_stops_nobody() -> None:
    fleet = Fleet()
    async with fleet.collector("a", "ok", "busy", "busy") as (acceptor, _, marks):
        fleet.desk.watch.advance(seconds=1_000)
        answers = await asyncio.gather(*(acceptor.accept(submission_of_frame(number)) for number in range(2)))
        assert len(answers) == 2
        assert marks.lapsed
        await acceptor.accept(submission_of_frame(3))


@pytest.mark.parametrize("ended", [True, False])
async def test_a_clock_that_was_ahead_is_forgiven_once_its_collector_is_gone_and_was_looked_for(ended: bool) -> None:
    fleet = Fleet()
    store = fleet.desk.store()
    await fleet.look()
    async with fleet.collector("a") as (_, inner, _):  # whose references go where nobody looks
        await inner.accept(submission_of_frame(1))
    ahead = Mark("0" * 32, "late", fleet.now_ns + 7_200 * 10**9, 0, fleet.now_ns, EVERY_MS)
    await store.put(ahead.key, ahead.encode(), OVERWRITE)
    await fleet.look()
    assert "the clock of late is ahead" in (fleet.follower.heard.why() or "")
    if ended:
        last = replace(ahead, ended=True)
        await store.put(last.key, last.encode(), OVERWRITE)
    else:
        fleet.desk.watch.advance(seconds=190)
    await fleet.follower.poll()
    assert "what late accepted last" in (fleet.follower.heard.why() or "")
    await fleet.look()
    assert fleet.knows(1)
    assert fleet.complete()
