"""Local alert rules: pending, firing, resolved."""

import pytest
from pydantic import ValidationError

from holdfast.base.config import AlertRule
from holdfast.ingest.agent.rules import Rules
from holdfast.ingest.records import Alert, Counter, Gauge, State

SECOND = 1_000_000_000


def load(value: float, **labels: str) -> list[Gauge | Counter]:
    return [Gauge("node_load1", value, 0, labels)]


def states(alerts: list[Alert]) -> list[State]:
    return [alert.state for alert in alerts]


def test_a_rule_fires_at_once_and_resolves() -> None:
    rules = Rules([AlertRule(name="busy", metric="node_load1", above=4, message="too much to do")])
    assert rules.judge(load(4), 0) == []
    assert rules.judge(load(5), 1) == [Alert("busy", State.FIRING, 1, {}, 5.0, "too much to do")]
    assert rules.judge(load(6), 2) == []
    assert states(rules.judge(load(1), 3)) == [State.RESOLVED]


def test_a_rule_with_a_time_is_pending_first() -> None:
    rules = Rules([AlertRule(name="low", metric="node_load1", below=1, for_ms=2_000)])
    assert states(rules.judge(load(0), 0)) == [State.PENDING]
    assert rules.judge(load(0), SECOND) == []
    assert states(rules.judge(load(0), 2 * SECOND)) == [State.FIRING]
    assert states(rules.judge(load(2), 3 * SECOND)) == [State.RESOLVED]


def test_labels_choose_series_and_each_has_its_own_state() -> None:
    rules = Rules([AlertRule(name="busy", metric="node_load1", labels={"zone": "a"}, above=1)])
    assert rules.judge(load(9, zone="b"), 0) == []
    (first,) = rules.judge(load(9, zone="a", host="1"), 0)
    (second,) = rules.judge(load(9, zone="a", host="2"), 0)
    assert (first.labels["host"], second.labels["host"]) == ("1", "2")


def test_a_rate_is_growth_per_second() -> None:
    rules = Rules([AlertRule(name="net", metric="bytes", above=100, rate=True)])
    assert rules.judge([Counter("bytes", 10**12, 0)], 0) == []
    assert rules.judge([Counter("bytes", 10**12 + 90, SECOND)], 1) == []
    (alert,) = rules.judge([Counter("bytes", 10**12 + 490, 3 * SECOND)], 2)
    assert alert.value == 200.0
    assert rules.judge([Counter("bytes", 5, 4 * SECOND)], 3) == []


def test_what_fires_is_remembered_over_a_restart() -> None:
    rule = AlertRule(name="busy", metric="node_load1", above=4)
    rules = Rules([rule])
    rules.judge(load(5), 1)
    again = Rules([rule], rules.state())
    assert again.judge(load(5), 2) == []
    assert states(again.judge(load(1), 3)) == [State.RESOLVED]
    assert again.state() == {}


def test_a_rule_needs_one_bound() -> None:
    with pytest.raises(ValidationError, match="either above or below"):
        AlertRule(name="a", metric="m")
    with pytest.raises(ValidationError, match="either above or below"):
        AlertRule(name="a", metric="m", above=1, below=0)
