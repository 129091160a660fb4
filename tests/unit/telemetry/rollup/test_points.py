"""Batches to points: what differs is counted. Which record of a number counts is shown in ``tests/properties``."""

from holdfast.telemetry.records import Alert, Gauge, Log, State
from holdfast.telemetry.rollup.points import telemetry_of
from tests.unit.telemetry.rollup.rolled import SECOND, batch


def test_a_number_counts_once_and_the_lower_identity_has_it() -> None:
    low = batch("a", "0", {seq: Gauge("g", seq, seq * SECOND) for seq in range(10, 21)})
    high = batch("a", "0", {seq: Gauge("g", seq if seq < 18 else -seq, seq * SECOND) for seq in range(15, 26)})
    found = telemetry_of([high, low, high])
    assert found.samples.value.tolist() == [*range(10, 21), *range(-21, -26, -1)]
    assert (found.repeated, found.doubtful, found.records) == (6, 3, 16)


def test_logs_keep_where_they_came_from_and_alerts_count() -> None:
    one = batch("a", "0", {0: Log("hello", 1, 9, {"x": "1"}), 1: Alert("full", State.FIRING, 2, {"d": "sda"}, 0.9)})
    two = batch("b", "1", {0: Log("world", 3, 17), 1: Alert("full", State.RESOLVED, 4)})
    found = telemetry_of([two, one])
    logs = found.logs
    assert logs.message.to_pylist() == ["hello", "world"]
    assert [logs.sources[number].agent for number in logs.source] == ["a", "b"]
    assert [logs.label_sets[number] for number in logs.labels] == [(("x", "1"),), ()]
    assert (found.alerts, found.records) == (2, 4)
