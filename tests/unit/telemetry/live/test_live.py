"""Live state by itself: bounds, and each sequence number once, in whatever order batches come."""

import gc
import tracemalloc
from itertools import permutations

import pytest

from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.select import Wanted, select
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge, Log
from tests.unit.runs.desk import Watch

WINDOW_NS = 10 * 10**9


def live_of(max_bytes: int = 10**9) -> tuple[Watch, Live]:
    watch = Watch()
    return watch, Live(watch, max_bytes=max_bytes, window_ns=WINDOW_NS)


def add(live: Live, at_ns: int, *seqs: int, value: float = 0.0, agent: str = "web-1", waits: bool = False) -> bool:
    records = [Sequenced(seq, Gauge("load", value + seq, seq)) for seq in seqs]
    batch = decode(encode(pack_sequenced(agent, "boot", records)))
    identity = BatchIdentity(agent, "boot", seqs[0], seqs[-1])
    return live.add(AcceptedManifest(identity, "0" * 64, 1, "k", at_ns, "c", 1, 1), batch, waits=waits)


def values(live: Live) -> list[float]:
    found = select(live.kept(), Wanted())["series"]
    return [value for series in found for _, value in series["points"]]


def test_overlapping_ranges_count_each_number_once_in_every_order() -> None:
    batches = [((10, 11, 13), 100.0), ((11, 12, 13, 14), 200.0), ((14, 20), 300.0), ((30,), 400.0)]
    seen = set()
    for order in permutations(batches):
        watch, live = live_of()
        assert all(add(live, watch.wall_ns(), *seqs, value=value) for seqs, value in order)
        assert not add(live, watch.wall_ns(), *order[0][0])  # a batch is kept once
        seen.add(tuple(values(live)))
    # 12 is not in the first batch although it is in its range, so the second gives it.
    assert seen == {(110.0, 111.0, 212.0, 113.0, 214.0, 320.0, 430.0)}


def test_memory_is_bounded_the_oldest_go_first_and_what_went_is_missing_until_it_is_too_old() -> None:
    watch, live = live_of(30_000)
    for seq in range(50):
        add(live, watch.wall_ns(), seq)
        assert live.size <= 30_000
    assert values(live)[-1] == 49.0
    assert live.evicted == 50 - len(live) > 0
    assert live.missing
    watch.advance(seconds=11)
    assert not add(live, watch.wall_ns() - WINDOW_NS - 1, 98)  # older than the window
    add(live, watch.wall_ns(), 99)
    assert (live.missing, values(live)) == (False, [99.0])
    watch, live = live_of(30_000)
    for seq in reversed(range(10)):  # in whatever order they came
        add(live, watch.wall_ns() + seq * 10**6, seq)
    assert values(live) == [7.0, 8.0, 9.0]
    watch, live = live_of(10)
    assert not add(live, watch.wall_ns(), 1)  # larger than all memory
    assert live.missing


def ids(*seqs: int) -> list[str]:
    return [BatchIdentity("web-1", "boot", seq, seq).manifest_id for seq in seqs]


def test_what_waits_in_a_spool_stays_beyond_the_window_until_it_has_landed() -> None:
    watch, live = live_of()
    for seq in range(4):
        add(live, watch.wall_ns(), seq, waits=seq > 1)
    assert not add(live, watch.wall_ns(), 1, waits=True)  # known before it was said to wait
    watch.advance(seconds=11)
    assert add(live, watch.wall_ns() - 2 * WINDOW_NS, 9, waits=True)  # as after a restart
    assert values(live) == [1.0, 2.0, 3.0, 9.0]
    live.landed(ids(2, 9))
    assert values(live) == [1.0, 3.0]
    add(live, watch.wall_ns(), 5, waits=True)
    live.landed(ids(1, 3, 5))
    assert values(live) == [5.0]  # within the window it stays like others
    watch.advance(seconds=11)
    assert (live.kept(), live.size, len(live)) == ([], 0, 0)
    assert [live.missing, live.lacks_waiting] == [False, False]


def test_memory_bounds_what_waits_and_its_lack_is_known_until_all_has_landed() -> None:
    watch, live = live_of(30_000)
    for seq in range(3):
        add(live, watch.wall_ns(), seq, waits=True)
    watch.advance(seconds=11)
    assert values(live) == [0.0, 1.0, 2.0]
    began_ns = watch.monotonic_ns()
    watch.advance(seconds=1)
    for seq in range(3, 6):
        assert not live.lacks_waiting or seq > 3
        add(live, watch.wall_ns(), seq, waits=True)
        assert live.size <= 30_000
    assert values(live) == [3.0, 4.0, 5.0]  # the oldest went
    assert (live.lacks_waiting, live.missing) == (True, False)
    watch.advance(seconds=30)
    lacking = []
    for round_ns in (began_ns, watch.monotonic_ns()):  # of the first, that began before they went, nothing follows
        live.all_landed(round_ns)
        lacking.append(live.lacks_waiting)
    assert lacking == [True, False]
    small = Live(watch, max_bytes=100, window_ns=WINDOW_NS)
    assert not add(small, watch.wall_ns(), 1, waits=True)
    assert (small.lacks_waiting, small.missing) == (True, True)


