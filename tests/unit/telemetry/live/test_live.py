"""Live state by itself: bounds, and each sequence number once, in whatever order batches come."""

import gc
import tracemalloc
from itertools import permutations

import numpy as np
import pytest

from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.select import Wanted, select
from holdfast.telemetry.live.state import Kept, Live, counted_once, size_of
from holdfast.telemetry.records import Gauge, Log
from tests.unit.runs.desk import Watch

WINDOW_NS = 10 * 10**9


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
        watch = Watch()
        live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
        assert all(add(live, watch.wall_ns(), *seqs, value=value) for seqs, value in order)
        seen.add(tuple(values(live)))
    # 12 is not in the first batch although it is in its range, so the second gives it.
    assert seen == {(110.0, 111.0, 212.0, 113.0, 214.0, 320.0, 430.0)}


def test_a_batch_is_kept_once() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    assert [add(live, watch.wall_ns(), 1, 2), add(live, watch.wall_ns(), 1, 2)] == [True, False]
    assert values(live) == [1.0, 2.0]


def test_memory_is_bounded_and_the_oldest_go_first() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=30_000, window_ns=WINDOW_NS)
    for seq in range(50):
        add(live, watch.wall_ns(), seq)
        assert live.size <= 30_000
    assert values(live)[-1] == 49.0
    assert live.evicted == 50 - len(live) > 0
    nothing = Live(watch, max_bytes=0, window_ns=WINDOW_NS)
    assert not add(nothing, watch.wall_ns(), 1)


def test_what_is_older_than_the_window_is_gone() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    add(live, watch.wall_ns(), 1)
    watch.advance(seconds=11)
    assert not add(live, watch.wall_ns() - WINDOW_NS - 1, 2)
    assert (live.kept(), live.evicted, live.size) == ([], 0, 0)


def ids(*seqs: int) -> list[str]:
    return [BatchIdentity("web-1", "boot", seq, seq).manifest_id for seq in seqs]


def test_what_waits_in_a_spool_stays_beyond_the_window_until_it_has_landed() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    for seq in range(4):
        add(live, watch.wall_ns(), seq, waits=seq > 0)
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


def test_one_that_was_known_before_it_was_said_to_wait_stays_too() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    at_ns = watch.wall_ns()
    assert [add(live, at_ns, 1), add(live, at_ns, 1, waits=True)] == [True, False]
    watch.advance(seconds=11)
    assert values(live) == [1.0]


def test_memory_bounds_what_waits_and_its_lack_is_known_until_all_has_landed() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=30_000, window_ns=WINDOW_NS)
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


async def test_who_is_too_slow_is_told_how_much_was_missed() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    subscription = live.subscribe(most=2)
    for seq in range(5):
        add(live, watch.wall_ns(), seq)
    came = [await subscription.next(0) for _ in range(2)]
    assert [(kept.identity.seq_start, missed) for kept, missed in came if kept is not None] == [(3, 3), (4, 0)]
    assert await subscription.next(0) == (None, 0)
    live.unsubscribe(subscription)
    add(live, watch.wall_ns(), 9)
    assert await subscription.next(0) == (None, 0)


def test_the_estimate_of_memory_covers_texts() -> None:
    short = decode(encode(pack_sequenced("a", "b", [Sequenced(0, Log("x", 0))])))
    long = decode(encode(pack_sequenced("a", "b", [Sequenced(0, Log("x" * 100_000, 0))])))
    assert size_of(long) - size_of(short) >= 99_999


async def test_what_waits_for_a_slow_listener_is_bounded_in_bytes() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    subscription = live.subscribe()
    for seq in range(100):
        log = decode(encode(pack_sequenced("a", "b", [Sequenced(seq, Log("x" * 1_000_000, 0))])))
        live.add(AcceptedManifest(BatchIdentity("a", "b", seq, seq), "0" * 64, 1, "k", watch.wall_ns(), "c", 1, 1), log)
    came = []
    while (found := await subscription.next(0))[0] is not None:
        came.append(found)
    waited = sum(kept.size for kept, _ in came if kept is not None)
    assert 0 < waited <= subscription.most_bytes
    assert sum(missed for _, missed in came) == 100 - len(came) > 0


