"""The reference: rollups of records in plain Python, without columns. It shares no code with what it judges."""

import math
from collections import Counter as Tally
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.records import Alert, Counter, Histogram, Log

Series = tuple[str, str, tuple[tuple[str, str], ...], str, str]
"""Metric, agent, labels, kind and boot."""


@dataclass
class Window:
    values: list[tuple[int, float]] = field(default_factory=list)
    """Time and value, in the order in which they count."""
    nans: int = 0
    histograms: list[Histogram] = field(default_factory=list)


def counted(batches: list[Batch]) -> list[tuple[tuple[str, str, int], Any]]:
    """Records by (agent, boot, number), each number once: that of the lowest identity."""
    winners: dict[tuple[str, str, int], Any] = {}
    for batch in sorted(batches, key=lambda each: each.identity):
        for each in batch.records():
            winners.setdefault((batch.identity.agent_id, batch.identity.boot_id, each.seq), each.record)
    return sorted(winners.items(), key=lambda item: item[0])


def windows(batches: list[Batch], window_ns: int) -> dict[tuple[Series, int], Window]:
    """By series and start of the window."""
    found: dict[tuple[Series, int], Window] = {}
    records = counted(batches)
    for (agent, boot, _), record in sorted(records, key=lambda item: item[1].time_ns):
        if isinstance(record, Log | Alert):
            continue
        kind = type(record).__name__.lower()
        series = (record.name, agent, tuple(sorted(record.labels.items())), kind, boot)
        window = found.setdefault((series, record.time_ns // window_ns * window_ns), Window())
        if isinstance(record, Histogram):
            window.histograms.append(record)
        elif math.isnan(record.value):
            window.nans += 1
        else:
            window.values.append((record.time_ns, float(record.value)))
    return found


def row(series: Series, window: Window) -> dict[str, Any]:
    """What a row of a rollup says, as a dictionary; None where there is nothing to say."""
    if series[3] == "histogram":
        return _histogram(window)
    numbers = [value for _, value in window.values]
    there = bool(numbers)
    counts = series[3] == Counter.__name__.lower() and there
    steps = list(pairwise(numbers))
    grown = [now if now < before else 0.0 if now == before else now - before for before, now in steps]
    return {
        "count": len(numbers),
        "nans": window.nans,
        "sum": sum(numbers) if there else 0.0,
        "min": min(numbers) if there else None,
        "max": max(numbers) if there else None,
        "first": numbers[0] if there else None,
        "last": numbers[-1] if there else None,
        "first_time_ns": window.values[0][0] if there else None,
        "last_time_ns": window.values[-1][0] if there else None,
        "increase": sum(grown) if counts else None,
        "resets": sum(now < before for before, now in steps) if counts else None,
        "bounds": None,
        "bucket_counts": None,
    }


def _histogram(window: Window) -> dict[str, Any]:
    found = window.histograms
    common = sorted(set.intersection(*(set(each.bounds) for each in found)))
    tally: Tally[float] = Tally()
    for each in found:
        for bound, count in zip((*each.bounds, math.inf), each.counts, strict=True):
            tally[min((other for other in common if other >= bound), default=math.inf)] += count
    empty = dict.fromkeys(("min", "max", "last", "increase", "resets"))
    return {
        **empty,
        "first": found[0].count,
        "count": sum(tally.values()),
        "nans": 0,
        "sum": sum(each.sum for each in found),
        "first_time_ns": found[0].time_ns,
        "last_time_ns": found[-1].time_ns,
        "bounds": common,
        "bucket_counts": [tally[bound] for bound in (*common, math.inf)],
    }


def quantile(numbers: list[float], q: float) -> float:
    """The value of nearest rank."""
    return sorted(numbers)[min(max(math.ceil(q * len(numbers)), 1), len(numbers)) - 1]
