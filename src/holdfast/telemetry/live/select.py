"""Questions to live state: which series, logs and alerts, and how they read as JSON. Pure and blocking.

Values are JSON numbers; a NaN or an infinity, for which JSON has no word, is one of the strings NaN, +Inf and -Inf.
Times are nanoseconds since 1970.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

import numpy as np

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame import Histograms, Samples
from holdfast.telemetry.identity import fits
from holdfast.telemetry.live.state import Kept, counted_once
from holdfast.telemetry.records import Kind, State

MOST_VALUES = 1_000_000
"""Series times points of one answer."""


@dataclass(frozen=True, slots=True)
class Wanted:
    agent: str = "*"
    """A pattern of agents, with the wildcards of a token."""
    name: str | None = None
    """Of a metric or an alert; logs have none and are left out if it is given."""
    labels: Mapping[str, str] = field(default_factory=dict)
    since_ns: int | None = None
    series: int = 1_000
    points: int = 60
    """How many of the latest points of each series to return; of logs and alerts, as many as ``series``."""

    def __post_init__(self) -> None:
        if self.series < 1 or self.points < 1 or self.series * self.points > MOST_VALUES:
            raise Invalid(
                f"{self.series} series of {self.points} points are not between 1 and {MOST_VALUES:,} values",
                remedy="ask for fewer series or fewer points",
            )


@dataclass(frozen=True, slots=True)
class _Column:
    """Samples or histograms of one batch; values are converted when they are read."""

    samples: Samples
    histograms: Histograms | None = None
    rows: Any = None
    """Of histograms: the row of each in the table of its layout."""

    def value(self, number: int, at: int) -> Any:
        """Of the sample at this place, in the series of this number."""
        samples = self.samples
        if self.histograms is not None:
            layout = int(self.histograms.layout[at])
            return {
                "sum": _number(float(samples.value[at])),
                "bounds": self.histograms.layouts[layout].tolist(),
                "counts": self.histograms.counts[layout][int(self.rows[at])].tolist(),
            }
        if samples.exact is not None and samples.series.whole[number]:
            return int(samples.exact[at])
        return _number(float(samples.value[at]))


@dataclass(slots=True)
class _Found:
    """One series, and where its points are: column, number of the series there, places."""

    agent: str
    boot: str
    kind: Kind
    name: str
    labels: dict[str, str]
    pieces: list[tuple[_Column, int, Any]] = field(default_factory=list)

    @property
    def order(self) -> tuple[Any, ...]:
        return self.name, self.agent, self.boot, sorted(self.labels.items()), self.kind

    def document(self, wanted: Wanted) -> dict[str, Any]:
        times = np.concatenate([column.samples.time_ns[places] for column, _, places in self.pieces])
        seqs = np.concatenate([column.samples.seq[places] for column, _, places in self.pieces])
        sources = [(column, number, at) for column, number, places in self.pieces for at in places]
        latest = np.lexsort((seqs, times))[-wanted.points :].tolist()
        points = []
        for place in latest:
            column, number, at = sources[place]
            points.append([int(times[place]), column.value(number, int(at))])
        return {
            "agent": self.agent,
            "boot": self.boot,
            "kind": self.kind.name.lower(),
            "name": self.name,
            "labels": self.labels,
            "points": points,
        }


_Series = dict[tuple[Any, ...], _Found]
_Record = tuple[int, dict[str, Any]]
"""A log line or an alert, and when its batch was accepted."""


def select(kept: list[Kept], wanted: Wanted) -> dict[str, Any]:
    """``series``, ``logs``, ``alerts``, and ``truncated`` if there was more than was asked for."""
    series: _Series = {}
    logs: list[_Record] = []
    alerts: list[_Record] = []
    for each, taken in counted_once(kept):
        if not fits(each.identity.agent_id, wanted.agent):
            continue
        if wanted.name is not None and wanted.name not in each.batch.texts:
            continue
        labels = each.batch.labels()
        _metrics(each, taken, wanted, labels, series)
        alerts += [(each.accepted_at_ns, one) for one in _alerts(each, taken, wanted, labels)]
        if wanted.name is None:
            logs += [(each.accepted_at_ns, one) for one in _logs(each, taken, wanted, labels)]
    most = wanted.series
    # There may be millions of series, of which a few are answered: only those become documents.
    chosen = nsmallest(most, series.values(), key=lambda found: found.order)
    return {
        "series": [found.document(wanted) for found in chosen],
        "logs": _latest(logs, most),
        "alerts": _latest(alerts, most),
        "truncated": any(len(found) > most for found in (series, logs, alerts)),
    }


def _latest(records: list[_Record], most: int) -> list[dict[str, Any]]:
    """By their times, but none later than its batch was accepted: a clock that is ahead displaces no others."""
    ordered = sorted(records, key=lambda each: (min(each[0], each[1]["time_ns"]), each[1]["seq"]))
    return [record for _, record in ordered[-most:]]


def _fits(labels: dict[str, str], wanted: Wanted) -> bool:
    return not wanted.labels or all(labels.get(name, "") == value for name, value in wanted.labels.items())


def _metrics(each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]], series: _Series) -> None:
    _points(each, _Column(each.batch.samples), taken, wanted, labels, series)
    histograms = each.batch.histograms
    if not len(histograms):
        return
    rows = np.zeros(len(histograms), np.int64)
    for number in range(len(histograms.layouts)):
        chosen = histograms.layout == number
        rows[chosen] = np.arange(int(chosen.sum()))
    _points(each, _Column(histograms.samples, histograms, rows), taken, wanted, labels, series)


def _points(
    each: Kept, column: _Column, taken: Any, wanted: Wanted, labels: list[dict[str, str]], series: _Series
) -> None:
    """Every series of the column that is wanted goes to those that were found."""
    samples, (agent, boot), texts = column.samples, each.source, each.batch.texts
    chosen = None if taken is None and wanted.since_ns is None else _chosen(samples.seq, samples.time_ns, taken, wanted)
    keys: dict[int, tuple[tuple[str, str], ...]] = {}
    of = samples.series
    rows = zip(of.kind.tolist(), of.name.tolist(), of.labels.tolist(), of.lengths.tolist(), strict=True)
    end = 0
    for number, (kind, name, label_set, length) in enumerate(rows):
        begin, end = end, end + length
        if wanted.name not in (None, texts[name]) or not _fits(labels[label_set], wanted):
            continue
        places: Any = range(begin, end) if chosen is None else begin + np.flatnonzero(chosen[begin:end])
        if not len(places):
            continue
        pairs = keys.get(label_set)
        if pairs is None:
            pairs = keys[label_set] = tuple(sorted(labels[label_set].items()))
        key = (agent, boot, kind, texts[name], pairs)
        found = series.get(key)
        if found is None:
            found = series[key] = _Found(agent, boot, Kind(kind), texts[name], labels[label_set])
        found.pieces.append((column, number, places))


def _logs(each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]]) -> list[dict[str, Any]]:
    logs = each.batch.logs
    if not len(logs):
        return []
    agent, boot = each.source
    places = [
        at
        for at in _fresh(logs.seq, logs.time_ns, taken, wanted)
        if not wanted.labels or _fits(labels[int(logs.attributes[at])], wanted)
    ]
    return [
        {
            "agent": agent,
            "boot": boot,
            "seq": int(logs.seq[at]),
            "time_ns": int(logs.time_ns[at]),
            "severity": int(logs.severity[at]),
            "attributes": labels[int(logs.attributes[at])],
            "message": logs.message[at].as_py(),
        }
        for at in _newest(logs.seq, logs.time_ns, places, wanted)
    ]


def _alerts(each: Kept, taken: Any, wanted: Wanted, labels: list[dict[str, str]]) -> list[dict[str, Any]]:
    alerts = each.batch.alerts
    if not len(alerts):
        return []
    agent, boot = each.source
    places = [
        at
        for at in _fresh(alerts.seq, alerts.time_ns, taken, wanted)
        if wanted.name in (None, each.batch.texts[int(alerts.name[at])])
        and _fits(labels[int(alerts.labels[at])], wanted)
    ]
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
            "message": alerts.message[at].as_py(),
        }
        for at in _newest(alerts.seq, alerts.time_ns, places, wanted)
    ]


def _newest(seqs: Any, times: Any, places: list[int], wanted: Wanted) -> list[int]:
    """The latest of these, one more than wanted, which shows that there are more."""
    most = wanted.series + 1
    if len(places) <= most:
        return places
    chosen = np.array(places)
    order: list[int] = chosen[np.lexsort((seqs[chosen], times[chosen]))[-most:]].tolist()
    return order


def _fresh(seqs: Any, times: Any, taken: Any, wanted: Wanted) -> list[int]:
    places: list[int] = np.flatnonzero(_chosen(seqs, times, taken, wanted)).tolist()
    return places


def _chosen(seqs: Any, times: Any, taken: Any, wanted: Wanted) -> Any:
    chosen = np.ones(len(seqs), np.bool_) if taken is None else ~np.isin(seqs, taken)
    if wanted.since_ns is not None:
        chosen &= times >= wanted.since_ns
    return chosen


def _number(value: float) -> float | int | str:
    if isinstance(value, int) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
