"""Questions to live state: which series, logs and alerts, and how they read as JSON. Pure and blocking.

Values are JSON numbers; a NaN or an infinity, for which JSON has no word, is one of the strings NaN, +Inf and -Inf.
Times are nanoseconds since 1970.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from holdfast.base.errors import Invalid
from holdfast.ingest.frame import Batch, Samples
from holdfast.ingest.live import Kept, counted_once
from holdfast.ingest.records import Kind, State

MOST_VALUES = 1_000_000
"""Series times points of one answer."""

_Numbers = "np.ndarray[tuple[int], np.dtype[Any]]"


@dataclass(frozen=True, slots=True)
class Wanted:
    agent: str = "*"
    """A pattern, as of a token."""
    name: str | None = None
    """Of a metric or an alert; logs have none and are left out if it is given."""
    labels: Mapping[str, str] = field(default_factory=dict)
    since_ns: int | None = None
    series: int = 1_000
    points: int = 60
    """The latest so many of each series, and of logs and alerts as many as ``series``."""

    def __post_init__(self) -> None:
        if self.series < 1 or self.points < 1 or self.series * self.points > MOST_VALUES:
            raise Invalid(
                f"{self.series} series of {self.points} points are no number from 1 to {MOST_VALUES:,} values",
                remedy="ask for fewer series or fewer points",
            )


@dataclass(slots=True)
class _Found:
    """The points of one series, in pieces."""

    agent: str
    boot: str
    kind: Kind
    name: str
    labels: dict[str, str]
    pieces: list[tuple[Any, Any, list[Any]]] = field(default_factory=list)

    def document(self, wanted: Wanted) -> dict[str, Any] | None:
        times = np.concatenate([piece[0] for piece in self.pieces])
        seqs = np.concatenate([piece[1] for piece in self.pieces])
        values = [value for piece in self.pieces for value in piece[2]]
        order = np.lexsort((seqs, times))
        if wanted.since_ns is not None:
            order = order[times[order] >= wanted.since_ns]
        if not len(order):
            return None
        latest = order[-wanted.points :].tolist()
        points = [[int(times[at]), values[at]] for at in latest]
        return {
            "agent": self.agent,
            "boot": self.boot,
            "kind": self.kind.name.lower(),
            "name": self.name,
            "labels": self.labels,
            "points": points,
        }


def select(kept: list[Kept], wanted: Wanted) -> dict[str, Any]:
    """``series``, ``logs``, ``alerts``, and ``truncated`` if there was more than was asked for."""
    series: dict[tuple[Any, ...], _Found] = {}
    logs: list[dict[str, Any]] = []
    alerts: list[dict[str, Any]] = []
    for each, taken in counted_once(kept):
        if not fnmatchcase(each.identity.agent_id, wanted.agent):
            continue
        if wanted.name is not None and wanted.name not in each.batch.texts:
            continue
        labels = each.batch.labels()
        _samples(each, taken, wanted, labels, series)
        _histograms(each, taken, wanted, labels, series)
        alerts += _alerts(each, taken, wanted, labels)
        if wanted.name is None:
            logs += _logs(each, taken, wanted, labels)
    documents = [document for found in series.values() if (document := found.document(wanted)) is not None]
    documents.sort(key=lambda one: (one["name"], one["agent"], one["boot"], sorted(one["labels"].items())))
    most = wanted.series
    return {
        "series": documents[:most],
        "logs": _latest(logs, most),
        "alerts": _latest(alerts, most),
        "truncated": any(len(found) > most for found in (documents, logs, alerts)),
    }


def _latest(records: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    return sorted(records, key=lambda record: (record["time_ns"], record["seq"]))[-most:]


def _matching(
    samples: Samples, batch: Batch, wanted: Wanted, labels: list[dict[str, str]]
) -> Iterator[tuple[int, int, int, str, dict[str, str]]]:
    """Number, first and last place, name and labels of the series that are wanted."""
    end = 0
    columns = zip(
        samples.series.name.tolist(), samples.series.labels.tolist(), samples.series.lengths.tolist(), strict=True
    )
    for number, (name, label_set, length) in enumerate(columns):
        begin, end = end, end + length
        text, its_labels = batch.texts[name], labels[label_set]
        if wanted.name in (None, text) and _fits(its_labels, wanted):
            yield number, begin, end, text, its_labels


def _fits(labels: dict[str, str], wanted: Wanted) -> bool:
    return not wanted.labels or all(labels.get(name, "") == value for name, value in wanted.labels.items())


def _samples(
    each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]], series: dict[tuple[Any, ...], _Found]
) -> None:
    samples = each.batch.samples
    for number, begin, end, name, its_labels in _matching(samples, each.batch, wanted, labels):
        kind = Kind(int(samples.series.kind[number]))
        exact = samples.exact is not None and bool(samples.series.whole[number])
        column = samples.exact if exact and samples.exact is not None else samples.value
        values = column[begin:end].tolist()
        _keep(series, each, kind, name, its_labels, samples, (begin, end), [_number(value) for value in values], taken)


def _histograms(
    each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]], series: dict[tuple[Any, ...], _Found]
) -> None:
    histograms = each.batch.histograms
    if not len(histograms):
        return
    places = np.zeros(len(histograms), np.int64)
    for number in range(len(histograms.layouts)):
        chosen = histograms.layout == number
        places[chosen] = np.arange(int(chosen.sum()))
    for _, begin, end, name, its_labels in _matching(histograms.samples, each.batch, wanted, labels):
        values = [
            {
                "sum": _number(float(histograms.samples.value[at])),
                "bounds": histograms.layouts[int(histograms.layout[at])].tolist(),
                "counts": histograms.counts[int(histograms.layout[at])][int(places[at])].tolist(),
            }
            for at in range(begin, end)
        ]
        place = (begin, end)
        _keep(series, each, Kind.HISTOGRAM, name, its_labels, histograms.samples, place, values, taken)


def _keep(
    series: dict[tuple[Any, ...], _Found],
    each: Kept,
    kind: Kind,
    name: str,
    labels: dict[str, str],
    samples: Samples,
    place: tuple[int, int],
    values: list[Any],
    taken: Any,
) -> None:
    times, seqs = samples.time_ns[slice(*place)], samples.seq[slice(*place)]
    if taken is not None:
        fresh = ~np.isin(seqs, taken)
        times, seqs = times[fresh], seqs[fresh]
        values = [value for value, kept in zip(values, fresh.tolist(), strict=True) if kept]
    if not len(seqs):
        return
    agent, boot = each.source
    key = (agent, boot, kind, name, tuple(sorted(labels.items())))
    found = series.get(key)
    if found is None:
        found = series[key] = _Found(agent, boot, kind, name, labels)
    found.pieces.append((times, seqs, values))


def _logs(each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]]) -> list[dict[str, Any]]:
    logs = each.batch.logs
    if not len(logs):
        return []
    agent, boot = each.source
    messages = logs.message.to_pylist()
    return [
        {
            "agent": agent,
            "boot": boot,
            "seq": int(logs.seq[at]),
            "time_ns": int(logs.time_ns[at]),
            "severity": int(logs.severity[at]),
            "attributes": labels[int(logs.attributes[at])],
            "message": messages[at],
        }
        for at in _fresh(logs.seq, logs.time_ns, taken, wanted)
        if _fits(labels[int(logs.attributes[at])], wanted)
    ]


def _alerts(each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]]) -> list[dict[str, Any]]:
    alerts = each.batch.alerts
    if not len(alerts):
        return []
    agent, boot = each.source
    messages = alerts.message.to_pylist()
    return [
        {
            "agent": agent,
            "boot": boot,
            "seq": int(alerts.seq[at]),
            "time_ns": int(alerts.time_ns[at]),
            "name": each.batch.texts[int(alerts.name[at])],
            "state": State(int(alerts.state[at])).name.lower(),
            "labels": labels[int(alerts.labels[at])],
            "value": _number(float(alerts.value[at])) if alerts.valued[at] else None,
            "message": messages[at],
        }
        for at in _fresh(alerts.seq, alerts.time_ns, taken, wanted)
        if wanted.name in (None, each.batch.texts[int(alerts.name[at])])
        and _fits(labels[int(alerts.labels[at])], wanted)
    ]


def _fresh(seqs: Any, times: Any, taken: Any, wanted: Wanted) -> list[int]:
    chosen = np.ones(len(seqs), np.bool_) if taken is None else ~np.isin(seqs, taken)
    if wanted.since_ns is not None:
        chosen &= times >= wanted.since_ns
    places: list[int] = np.flatnonzero(chosen).tolist()
    return places


def _number(value: float) -> float | int | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
