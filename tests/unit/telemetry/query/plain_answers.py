"""The reference for answers: what a question gives, in plain Python over records."""

import math
from typing import Any

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.query.answer import Answer
from holdfast.telemetry.records import Alert, Histogram, Log
from tests.unit.telemetry.rollup import plain
from tests.unit.telemetry.rollup.plain import Series

REACH = 3_600_000_000_000
Found = dict[tuple[tuple[tuple[str, str], ...], str, int], float]
"""By labels, kind and step."""
Boots = dict[str, list[Any]]
"""Records of a series by boot, each in order of time."""


def answers(
    batches: list[Batch],
    metric: str,
    since: int,
    until: int,
    step: int,
    aggregate: str,
    by: list[str] | None = None,
    q: float = 0.5,
    now: int | None = None,
) -> Found:
    groups: dict[Any, list[tuple[Series, list[Any]]]] = {}
    reach = -(-max(step, REACH) // step) * step
    newest: dict[Any, int] = {}
    for series, boots in _by_series(batches, metric).items():
        if aggregate in ("rate", "increase"):
            near = _within(boots, since - reach, until + reach)
            for start, value in _grown(series[3], near, since, until, step).items():
                key = (_labels(series, by), series[3], start)
                groups.setdefault(key, []).append((series, [value]))
                seen = [each.time_ns for own in near.values() for each in own if start <= each.time_ns < start + step]
                newest[key] = max(newest.get(key, start), *seen, start)
            continue
        for record in _latest(series[3], _within(boots, since, until), step):
            key = (_labels(series, by), series[3], record.time_ns // step * step)
            groups.setdefault(key, []).append((series, [record]))
    found = {}
    for key, members in groups.items():
        covered = step
        if now is not None and key[2] <= now < key[2] + step:
            covered = newest.get(key, 0) - key[2]
            if aggregate == "rate" and not covered:
                continue
        given = _value(key[1], members, aggregate, covered, q)
        if given is not None:
            found[key] = given
    return found


def agree(found: Answer, expected: Found, rel_tol: float = 1e-9) -> None:
    """The answer has these values, but for the order in which floats were added, and no others."""
    got = {
        (tuple(sorted(each.labels.items())), each.kind, at): value
        for each in found.series
        for at, value in zip(each.times_ns, each.values, strict=True)
    }
    assert got.keys() == expected.keys()
    pairs = {key: (got[key], wanted) for key, wanted in expected.items()}
    assert {key: pair for key, pair in pairs.items() if not math.isclose(*pair, rel_tol=rel_tol, abs_tol=1e-9)} == {}


def _by_series(batches: list[Batch], metric: str) -> dict[Series, Boots]:
    found: dict[Series, Boots] = {}
    for (agent, boot, _), record in sorted(plain.counted(batches), key=lambda item: item[1].time_ns):
        if isinstance(record, Log | Alert) or record.name != metric:
            continue
        series = (record.name, agent, tuple(sorted(record.labels.items())), type(record).__name__.lower(), "")
        found.setdefault(series, {}).setdefault(boot, []).append(record)
    return found


def _within(boots: Boots, since: int, until: int) -> Boots:
    """Records of this range that are no NaN."""
    inside = {
        boot: [each for each in own if since <= each.time_ns < until and not _is_nan(each)]
        for boot, own in boots.items()
    }
    return {boot: own for boot, own in inside.items() if own}


def _is_nan(record: Any) -> bool:
    return not isinstance(record, Histogram) and math.isnan(record.value)


def _labels(series: Series, by: list[str] | None) -> tuple[tuple[str, str], ...]:
    labels = {**dict(series[2]), "agent": series[1]}
    if by is None:
        return tuple(sorted(labels.items()))
    return tuple(sorted((name, labels.get(name, "")) for name in by))


def _latest(kind: str, boots: Boots, step: int) -> list[Any]:
    """All records; of a gauge without those of a boot in a step in which a later boot was seen before its end."""
    begun = {boot: (own[0].time_ns, boot) for boot, own in boots.items()}
    kept = []
    for boot, own in boots.items():
        for record in own:
            start = record.time_ns // step * step
            end = max(each.time_ns for each in own if start <= each.time_ns < start + step)
            replaced = any(
                begun[other] > begun[boot] and any(start <= each.time_ns <= end for each in theirs)
                for other, theirs in boots.items()
            )
            if kind != "gauge" or not replaced:
                kept.append((record.time_ns, boot, record))
    return [record for _, _, record in sorted(kept, key=lambda each: each[:2])]


def _grown(kind: str, boots: Boots, since: int, until: int, step: int) -> dict[int, float]:
    found: dict[int, float] = {}

    def add(start: int, value: float) -> None:
        if since <= start < until:
            found[start] = found.get(start, 0.0) + value

    ends = {boot: own[-1].time_ns for boot, own in boots.items()}
    joined: set[int] = set()
    in_order = sorted(boots, key=lambda boot: (boots[boot][0].time_ns, boot))
    for own in [boots[boot] for boot in in_order if kind != "gauge"]:
        before: Any = None
        ended = max((end for end in ends.values() if end < own[0].time_ns), default=None)
        if kind == "counter" and ended is not None and ended not in joined:
            joined.add(ended)
            before = max((other for other, end in ends.items() if end == ended))
            before = boots[before][-1]
        for record in own:
            add(record.time_ns // step * step, 0.0)
            near = before is not None and record.time_ns - before.time_ns <= max(step, REACH)
            grown = _step(kind, before if near else None, record)
            if not near or before.time_ns == record.time_ns:
                add(record.time_ns // step * step, grown)
            else:
                span = record.time_ns - before.time_ns
                for start in range(before.time_ns // step * step, record.time_ns, step):
                    part = min(record.time_ns, start + step) - max(before.time_ns, start)
                    add(start, grown * (part / span))
            before = record
    return found


def _step(kind: str, before: Any, record: Any) -> float:
    if kind == "histogram":
        return float(record.count)
    if before is None or record.value == before.value:
        return 0.0
    return float(record.value) if record.value < before.value else float(record.value - before.value)


def _value(kind: str, members: list[tuple[Series, list[Any]]], aggregate: str, step: int, q: float) -> float | None:
    records = [record for _, own in members for record in own]
    if aggregate in ("rate", "increase"):
        total: float = sum(records)
        return total / (step / 1e9) if aggregate == "rate" else total
    if kind == "histogram":
        return _of_histograms(records, aggregate)
    numbers = [float(record.value) for record in records]
    if aggregate == "count":
        return float(len(numbers))
    if aggregate == "last":
        latest = max(record.time_ns for record in records)
        chosen = max(series[1:3] for series, own in members for record in own if record.time_ns == latest)
        last = [
            record.value
            for series, own in members
            for record in own
            if record.time_ns == latest and series[1:3] == chosen
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
