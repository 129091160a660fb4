"""Values that are not read are right all the same: what is seen of their bytes is enough to say so."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from holdfast.ingest.frame import Repeated, decode, encode, inspect, pack
from holdfast.ingest.frame.batch import Unread
from holdfast.ingest.frame.columns import Groups, Reader, Writer
from holdfast.ingest.frame.errors import FrameInvalid
from holdfast.ingest.frame.scales import LONGEST, SCALES, WHOLE, Scaling
from holdfast.ingest.records import Gauge
from tests.unit.ingest.frame_kit import shown

BOUNDS = (0, 7, 8, 39, 40, 46, 47, 48, 52, 53, 54, 62, 63)
numbers = st.builds(
    lambda power, less, sign: max(-(2**63), min(2**63 - 1, sign * (2**power - less))),
    st.sampled_from(BOUNDS),
    st.sampled_from((0, 1, 2)),
    st.sampled_from((1, -1)),
)


@st.composite
def columns(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Scales and lengths of some series, their first values, and the steps between the others."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=5))
    count = len(lengths)
    scales = draw(st.lists(st.integers(0, SCALES - 1), min_size=count, max_size=count))
    small = draw(st.booleans())
    values = st.integers(-1000, 1000) if small else st.one_of(numbers, st.integers(-1000, 1000))
    firsts = draw(st.lists(values, min_size=count, max_size=count))
    rest = sum(lengths) - count
    return scales, lengths, firsts, draw(st.lists(values, min_size=rest, max_size=rest))


@given(columns())
def test_what_seems_right_is_right(given: tuple[list[int], list[int], list[int], list[int]]) -> None:
    scales, lengths, firsts, steps = (np.array(each, np.int64) for each in given)
    writer = Writer()
    writer.raw(b"before")
    writer.ints(firsts)
    writer.ints(steps)
    reader = Reader(memoryview(writer.payload()))
    total = int(lengths.sum())
    scaling = Scaling(scales, lengths, total)
    seems = scaling.within(reader, at=6)
    try:
        scaling.values(reader.again(6).grouped(Groups(lengths, total), related=False))
        right = True
    except FrameInvalid:
        right = False
    event(f"seems {seems}, is {right}")
    assert right or not seems
    ordinary = max(map(abs, given[2]), default=0) < 2**47 and max(map(abs, given[3]), default=0) < 2**39
    assert seems or not ordinary


def test_a_series_that_is_too_long_is_read() -> None:
    for length, seems in ((LONGEST, True), (LONGEST + 1, False)):
        lengths = np.array([length])
        writer = Writer()
        writer.ints(np.zeros(1, np.int64))
        writer.ints(np.full(length - 1, 2**39 - 1))
        scaling = Scaling(np.array([WHOLE + 1]), lengths, length)
        assert scaling.within(Reader(memoryview(writer.payload())), at=0) is seems


@given(st.lists(st.lists(st.floats() | numbers, min_size=3, max_size=3), min_size=3, max_size=6))
def test_samples_are_read_when_somebody_looks(scrapes: list[list[float | int]]) -> None:
    repeated, unread = Repeated(), 0
    for number, values in enumerate(scrapes):
        records = [Gauge(f"m{at}", value, 10 * number, {}) for at, value in enumerate(values)]
        frame = encode(pack("agent", "boot", records, seq_start=3 * number))
        batch = decode(frame, repeated=repeated)
        unread += isinstance(batch.samples, Unread)
        assert len(batch.samples) == 3
        assert shown(batch) == shown(decode(frame))
        assert shown(batch) == shown(decode(frame))
    event(f"unread {unread}")


def test_after_two_like_it_a_scrape_is_not_read() -> None:
    repeated, batches = Repeated(), []
    for number in range(4):
        records = [Gauge("load", 1.5 + number, 10 * number, {}), Gauge("free", 2**40 + number, 10 * number, {})]
        batches.append(decode(encode(pack("agent", "boot", records, seq_start=2 * number)), repeated=repeated))
    assert [isinstance(batch.samples, Unread) for batch in batches] == [False, False, True, True]
    last = batches[-1].samples
    assert last.seq.tolist() == [6, 7]
    assert last.time_ns.tolist() == [30, 30]
    assert last.value.tolist() == [4.5, 2**40 + 3]


def test_what_is_not_read_needs_nobody_elses_memory() -> None:
    repeated, samples = Repeated(), []
    for number in range(4):
        records = [Gauge("load", 1.5 + number, 10 * number, {})]
        memory = bytearray(encode(pack("agent", "boot", records, seq_start=number)))
        samples.append(decode(memoryview(memory), repeated=repeated).samples)
        memory[:] = bytes(len(memory))
    assert isinstance(samples[-1], Unread)
    assert [each.value.tolist() for each in samples] == [[1.5], [2.5], [3.5], [4.5]]


def padded(frame: bytes, size: int) -> bytes:
    """The same frame with bytes in its payload that stand for nothing, as zstd allows."""
    head = inspect(frame)
    nothing = struct.pack("<II", 0x184D2A50, size) + bytes(size)
    made = bytearray(frame + nothing)
    struct.pack_into("<I", made, 16, head.stored_bytes + len(nothing))
    struct.pack_into("<I", made, 12, zlib.crc32(made[16:], zlib.crc32(made[:12])))
    return bytes(made)


@pytest.mark.parametrize("size", [0, 10_000, 1_000_000])
def test_what_is_not_read_holds_no_more_than_what_is_in_it(size: int) -> None:
    repeated = Repeated()
    records = [[Gauge(f"load{at}", 1.5 + number, 10 * number, {}) for at in range(50)] for number in range(4)]
    frames = [
        padded(encode(pack("agent", "boot", each, seq_start=50 * number)), size) for number, each in enumerate(records)
    ]
    samples = [decode(frame, repeated=repeated).samples for frame in frames][-1]
    assert isinstance(samples, Unread)
    assert samples._read is not None
    held = samples._read.__self__.packed  # type: ignore[attr-defined]  # a method
    assert (held.data is frames[-1]) is (size == 0)
    assert len(held.data) <= held.header.payload_bytes + 4096
    assert samples.value.tolist() == [4.5] * 50