def test_the_window_is_whole_again_once_what_was_dropped_is_too_old() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=30_000, window_ns=WINDOW_NS)
    for seq in range(50):
        add(live, watch.wall_ns(), seq)
    assert live.missing
    watch.advance(seconds=11)
    add(live, watch.wall_ns(), 99)
    assert (live.missing, values(live)) == (False, [99.0])


def test_a_batch_that_is_larger_than_all_memory_is_missing() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10, window_ns=WINDOW_NS)
    assert not add(live, watch.wall_ns(), 1)
    assert live.missing


def test_the_oldest_go_first_in_whatever_order_they_came() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=30_000, window_ns=WINDOW_NS)
    for seq in reversed(range(10)):
        add(live, watch.wall_ns() + seq * 10**6, seq)
    assert values(live) == [7.0, 8.0, 9.0]
    watch.advance(seconds=20)
    add(live, watch.wall_ns() + 10**18, 50)  # from a collector whose clock is years ahead
    add(live, watch.wall_ns(), 51)
    watch.advance(seconds=20)
    assert (values(live), len(live)) == ([50.0], 1)


def test_many_overlapping_batches_take_no_square_of_their_number() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    for seq in range(200):
        add(live, watch.wall_ns(), seq, seq + 1, 10**9 - seq)
    looked = [0]
    whole = [_counting(kept, looked) for kept in live.kept()]
    fresh = sum(len(kept.seqs()) - (0 if taken is None else len(taken)) for kept, taken in counted_once(whole))
    assert fresh == 200 + 1 + 200
    assert looked[0] <= 3 * len(whole)


def _counting(kept: Kept, looked: list[int]) -> Kept:
    class Counting(Kept):
        def seqs(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
            looked[0] += 1
            return Kept.seqs(self)

    return Counting(kept.identity, kept.accepted_at_ns, kept.collector_id, kept.batch, kept.size)


def test_of_many_logs_the_latest_are_answered() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    logs = [Sequenced(seq, Log(str(seq), 10_000 - seq)) for seq in range(500)]
    batch = decode(encode(pack_sequenced("a", "b", logs)))
    live.add(AcceptedManifest(BatchIdentity("a", "b", 0, 499), "0" * 64, 1, "k", watch.wall_ns(), "c", 1, 1), batch)
    found = select(live.kept(), Wanted(series=3))
    assert ([log["message"] for log in found["logs"]], found["truncated"]) == (["2", "1", "0"], True)


def test_a_batch_of_a_clock_that_is_ahead_stays_no_longer_than_others_and_crowds_out_none() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=30_000, window_ns=WINDOW_NS)
    assert add(live, watch.wall_ns() + 10**18, 1)
    watch.advance(seconds=61)
    for seq in range(2, 50):
        add(live, watch.wall_ns(), seq)
    assert 1.0 not in values(live)
    assert values(live)[-1] == 49.0
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    assert add(live, watch.wall_ns() + 10**18, 1)
    watch.advance(seconds=71)
    assert values(live) == []
    assert (len(live), live.missing) == (0, False)


def test_what_was_lost_under_a_clock_that_is_ahead_is_not_missed_for_ever() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=100, window_ns=WINDOW_NS)
    assert not add(live, watch.wall_ns() + 10**18, 1)
    assert live.missing
    watch.advance(seconds=71)
    assert not live.missing


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
    assert values(live) == []
    assert len(live) == 0


def test_logs_of_a_clock_that_is_ahead_crowd_out_no_others() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    for number, ahead_ns in enumerate((10**18, 0, 0)):
        watch.advance(seconds=1)
        records = [Sequenced(seq, Log(f"{number}-{seq}", watch.wall_ns() + ahead_ns)) for seq in range(2)]
        batch = decode(encode(pack_sequenced(f"web-{number}", "boot", records)))
        identity = BatchIdentity(f"web-{number}", "boot", 0, 1)
        live.add(AcceptedManifest(identity, "0" * 64, 1, "k", watch.wall_ns(), "c", 1, 1), batch)
    found = select(live.kept(), Wanted(series=4))["logs"]
    assert [one["message"] for one in found] == ["1-0", "1-1", "2-0", "2-1"]


@pytest.mark.parametrize(("series", "scrapes", "most"), [(1, 1, 1.0), (91, 1, 1.0), (91, 110, 1.05)])
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
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
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
