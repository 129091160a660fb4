"""Batches to points: what differs is counted. Which record of a number counts is shown in ``tests/properties``."""

from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup.points import telemetry_of
from tests.unit.telemetry.rollup.rolled import SECOND, batch


def test_a_number_counts_once_and_the_lower_identity_has_it() -> None:
    low = batch("a", "0", {seq: Gauge("g", seq, seq * SECOND) for seq in range(10, 21)})
    high = batch("a", "0", {seq: Gauge("g", seq if seq < 18 else -seq, seq * SECOND) for seq in range(15, 26)})
    found = telemetry_of([high, low, high])
    assert found.samples.value.tolist() == [*range(10, 21), *range(-21, -26, -1)]
    assert (found.repeated, found.doubtful, found.records) == (6, 3, 16)
