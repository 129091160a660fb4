"""The reference for answers: what a question gives, in plain Python over records."""

import math
from typing import Any

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.records import Alert, Histogram, Log
from tests.unit.telemetry.rollup import plain
from tests.unit.telemetry.rollup.plain import Series

REACH = 300_000_000_000
Found = dict[tuple[tuple[tuple[str, str], ...], str, int], float]
"""By labels, kind and step."""


def answers(
    batches: list[Batch],
    metric: str,
    since: int,
    until: int,
    step: int,
    aggregate: str,
    by: list[str] | None = None,
    q: float = 0.5,
) -> Found:
    groups: dict[Any, list[tuple[Series, list[Any]]]] = {}
    for series, records in _by_series(batches, metric).items():
        if aggregate in ("rate", "increase"):
            grown = _grown(series, records, since, until, step)
            for start, value in grown.items():
                groups.setdefault((_labels(series, by), series[3], start), []).append((series, [value]))
            continue
        for record in records:
            if since <= record.time_ns < until:
                key = (_labels(series, by), series[3], record.time_ns // step * step)
                groups.setdefault(key, []).append((series, [record]))
    found = {}
    for key, members in groups.items():
        given = _value(key[1], members, aggregate, step, q)
        if given is not None:
            found[key] = given
    return found


def _by_series(batches: list[Batch], metric: str) -> dict[Series, list[Any]]:
    found: dict[Series, list[Any]] = {}
    for (agent, _, _), record in sorted(plain.counted(batches), key=lambda item: item[1].time_ns):
        if isinstance(record, Log | Alert) or record.name != metric:
            continue
        series = (record.name, agent, tuple(sorted(record.labels.items())), type(record).__name__.lower())
        found.setdefault(series, []).append(record)
    return found


def _labels(series: Series, by: list[str] | None) -> tuple[tuple[str, str], ...]:
    labels = {**dict(series[2]), "agent": series[1]}
    if by is None:
        return tuple(sorted(labels.items()))
    return tuple(sorted((name, labels.get(name, "")) for name in by))


def _grown(series: Series, records: list[Any], since: int, until: int, step: int) -> dict[int, float]:
    found: dict[int, float] = {}
    before = None
    for record in records:
        start = record.time_ns // step * step
        if series[3] == "histogram":
            value = float(record.count)
            if not value:
                continue
        elif series[3] != "counter" or math.isnan(record.value):
            continue
        else:
            value = 0.0
            if before is not None and record.time_ns - before.time_ns <= max(step, REACH):
                fell = record.value < before.value
                value = float(record.value) if fell else float(record.value - before.value)
            before = record
        if since <= start < until:
            found[start] = found.get(start, 0.0) + value
    return found


def _value(kind: str, members: list[tuple[Series, list[Any]]], aggregate: str, step: int, q: float) -> float | None:
    records = [record for _, own in members for record in own]
    if aggregate in ("rate", "increase"):
        total: float = sum(records)
        return total / (step / 1e9) if aggregate == "rate" else total
    if kind == "histogram":
        return _of_histograms(records, aggregate)
    numbers = [float(record.value) for record in records if not math.isnan(record.value)]
    if aggregate == "count":
        return float(len(numbers))
    if not numbers:
        return None
    if aggregate == "last":
        latest = max(record.time_ns for record in records if not math.isnan(record.value))
        first = min(series[1:3] for series, own in members for record in own if record.time_ns == latest)
        last = [
            record.value
            for series, own in members
            for record in own
            if record.time_ns == latest and series[1:3] == first and not math.isnan(record.value)
        ]
        return float(last[-1])
    table = {
        "avg": sum(numbers) / len(numbers),
        "sum": sum(numbers),
        "min": min(numbers),
        "max": max(numbers),
        "quantile": plain.quantile(numbers, q),
    }
    return table[aggregate]


def _of_histograms(records: list[Histogram], aggregate: str) -> float | None:
    count, total = sum(record.count for record in records), sum(record.sum for record in records)
    if aggregate == "count":
        return float(count)
    if not count or aggregate not in ("avg", "sum"):
        return None
    return total / count if aggregate == "avg" else total
