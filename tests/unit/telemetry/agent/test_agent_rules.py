"""Local alert rules: pending, firing, resolved."""

import pytest
from pydantic import ValidationError

from holdfast.base.config import AlertRule
from holdfast.telemetry.agent.rules import Rules
from holdfast.telemetry.records import Alert, Counter, Gauge, State

SECOND = 1_000_000_000


def load(value: float, **labels: str) -> list[Gauge | Counter]:
    return [Gauge("node_load1", value, 0, labels)]


def judge(rules: Rules, records: list[Gauge | Counter], steady_ns: int) -> list[Alert]:
    return rules.judge(records, steady_ns, steady_ns)


def states(alerts: list[Alert]) -> list[State]:
    return [alert.state for alert in alerts]


def test_a_rule_fires_at_once_and_resolves() -> None:
    rules = Rules([AlertRule(name="busy", metric="node_load1", above=4, message="too much to do")])
    assert judge(rules, load(4), 0) == []
    assert judge(rules, load(5), 1) == [Alert("busy", State.FIRING, 1, {}, 5.0, "too much to do")]
    assert judge(rules, load(6), 2) == []
    assert states(judge(rules, load(1), 3)) == [State.RESOLVED]


def test_labels_choose_series_and_each_has_its_own_state() -> None:
    rules = Rules([AlertRule(name="busy", metric="node_load1", labels={"zone": "a"}, above=1)])
    assert judge(rules, load(9, zone="b"), 0) == []
    (first,) = judge(rules, load(9, zone="a", host="1"), 0)
    (second,) = judge(rules, load(9, zone="a", host="2"), 0)
    assert (first.labels["host"], second.labels["host"]) == ("1", "2")


def test_firing_alerts_survive_a_restart() -> None:
    rule = AlertRule(name="busy", metric="node_load1", above=4)
    rules = Rules([rule])
    judge(rules, load(5), 1)
    again = Rules([rule], rules.state())
    assert judge(again, load(5), 2) == []
    assert states(judge(again, load(1), 3)) == [State.RESOLVED]
    assert again.state() == {}


def test_a_changed_clock_neither_fires_a_rule_nor_changes_a_rate() -> None:
    rules = Rules([AlertRule(name="low", metric="node_load1", below=1, for_ms=2_000)])
    assert states(rules.judge(load(0), 0, 0)) == [State.PENDING]
    assert rules.judge(load(0), 10**18, SECOND) == []
    assert states(rules.judge(load(0), -(10**18), 2 * SECOND)) == [State.FIRING]
    rates = Rules([AlertRule(name="net", metric="bytes", above=100, rate=True)])
    assert rates.judge([Counter("bytes", 0, 10**18)], 10**18, SECOND) == []
    (alert,) = rates.judge([Counter("bytes", 300, 0)], 0, 2 * SECOND)
    assert alert.value == 300.0
    assert rates.judge([Counter("bytes", 5, 0)], 0, 3 * SECOND) == []  # it was reset


def test_a_series_that_is_not_measured_any_more_is_resolved() -> None:
    rules = Rules([AlertRule(name="large", metric="node_load1", above=1)])
    assert states(judge(rules, load(9, pid="7"), 0)) == [State.FIRING]
    assert judge(rules, [], 1) == judge(rules, [], 2) == []
    (ended,) = judge(rules, [], 3)
    assert (ended.state, ended.value, ended.labels) == (State.RESOLVED, None, {"pid": "7"})
    assert rules.state() == {}


def test_a_rule_needs_one_bound() -> None:
    with pytest.raises(ValidationError, match="either above or below"):
        AlertRule(name="a", metric="m")
    with pytest.raises(ValidationError, match="either above or below"):
        AlertRule(name="a", metric="m", above=1, below=0)
