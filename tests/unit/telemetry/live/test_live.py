"""Live state: its limits, and each sequence number once, in whatever order batches come."""

import gc
import tracemalloc
from itertools import permutations

import pytest

from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.live.select import LiveQuery, select
from holdfast.telemetry.live.state import Live
from holdfast.telemetry.records import Gauge, Log
from tests.unit.runs.desk import Watch
from tests.unit.telemetry.rollup.rolled import batch

SECOND = 10**9
WINDOW_NS = 10 * SECOND


def live_of(max_bytes: int = 10**9) -> tuple[Watch, Live]:
    watch = Watch()
    return watch, Live(watch, max_bytes=max_bytes, window_ns=WINDOW_NS)


def put(live: Live, at_ns: int, own: Batch) -> bool:
    return live.add(AcceptedManifest(own.identity, "0" * 64, 1, "k", at_ns, "c", 1, 1), own)


def add(live: Live, at_ns: int, *seqs: int, value: float = 0.0) -> bool:
    return put(live, at_ns, batch("web-1", "boot", {seq: Gauge("load", value + seq, seq) for seq in seqs}))


def values(live: Live) -> list[float]:
    found = select(live.batches(), LiveQuery())["series"]
    return [value for series in found for _, value in series["points"]]


def test_overlapping_ranges_show_each_number_once_in_every_order() -> None:
    batches = [((10, 11, 13), 100.0), ((11, 12, 13, 14), 200.0), ((14, 20), 300.0), ((30,), 400.0)]
    found = set()
    for order in permutations(batches):
        watch, live = live_of()
        assert all(add(live, watch.wall_ns(), *seqs, value=value) for seqs, value in order)
        assert not add(live, watch.wall_ns(), *order[0][0])  # it is there already
        found.add(tuple(values(live)))
    # 12 is not in the first batch although it is in its range, so the second one gives it.
    assert found == {(110.0, 111.0, 212.0, 113.0, 214.0, 320.0, 430.0)}


def test_the_oldest_batches_are_dropped_when_memory_is_short_and_count_as_missing_for_the_window() -> None:
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
        add(live, watch.wall_ns() - (10 - seq) * 10**6, seq)
    assert values(live) == [7.0, 8.0, 9.0]


@pytest.mark.parametrize("max_bytes", [100, 30_000, 10**9])
def test_a_batch_of_a_clock_that_is_ahead_leaves_with_the_window_and_displaces_no_others(max_bytes: int) -> None:
    watch, live = live_of(max_bytes)
    assert add(live, watch.wall_ns() + 10**18, 1) == (max_bytes > 100)
    assert live.missing == (max_bytes == 100)
    watch.advance(seconds=9)
    for seq in range(2, 50):
        add(live, watch.wall_ns(), seq)
    assert (1.0 in values(live)) == (max_bytes == 10**9)
    watch.advance(seconds=11)
    assert (values(live), len(live), live.missing) == ([], 0, False)


async def test_a_slow_subscriber_gets_the_number_of_missed_batches_and_its_backlog_is_bounded_in_bytes() -> None:
    watch, live = live_of()
    subscription = live.subscribe()
    text = "x" * (subscription.max_bytes // 4)
    for seq in range(8):
        put(live, watch.wall_ns(), batch("a", "b", {seq: Log(text, 0)}))
    received = []
    while (found := await subscription.next(0))[0] is not None:
        received.append(found)
    assert 0 < sum(each.size for each, _ in received if each is not None) <= subscription.max_bytes
    assert sum(missed for _, missed in received) == 8 - len(received) > 0
    live.unsubscribe(subscription)
    add(live, watch.wall_ns(), 9)
    assert await subscription.next(0) == (None, 0)


def test_the_latest_logs_are_answered_and_those_of_a_clock_that_is_ahead_displace_no_others() -> None:
    watch, live = live_of()
    for number, ahead_ns in enumerate((10**18, 0, 0)):
        watch.advance(seconds=1)
        now = watch.wall_ns() + ahead_ns
        logs = {seq: Log(f"{number}-{seq}", now - seq) for seq in range(5 + 3 * number)}
        put(live, watch.wall_ns(), batch(f"web-{number}", "boot", logs))
    found = select(live.batches(), LiveQuery(series=7))
    assert [one["message"] for one in found["logs"]] == [f"2-{seq}" for seq in range(6, -1, -1)]
    assert found["truncated"]


@pytest.mark.parametrize(("series", "scrapes", "most"), [(1, 1, 1.0), (91, 110, 1.05)])
def test_the_counted_size_covers_the_memory_that_is_used(series: int, scrapes: int, most: float) -> None:
    """Not far above it either, where samples are many."""
    watch, live = live_of()
    own = {
        scrape * series + of: Gauge(f"metric_{of}", scrape + of / 7, scrape, {"unit": str(of)})
        for scrape in range(scrapes)
        for of in range(series)
    }
    batch("web-1", "first", own)  # whatever is allocated once
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(20):
            put(live, watch.wall_ns(), batch("web-1", f"boot-{number}", own))
        gc.collect()
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(live) == 20
    assert used <= live.size * most
    if scrapes > 1:
        assert used >= live.size * 0.8