async def test_a_slow_reader_gets_the_number_of_missed_events() -> None:
    watch, live = live_of()
    subscription = live.subscribe(most=2)
    for seq in range(5):
        add(live, watch.wall_ns(), seq)
    came = [await subscription.next(0) for _ in range(2)]
    assert [(kept.identity.seq_start, missed) for kept, missed in came if kept is not None] == [(3, 3), (4, 0)]
    assert await subscription.next(0) == (None, 0)
    live.unsubscribe(subscription)
    add(live, watch.wall_ns(), 9)
    assert await subscription.next(0) == (None, 0)


async def test_what_waits_for_a_slow_listener_is_bounded_in_bytes() -> None:
    watch, live = live_of()
    subscription = live.subscribe()
    text = "x" * (subscription.most_bytes // 4)
    for seq in range(8):
        log = decode(encode(pack_sequenced("a", "b", [Sequenced(seq, Log(text, 0))])))
        live.add(AcceptedManifest(BatchIdentity("a", "b", seq, seq), "0" * 64, 1, "k", watch.wall_ns(), "c", 1, 1), log)
    came = []
    while (found := await subscription.next(0))[0] is not None:
        came.append(found)
    assert 0 < sum(kept.size for kept, _ in came if kept is not None) <= subscription.most_bytes
    assert sum(missed for _, missed in came) == 8 - len(came) > 0


def test_of_many_logs_the_latest_are_answered_and_those_of_a_clock_that_is_ahead_crowd_out_no_others() -> None:
    watch, live = live_of()
    for number, ahead_ns in enumerate((10**18, 0, 0)):
        watch.advance(seconds=1)
        now = watch.wall_ns() + ahead_ns
        records = [Sequenced(seq, Log(f"{number}-{seq}", now - seq)) for seq in range(5 + 3 * number)]
        batch = decode(encode(pack_sequenced(f"web-{number}", "boot", records)))
        identity = BatchIdentity(f"web-{number}", "boot", 0, 4 + 3 * number)
        live.add(AcceptedManifest(identity, "0" * 64, 1, "k", watch.wall_ns(), "c", 1, 1), batch)
    found = select(live.kept(), Wanted(series=7))
    assert [one["message"] for one in found["logs"]] == [f"2-{seq}" for seq in range(6, -1, -1)]
    assert found["truncated"]


def test_a_batch_of_a_clock_that_is_ahead_stays_no_longer_than_others_and_crowds_out_none() -> None:
    watch, live = live_of(30_000)
    assert add(live, watch.wall_ns() + 10**18, 1)
    watch.advance(seconds=61)
    for seq in range(2, 50):
        add(live, watch.wall_ns(), seq)
    assert 1.0 not in values(live)
    assert values(live)[-1] == 49.0
    watch, live = live_of()
    assert add(live, watch.wall_ns() + 10**18, 1)
    watch.advance(seconds=71)
    assert (values(live), len(live), live.missing) == ([], 0, False)
    watch, live = live_of(100)
    assert not add(live, watch.wall_ns() + 10**18, 1)
    assert live.missing
    watch.advance(seconds=71)
    assert not live.missing  # what was lost under such a clock is not missed for ever


class SetBack(Watch):
    """Its wall clock can be corrected."""

    ahead_ns = 0

    def wall_ns(self) -> int:
        return super().wall_ns() + self.ahead_ns


def test_what_came_before_the_own_clock_was_set_back_goes_in_time() -> None:
    watch = SetBack()
    watch.ahead_ns = 10**18
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    assert add(live, watch.wall_ns(), 1)
    watch.ahead_ns = 0
    watch.advance(seconds=11)
    assert (values(live), len(live)) == ([], 0)


@pytest.mark.parametrize(("series", "scrapes", "most"), [(1, 1, 1.0), (91, 110, 1.05)])
def test_the_counted_size_covers_the_memory_that_is_used(series: int, scrapes: int, most: float) -> None:
    """Not far above it either, where samples are many."""
    frames = [
        encode(
            pack_sequenced(
                "web-1",
                f"boot-{number}",
                [
                    Sequenced(scrape * series + of, Gauge(f"metric_{of}", scrape + of / 7, scrape, {"unit": str(of)}))
                    for scrape in range(scrapes)
                    for of in range(series)
                ],
            )
        )
        for number in range(20)
    ]
    decode(frames[0])  # whatever is allocated once
    watch, live = live_of()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number, frame in enumerate(frames):
            identity = BatchIdentity("web-1", f"boot-{number}", 0, series * scrapes - 1)
            live.add(AcceptedManifest(identity, "0" * 64, 1, "k", watch.wall_ns(), "c", 1, 1), decode(frame))
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(live) == 20
    assert used <= live.size * most
    if scrapes > 1:
        assert used >= live.size * 0.8
