"""Tables that frames have in common are decoded once; how many are kept is bounded, and nothing wrong is."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.ingest.frame import FrameInvalid, Repeated, decode, encode, pack
from holdfast.ingest.frame.envelope import wrap
from holdfast.ingest.frame.write import payload_of
from holdfast.ingest.records import Counter, Gauge, Log, Record
from tests.unit.ingest.frame_kit import shown


def scrape(time_ns: int, *, load: float = 1.5, host: str = "a") -> list[Record]:
    return [
        Gauge("load", load, time_ns, {"host": host}),
        Counter("requests_total", time_ns, time_ns, {"host": host, "code": "200"}),
    ]


def frame(records: list[Record], *, seq_start: int = 0) -> bytes:
    return encode(pack("agent", "boot", records, seq_start=seq_start))


def test_the_next_scrape_shares_the_tables_and_has_values_of_its_own() -> None:
    repeated = Repeated()
    first = decode(frame(scrape(10)), repeated=repeated)
    second = decode(frame(scrape(20, load=2.25), seq_start=2), repeated=repeated)
    assert len(repeated.tables) == 1
    assert second.texts is first.texts
    assert second.label_sets is first.label_sets
    assert shown(second) == shown(decode(frame(scrape(20, load=2.25), seq_start=2)))
    assert shown(first) != shown(second)


def test_what_is_shared_cannot_be_changed() -> None:
    batch = decode(frame(scrape(10)), repeated=Repeated())
    with pytest.raises(ValueError, match="read-only"):
        batch.samples.series.labels[0] = 1


def test_a_frame_with_other_sections_is_read_as_ever() -> None:
    repeated = Repeated()
    records = [*scrape(10), Log("started", 10, 9, {"host": "a"})]
    assert shown(decode(frame(records), repeated=repeated)) == shown(decode(frame(records)))
    assert len(repeated.tables) == 0


def test_the_numbers_of_a_frame_with_known_tables_are_checked() -> None:
    repeated = Repeated()
    batch = decode(frame([*scrape(10), *scrape(20)]), repeated=repeated)
    wrong = batch.samples.seq.copy()
    wrong[1] = wrong[0]
    object.__setattr__(batch.samples, "seq", wrong)
    forged = wrap(batch.identity, len(batch), payload_of(batch), level=None)
    with pytest.raises(FrameInvalid, match="do not grow within a series"):
        decode(forged, repeated=repeated)


def forged_of(records: list[Record], **changed: object) -> bytes:
    """A frame whose identity is not that of its records."""
    batch = decode(frame(records))
    return wrap(replace(batch.identity, **changed), len(batch), payload_of(batch), level=None)  # type: ignore[arg-type]


def test_a_later_frame_of_the_same_pattern_has_numbers_and_times_of_its_own() -> None:
    repeated = Repeated()
    for seq_start, time_ns in ((0, 10), (4, 30), (9_000_000_000, 50), (2**62, 2**60)):
        records = [*scrape(time_ns), *scrape(time_ns + 7)]
        again = decode(frame(records, seq_start=seq_start), repeated=repeated)
        assert shown(again) == shown(decode(frame(records, seq_start=seq_start)))
    assert (len(repeated.tables), len(repeated.patterns)) == (1, 1)


def test_a_known_pattern_must_begin_and_end_where_the_identity_says() -> None:
    repeated = Repeated()
    records = [*scrape(10), *scrape(20)]
    for seq_start in (0, 4):
        decode(frame(records, seq_start=seq_start), repeated=repeated)
    assert len(repeated.patterns) == 1
    for changed in ({"seq_end": 4}, {"seq_start": 1, "seq_end": 4}, {"seq_start": 2, "seq_end": 5}):
        with pytest.raises(FrameInvalid, match="not numbered"):
            decode(forged_of(records, **changed), repeated=repeated)


def test_patterns_are_told_apart_by_the_order_of_times_and_the_lengths_of_series() -> None:
    repeated = Repeated()
    one, two = scrape(10), scrape(20)
    for records in ([*one, *two], [*two, *one], [one[0], two[0], one[1], two[1]], [*one, two[0]], [*one, two[1]]):
        for seq_start in (0, 8, 16):
            found = decode(frame(records, seq_start=seq_start), repeated=repeated)
            assert shown(found) == shown(decode(frame(records, seq_start=seq_start)))
    assert len(repeated.patterns) > 2


def test_tables_that_break_a_rule_are_not_kept() -> None:
    repeated = Repeated()
    batch = decode(frame(scrape(10)))
    object.__setattr__(batch.samples.series, "kind", np.array([1, 77]))
    forged = wrap(batch.identity, len(batch), payload_of(batch), level=None)
    for _ in range(2):
        with pytest.raises(FrameInvalid, match="kind of a series"):
            decode(forged, repeated=repeated)
    assert len(repeated.tables) == 0


def test_it_keeps_so_many_bytes_and_lets_the_least_wanted_go() -> None:
    sizer = Repeated()
    frames = [frame(scrape(10, host=f"host-{number}")) for number in range(4)]
    decode(frames[0], repeated=sizer)
    repeated = Repeated(most_bytes=sizer.tables.held_bytes * 2 + 1)
    one = decode(frames[0], repeated=repeated)
    decode(frames[1], repeated=repeated)
    assert decode(frames[0], repeated=repeated).texts is one.texts
    decode(frames[2], repeated=repeated)
    decode(frames[3], repeated=repeated)
    decode(frames[0], repeated=repeated)
    assert len(repeated.tables) == 2
    assert repeated.tables.held_bytes <= sizer.tables.held_bytes * 2 + 1
