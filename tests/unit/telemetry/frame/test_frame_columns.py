"""Columns and scales: the numbers of a frame are as small as they should be. That all of them come back to the last bit
is shown in ``tests/properties/test_frames.py``."""

import random

import numpy as np
import pytest

from holdfast.telemetry.frame import FrameInvalid, encode, pack
from holdfast.telemetry.frame.columns import BITS, DIVISORS, WHOLE, from_whole, to_whole
from holdfast.telemetry.records import Gauge


def column(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


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
        *([[1.0, each], None, []] for each in (float("nan"), float("inf"), -0.0, 1 / 3, 2.0**53, 1e300, 5e-324)),
    ],
)
def test_a_short_decimal_is_a_small_whole_number_and_anything_else_its_bits(
    values: list[float], divisor: float | None, numbers: list[int]
) -> None:
    [scale], found = to_whole(np.array(values), None, np.array([False]), column(len(values)))
    assert (scale == BITS) if divisor is None else (DIVISORS[scale - 2] == divisor)
    assert found.tolist() == (numbers or np.array(values).view(np.int64).tolist())


def test_a_scale_that_is_none_and_a_number_that_is_too_large_are_refused() -> None:
    for scale, number in ((9, 1), (-1, 1), (2, 2**53), (3, -(2**53))):
        with pytest.raises(FrameInvalid):
            from_whole(column(number), column(scale), column(1))
        with pytest.raises(FrameInvalid):
            from_whole(column(2**60, number), column(WHOLE, scale), column(1, 1))


def test_times_that_samples_share_are_written_once() -> None:
    times = [random.Random(number).getrandbits(60) for number in range(1000)]
    apart = [Gauge("x", 1.0, times[number], {"n": str(number % 10)}) for number in range(1000)]
    shared = [Gauge("x", 1.0, times[number // 10], {"n": str(number % 10)}) for number in range(1000)]
    sizes = [len(encode(pack("a", "b", each, seq_start=0))) for each in (apart, shared)]
    assert sizes[1] < sizes[0] / 4
