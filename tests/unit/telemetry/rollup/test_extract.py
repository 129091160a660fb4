"""Batches to points: what differs is reported. Which record of a number counts is shown in ``tests/properties``."""

import numpy as np

from holdfast.telemetry.records import Alert, Gauge, Log, State
from holdfast.telemetry.rollup.extract import telemetry_of
from tests.unit.telemetry.rollup.rolled import MINUTE, SECOND, batch


def test_a_number_counts_once_and_the_lower_identity_has_it() -> None:
    low = batch("a", "0", {seq: Gauge("g", seq, seq * SECOND) for seq in range(10, 21)})
    high = batch("a", "0", {seq: Gauge("g", seq if seq < 18 else -seq, seq * SECOND) for seq in range(15, 26)})
    found = telemetry_of([high, low, high])
    assert found.points.value.tolist() == [*range(10, 21), *range(-21, -26, -1)]
    assert (found.repeated, found.doubtful, found.records) == (6, 3, 16)
    kept, dropped = low.identity.manifest_id, high.identity.manifest_id
    assert [(doubt.seq, doubt.kept, doubt.dropped) for doubt in found.doubts] == [
        (seq, kept, dropped) for seq in (18, 19, 20)
    ]


def test_times_decide_after_numbers_do() -> None:
    """A number that another batch has taken is gone, even if the record that has it is of another hour."""
    low = batch("a", "0", {1: Gauge("g", 1.0, 5 * SECOND), 9: Gauge("g", 1.0, 6 * SECOND)})
    high = batch("a", "0", {5: Gauge("g", 2.0, 70 * SECOND), 9: Gauge("g", 2.0, 71 * SECOND)})
    found = telemetry_of([low, high], MINUTE, 2 * MINUTE)
    assert found.points.time_ns.tolist() == [70 * SECOND]


def test_logs_and_alerts_keep_where_they_came_from() -> None:
    one = batch(
        "a", "0", {0: Log("hello", 1, 9, {"x": "1"}), 1: Alert("full", State.FIRING, 2, {"d": "sda"}, 0.9, "!")}
    )
    two = batch("b", "1", {0: Log("world", 3, 17), 1: Alert("full", State.RESOLVED, 4)})
    found = telemetry_of([two, one])
    logs, alerts = found.logs, found.alerts
    assert logs.message.to_pylist() == ["hello", "world"]
    assert [logs.sources[number].agent for number in logs.source] == ["a", "b"]
    assert [logs.label_sets[number] for number in logs.labels] == [(("x", "1"),), ()]
    assert alerts.name.to_pylist() == ["full", "full"]
    assert alerts.value[0] == 0.9
    assert np.isnan(alerts.value[1])
    assert found.records == 4
