"""Live state by itself: bounds, and each sequence number once, in whatever order batches come."""

from itertools import permutations

from holdfast.ingest.frame import Sequenced, decode, encode, pack_sequenced
from holdfast.ingest.identity import BatchIdentity
from holdfast.ingest.live import Live, size_of
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.ingest.records import Gauge, Log
from holdfast.ingest.select import Wanted, select
from tests.unit.runs.desk import Watch

WINDOW_NS = 10 * 10**9


def add(live: Live, at_ns: int, *seqs: int, value: float = 0.0, agent: str = "web-1") -> bool:
    records = [Sequenced(seq, Gauge("load", value + seq, seq)) for seq in seqs]
    batch = decode(encode(pack_sequenced(agent, "boot", records)))
    identity = BatchIdentity(agent, "boot", seqs[0], seqs[-1])
    return live.add(AcceptedManifest(identity, "0" * 64, 1, "k", at_ns, "c", 1, 1), batch)


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


async def test_who_is_too_slow_is_told_how_much_was_missed() -> None:
    watch = Watch()
    live = Live(watch, max_bytes=10**9, window_ns=WINDOW_NS)
    subscription = live.subscribe(most=2)
    for seq in range(5):
        add(live, watch.wall_ns(), seq)
    came, missed = await subscription.next(0)
    assert ([kept.identity.seq_start for kept in came], missed) == ([3, 4], 3)
    assert await subscription.next(0) == ([], 0)
    live.unsubscribe(subscription)
    add(live, watch.wall_ns(), 9)
    assert await subscription.next(0) == ([], 0)


def test_the_estimate_of_memory_covers_texts() -> None:
    short = decode(encode(pack_sequenced("a", "b", [Sequenced(0, Log("x", 0))])))
    long = decode(encode(pack_sequenced("a", "b", [Sequenced(0, Log("x" * 100_000, 0))])))
    assert size_of(long) - size_of(short) >= 99_999
