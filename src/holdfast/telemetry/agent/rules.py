"""Local alert rules: an alert fires when a metric is above or below a bound for some time. No I/O.

For each rule and set of labels an alert changes from nothing to *pending* to *firing* to *resolved*; every change is a
record. A rule with ``rate`` compares the growth of a counter per second. Durations are measured on the monotonic clock
(``steady_ns``); the wall clock is only for the records. Firing alerts are part of the agent's state: a restart does not
fire them again, and resolves them if the condition has ended. An alert whose series is no longer measured, such as that
of a process that has ended, is resolved without a value after ``ABSENT_ROUNDS``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.base.codec import Document
from holdfast.base.config import AlertRule
from holdfast.telemetry.records import Alert, Counter, Gauge, Labels, Record, State

ABSENT_ROUNDS = 3
Key = tuple[str, str]
"""The name of a rule, and the labels as JSON with sorted keys."""


@dataclass(slots=True)
class _Active:
    """A pending or firing alert."""

    since_ns: int
    """On the monotonic clock of this process."""
    firing: bool
    absent: int = 0
    """Rounds in a row without a measurement."""


class Rules:
    def __init__(self, rules: Sequence[AlertRule], firing: Mapping[str, object] | None = None) -> None:
        """``firing`` is what ``state`` returned in an earlier process."""
        self._rules = tuple(rules)
        self._active: dict[Key, _Active] = {}
        self._counts: dict[Key, tuple[int, float]] = {}
        names = {rule.name for rule in self._rules}
        for name, labels in (firing or {}).items():
            for each in labels if isinstance(labels, list) and name in names else []:
                self._active[name, str(each)] = _Active(0, firing=True)

    def state(self) -> Document:
        firing: dict[str, list[str]] = {}
        for (name, labels), active in sorted(self._active.items()):
            if active.firing:
                firing.setdefault(name, []).append(labels)
        return firing

    def judge(self, records: Iterable[Record], now_ns: int, steady_ns: int) -> list[Alert]:
        """The changes of alerts after one round of measurements."""
        alerts: list[Alert] = []
        samples = [record for record in records if isinstance(record, Gauge | Counter)]
        seen: set[Key] = set()
        for rule in self._rules:
            for sample in samples:
                if sample.name == rule.metric and rule.labels.items() <= dict(sample.labels).items():
                    seen.add((rule.name, _text(sample.labels)))
                    value = self._value(rule, sample, steady_ns)
                    if value is not None:
                        alerts += self._judge(rule, sample.labels, value, now_ns, steady_ns)
        self._counts = {key: each for key, each in self._counts.items() if key in seen}
        return alerts + self._ended(seen, now_ns)

    def _ended(self, seen: set[Key], now_ns: int) -> list[Alert]:
        rules = {rule.name: rule for rule in self._rules}
        ended: list[Alert] = []
        for key, active in list(self._active.items()):
            active.absent = 0 if key in seen else active.absent + 1
            if active.absent >= ABSENT_ROUNDS:
                del self._active[key]
                ended.append(_alert(rules[key[0]], State.RESOLVED, _labels(key[1]), None, now_ns))
        return ended

    def _judge(self, rule: AlertRule, labels: Labels, value: float, now_ns: int, steady_ns: int) -> list[Alert]:
        key = rule.name, _text(labels)
        active = self._active.get(key)
        holds = value > rule.above if rule.above is not None else rule.below is not None and value < rule.below
        if not holds:
            if active is None:
                return []
            del self._active[key]
            return [_alert(rule, State.RESOLVED, labels, value, now_ns)]
        changes: list[Alert] = []
        if active is None:
            active = self._active[key] = _Active(steady_ns, firing=False)
            if rule.for_ms:
                changes.append(_alert(rule, State.PENDING, labels, value, now_ns))
        if not active.firing and steady_ns - active.since_ns >= rule.for_ms * 1_000_000:
            active.firing = True
            changes.append(_alert(rule, State.FIRING, labels, value, now_ns))
        return changes

    def _value(self, rule: AlertRule, sample: Gauge | Counter, steady_ns: int) -> float | None:
        if not rule.rate:
            return float(sample.value)
        key = rule.name, _text(sample.labels)
        before = self._counts.get(key)
        self._counts[key] = steady_ns, float(sample.value)
        if before is None or steady_ns <= before[0] or sample.value < before[1]:
            return None  # the first round, or a counter that was reset
        return (float(sample.value) - before[1]) / ((steady_ns - before[0]) / 1_000_000_000)


def _alert(rule: AlertRule, state: State, labels: Labels, value: float | None, now_ns: int) -> Alert:
    return Alert(rule.name, state, now_ns, labels, value, rule.message)


def _text(labels: Labels) -> str:
    return json.dumps(dict(labels), sort_keys=True)


def _labels(text: str) -> Labels:
    """The labels in the JSON of ``_text``; empty for other text."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
