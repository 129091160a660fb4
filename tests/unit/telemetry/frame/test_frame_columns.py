"""Columns and scales: every int64 and every float64 comes back, and the numbers are as small as they should be."""

import random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.telemetry.frame import FrameInvalid, decode, encode, pack
from holdfast.telemetry.frame.columns import BITS, DIVISORS, WHOLE, Groups, Reader, Writer, from_whole, to_whole
from holdfast.telemetry.records import Counter, Gauge, Record
from tests.unit.telemetry.frame.frame_kit import FLOATS, INT64

NUMBERS = st.lists(st.integers(-3, 3) | st.integers(-70_000, 70_000) | INT64, max_size=40)
GROUPS = st.lists(st.lists(INT64 | st.integers(-3, 3), min_size=1, max_size=5), min_size=1, max_size=8)


def column(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, np.int64)


def reader_of(writer: Writer) -> Reader:
    return Reader(memoryview(writer.payload()))


@given(NUMBERS)
def test_columns_come_back(numbers: list[int]) -> None:
    writer = Writer()
    writer.ints(column(numbers))
    writer.steps(column(numbers))
    reader = reader_of(writer)
    assert reader.ints(len(numbers)).tolist() == numbers
    assert reader.steps(len(numbers)).tolist() == numbers
    reader.finish()


@given(GROUPS, st.booleans())
def test_groups_come_back(groups: list[list[int]], related: bool) -> None:
    numbers = [number for group in groups for number in group]
    stand = Groups(column([len(group) for group in groups]), len(numbers))
    writer = Writer()
    writer.grouped(column(numbers), stand, related=related)
    reader = reader_of(writer)
    assert reader.grouped(stand, related=related).tolist() == numbers
    reader.finish()


@example([(False, [0.0, -0.0])])
@given(st.lists(st.tuples(st.booleans(), st.lists(FLOATS, min_size=1, max_size=4)), min_size=1, max_size=6))
def test_values_come_back_to_the_last_bit(groups: list[tuple[bool, list[float]]]) -> None:
    values = np.array([value for _, group in groups for value in group])
    whole = np.array([flag for flag, _ in groups])
    lengths = column([len(group) for _, group in groups])
    exact = np.where(np.repeat(whole, lengths), np.arange(len(values)) * 2**55, 0)
    scales, numbers = to_whole(values, exact if whole.any() else None, whole, lengths)
    found, found_exact, found_whole = from_whole(numbers, scales, lengths)
    assert found_whole.tolist() == whole.tolist()
    floats = ~np.repeat(whole, lengths)
    assert found.view(np.int64)[floats].tolist() == values.view(np.int64)[floats].tolist()
    assert (found_exact is None) == (not whole.any())
    if found_exact is not None:
        assert found_exact.tolist() == exact.tolist()


@pytest.mark.parametrize(
    ("values", "divisor", "numbers"),
    [
        ([3.0, 4.0], 1, [3, 4]),
        ([99.9, 0.1], 10, [999, 1]),
        ([12345.67], 100, [1234567]),
        ([0.001, -7.5], 1000, [1, -7500]),
        ([4.47119140625], 2048, [9157]),
        ([0.000125], 1e6, [125]),
        ([1.000000001], 1e9, [1_000_000_001]),
    ],
)
def test_a_short_decimal_is_a_small_whole_number(values: list[float], divisor: float, numbers: list[int]) -> None:
    scales, found = to_whole(np.array(values), None, np.array([False]), column([len(values)]))
    assert DIVISORS[scales[0] - 2] == divisor
    assert found.tolist() == numbers


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0, 1 / 3, 2.0**53, 1e300, 5e-324])
def test_anything_else_is_its_bits(value: float) -> None:
    scales, found = to_whole(np.array([1.0, value]), None, np.array([False]), column([2]))
    assert scales.tolist() == [BITS]
    assert found.tolist() == np.array([1.0, value]).view(np.int64).tolist()


def test_a_scale_that_is_none_and_a_number_that_is_too_large_are_refused() -> None:
    for scale, number in ((9, 1), (-1, 1), (2, 2**53), (3, -(2**53))):
        with pytest.raises(FrameInvalid):
            from_whole(column([number]), column([scale]), column([1]))
        with pytest.raises(FrameInvalid):
            from_whole(column([2**60, number]), column([WHOLE, scale]), column([1, 1]))


def test_whole_numbers_and_floats_of_one_name_stay_what_they_were() -> None:
    given_records: list[Record] = [Gauge("x", 1, 0), Gauge("x", 1.0, 1), Counter("x", 2, 2), Gauge("x", 2**62 + 1, 3)]
    batch = decode(encode(pack("a", "b", given_records, seq_start=0)))
    values = [each.record.value for each in batch.records() if isinstance(each.record, Gauge | Counter)]
    assert values == [1, 1.0, 2, 2**62 + 1]
    assert [type(value) for value in values] == [int, float, int, int]
    assert len(batch.samples.series) == 3
    assert batch.samples.series_id.tolist() == [0, 0, 1, 2]


def test_times_that_samples_share_are_written_once() -> None:
    times = [random.Random(number).getrandbits(60) for number in range(1000)]
    apart = [Gauge("x", 1.0, times[number], {"n": str(number % 10)}) for number in range(1000)]
    shared = [Gauge("x", 1.0, times[number // 10], {"n": str(number % 10)}) for number in range(1000)]
    sizes = [len(encode(pack("a", "b", each, seq_start=0))) for each in (apart, shared)]
    assert sizes[1] < sizes[0] / 4
