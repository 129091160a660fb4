"""Records cut into frames: all of them, in order, and none too large for a collector."""

import random
from collections.abc import Sequence

import pytest

from holdfast.base.errors import Invalid
from holdfast.telemetry import Gauge, Histogram, Log
from holdfast.telemetry.agent.client import cut
from holdfast.telemetry.frame import Limits, decode
from holdfast.telemetry.records import Record


def frames(records: Sequence[Record], limits: Limits, most_records: int = 50_000) -> list[bytes]:
    """Each is taken by a reader with these limits, and all have all records, numbered without gaps."""
    made = cut("web-1", "boot", records, 10, most_records=most_records, limits=limits)
    batches = [decode(frame, limits) for _, frame in made]
    assert [batch.identity for batch in batches] == [identity for identity, _ in made]
    found = [(each.seq, each.record) for batch in batches for each in batch.records()]
    assert found == list(enumerate(records, 10))
    return [frame for _, frame in made]


def noise(letters: int, seed: int) -> str:
    """Text that does not compress well, and has three bytes a letter."""
    rng = random.Random(seed)
    return "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(letters))


def test_by_count() -> None:
    assert frames([], Limits()) == []
    assert len(frames([Gauge("load", float(number), number) for number in range(1_000)], Limits())) == 1
    assert len(frames([Gauge("load", 1.0, number) for number in range(10)], Limits(), most_records=4)) == 3


def test_by_bytes_however_long_letters_are() -> None:
    logs = [Log(noise(800, number), number) for number in range(200)]
    made = frames(logs, Limits(frame_bytes=100_000))
    assert 3 < len(made) < 12
    assert all(len(frame) <= 100_000 for frame in made)
    assert len(frames([Log("a" * 1_000_000, 1), Log("b", 2)], Limits(frame_bytes=100_000))) == 1  # it compresses


def test_by_labels_buckets_and_layouts() -> None:
    few = Limits(elements=100)
    assert len(frames([Gauge("load", 1.0, 1, {"a": str(n), "b": str(n)}) for n in range(100)], few)) > 1
    assert len(frames([Histogram("h", (1.0, 2.0), (1, 2, 3), 1.0, n) for n in range(100)], few)) > 1
    assert len(frames([Histogram("h", (float(n),), (1, 2), 1.0, n) for n in range(1_500)], Limits())) > 1


def test_a_record_that_is_too_large_by_itself_is_named() -> None:
    records = [Log(f"line {number}", number) for number in range(100)]
    records[70] = Log("the long one " + noise(50_000, 1), 70)
    named = r"record 70, the log 'the long one .*', is too large to be sent: frame: \d+ bytes are more than the limit"
    with pytest.raises(Invalid, match=named):
        cut("web-1", "boot", records, 0, most_records=1_000, limits=Limits(frame_bytes=50_000))
    many = Gauge("load", 1.0, 1, {f"l{number}": "v" for number in range(11)})
    with pytest.raises(Invalid, match="record 0, the gauge 'load', is too large to be sent: 11 labels"):
        cut("web-1", "boot", [many], 0, most_records=1_000, limits=Limits(elements=10))
