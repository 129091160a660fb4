"""Local alert rules: a metric is above or below a bound for a while. Pure but for what it remembers between rounds.

An alert changes from nothing to *pending* to *firing* to *resolved*, per rule and labels; every change is a record. A
rule with ``rate`` looks at the growth of a counter per second. Durations are taken from a clock that nobody sets
(``steady_ns``); the time of day is only for the records. What fires is part of the agent's state, so a restart
does not raise it again, and resolves it if it has passed. A series that is not measured any more, such as that of a
process that has ended, is resolved without a value after ``ABSENT_ROUNDS``.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.base.codec import Document
from holdfast.base.config import AlertRule
from holdfast.ingest.records import Alert, Counter, Gauge, Labels, Record, State

ABSENT_ROUNDS = 3
Key = tuple[str, str]
"""A rule's name, and labels in their one JSON form."""


@dataclass(slots=True)
class _Standing:
    since_ns: int
    """On the steady clock of this life."""
    firing: bool
    absent: int = 0
    """Rounds in a row in which it was not measured."""


class Rules:
    def __init__(self, rules: Sequence[AlertRule], firing: Mapping[str, object] | None = None) -> None:
        """``firing`` is what ``state`` gave in an earlier life."""
        self._rules = tuple(rules)
        self._standing: dict[Key, _Standing] = {}
        self._counts: dict[Key, tuple[int, float]] = {}
        names = {rule.name for rule in self._rules}
        for name, labels in (firing or {}).items():
            for each in labels if isinstance(labels, list) and name in names else []:
                self._standing[name, str(each)] = _Standing(0, firing=True)

    def state(self) -> Document:
        firing: dict[str, list[str]] = {}
        for (name, labels), standing in sorted(self._standing.items()):
            if standing.firing:
                firing.setdefault(name, []).append(labels)
        return firing

    def judge(self, records: Iterable[Record], now_ns: int, steady_ns: int) -> list[Alert]:
        """The changes that one round of measuring brings."""
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
        for key, standing in list(self._standing.items()):
            standing.absent = 0 if key in seen else standing.absent + 1
            if standing.absent >= ABSENT_ROUNDS:
                del self._standing[key]
                ended.append(_alert(rules[key[0]], State.RESOLVED, _labels(key[1]), None, now_ns))
        return ended

    def _judge(self, rule: AlertRule, labels: Labels, value: float, now_ns: int, steady_ns: int) -> list[Alert]:
        key = rule.name, _text(labels)
        standing = self._standing.get(key)
        holds = value > rule.above if rule.above is not None else rule.below is not None and value < rule.below
        if not holds:
            if standing is None:
                return []
            del self._standing[key]
            return [_alert(rule, State.RESOLVED, labels, value, now_ns)]
        changes: list[Alert] = []
        if standing is None:
            standing = self._standing[key] = _Standing(steady_ns, firing=False)
            if rule.for_ms:
                changes.append(_alert(rule, State.PENDING, labels, value, now_ns))
        if not standing.firing and steady_ns - standing.since_ns >= rule.for_ms * 1_000_000:
            standing.firing = True
            changes.append(_alert(rule, State.FIRING, labels, value, now_ns))
        return changes

    def _value(self, rule: AlertRule, sample: Gauge | Counter, steady_ns: int) -> float | None:
        if not rule.rate:
            return float(sample.value)
        key = rule.name, _text(sample.labels)
        before = self._counts.get(key)
        self._counts[key] = steady_ns, float(sample.value)
        if before is None or steady_ns <= before[0] or sample.value < before[1]:
            return None  # the first round, or a counter that began anew
        return (float(sample.value) - before[1]) / ((steady_ns - before[0]) / 1_000_000_000)


def _alert(rule: AlertRule, state: State, labels: Labels, value: float | None, now_ns: int) -> Alert:
    return Alert(rule.name, state, now_ns, labels, value, rule.message)


def _text(labels: Labels) -> str:
    return json.dumps(dict(labels), sort_keys=True)


def _labels(text: str) -> Labels:
    """The labels of ``_text``; none for what an earlier life wrote otherwise."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
