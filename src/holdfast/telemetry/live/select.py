"""Searches live state: which series, logs and alerts, as JSON documents. Pure and blocking.

Of batches that share sequence numbers, each number is shown once. Times are nanoseconds since 1970.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.base.codec import Document, json_number
from holdfast.base.errors import Invalid
from holdfast.telemetry.frame import Histograms, Samples
from holdfast.telemetry.identity import fits
from holdfast.telemetry.live.state import LiveBatch
from holdfast.telemetry.overlaps import overlapping_groups, repeated_numbers
from holdfast.telemetry.records import Kind, State

MAX_VALUES = 1_000_000
"""Series times points of one answer."""

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NONE: Ints = np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class LiveQuery:
    agent: str = "*"
    """A pattern of agents, with the wildcards of a token."""
    name: str | None = None
    """Of a metric or an alert; logs have none and are left out if it is given."""
    labels: Mapping[str, str] = field(default_factory=dict)
    since_ns: int | None = None
    series: int = 1_000
    """The limit for each of series, logs and alerts."""
    points: int = 60
    """How many of the latest points of each series to return."""

    def __post_init__(self) -> None:
        if self.series < 1 or self.points < 1 or self.series * self.points > MAX_VALUES:
            raise Invalid(
                f"{self.series} series of {self.points} points are not between 1 and {MAX_VALUES:,} values",
                remedy="ask for fewer series or fewer points",
            )


@dataclass(slots=True)
class _Piece:
    """The points of one series in one batch. Values are converted when the series is answered."""

    samples: Samples
    histograms: Histograms | None
    rows: Ints
    """``histograms.rows``."""
    whole: bool
    """Whether its values are whole numbers."""
    places: Ints

    def value(self, at: int) -> Any:
        if self.histograms is not None:
            layout, row = int(self.histograms.layout[at]), int(self.rows[at])
            return {
                "sum": json_number(float(self.samples.value[at])),
                "bounds": self.histograms.layouts[layout].tolist(),
                "counts": self.histograms.counts[layout][row].tolist(),
            }
        if self.whole and self.samples.exact is not None:
            return int(self.samples.exact[at])
        return json_number(float(self.samples.value[at]))


@dataclass(slots=True)
class _Series:
    name: str
    agent: str
    boot: str
    kind: Kind
    labels: dict[str, str]
    pieces: list[_Piece] = field(default_factory=list)

    @property
    def order(self) -> tuple[Any, ...]:
        return self.name, self.agent, self.boot, sorted(self.labels.items()), self.kind

    def document(self, points: int) -> Document:
        """With the latest points."""
        times = np.concatenate([piece.samples.time_ns[piece.places] for piece in self.pieces])
        seqs = np.concatenate([piece.samples.seq[piece.places] for piece in self.pieces])
        places = [(piece, at) for piece in self.pieces for at in piece.places.tolist()]
        latest = np.lexsort((seqs, times))[-points:].tolist()
        return {
            "agent": self.agent,
            "boot": self.boot,
            "kind": self.kind.name.lower(),
            "name": self.name,
            "labels": self.labels,
            "points": [[int(times[number]), places[number][0].value(places[number][1])] for number in latest],
        }


_SeriesByKey = dict[tuple[Any, ...], _Series]


class _Search:
    """One batch, and which of its records match the query."""

    def __init__(self, live: LiveBatch, lost: Ints | None, query: LiveQuery) -> None:
        self._batch, self._lost, self._query = live.batch, lost, query
        self._source: Document = {"agent": live.identity.agent_id, "boot": live.identity.boot_id}
        self._accepted_at_ns = live.accepted_at_ns
        self._labels = live.batch.labels()
        wanted = query.labels.items()
        fitting = [all(each.get(name, "") == value for name, value in wanted) for each in self._labels]
        self._label_sets = np.array(fitting, np.bool_)
        """Which label sets match, as ``_names`` says which texts match as a name."""
        self._names = np.array([query.name in (None, text) for text in live.batch.texts], np.bool_)

    def add_series(
        self, found: dict[tuple[Any, ...], _Series], samples: Samples, histograms: Histograms | None
    ) -> None:
        of, texts = samples.series, self._batch.texts
        matching = self._matching(samples.seq, samples.time_ns)
        rows = NONE if histograms is None else histograms.rows
        ends = of.lengths.cumsum()
        for number in np.flatnonzero(self._names[of.name] & self._label_sets[of.labels]).tolist():
            begin, end = int(ends[number] - of.lengths[number]), int(ends[number])
            places = begin + np.flatnonzero(matching[begin:end])
            if not len(places):
                continue
            kind, name, labels = Kind(int(of.kind[number])), texts[of.name[number]], self._labels[of.labels[number]]
            key = (*self._source.values(), kind, name, *sorted(labels.items()))
            series = found.setdefault(key, _Series(name, **self._source, kind=kind, labels=labels))
            series.pieces.append(_Piece(samples, histograms, rows, bool(of.whole[number]), places))

    def logs(self) -> Iterator[tuple[int, Document]]:
        logs = self._batch.logs
        if self._query.name is not None:
            return
        for at in self._latest(logs.seq, logs.time_ns, self._label_sets[logs.attributes]):
            yield self._record(
                int(logs.seq[at]),
                int(logs.time_ns[at]),
                severity=int(logs.severity[at]),
                attributes=self._labels[int(logs.attributes[at])],
                message=logs.message[at].as_py(),
            )

    def alerts(self) -> Iterator[tuple[int, Document]]:
        alerts = self._batch.alerts
        chosen = self._names[alerts.name] & self._label_sets[alerts.labels]
        for at in self._latest(alerts.seq, alerts.time_ns, chosen):
            yield self._record(
                int(alerts.seq[at]),
                int(alerts.time_ns[at]),
                name=self._batch.texts[int(alerts.name[at])],
                state=State(int(alerts.state[at])).name.lower(),
                labels=self._labels[int(alerts.labels[at])],
                value=json_number(float(alerts.value[at])) if alerts.valued[at] else None,
                message=alerts.message[at].as_py(),
            )

    def _matching(self, seqs: Ints, times_ns: Ints) -> Flags:
        """The records that this batch keeps, and that are not too old."""
        found = np.ones(len(seqs), np.bool_) if self._lost is None else ~np.isin(seqs, self._lost)
        if self._query.since_ns is not None:
            found &= times_ns >= self._query.since_ns
        return found

    def _latest(self, seqs: Ints, times_ns: Ints, chosen: Flags) -> list[int]:
        """The places of the latest records that match, one more than the limit, which shows that there are more."""
        places = np.flatnonzero(chosen & self._matching(seqs, times_ns))
        order = np.lexsort((seqs[places], times_ns[places]))
        found: list[int] = places[order[-self._query.series - 1 :]].tolist()
        return found

    def _record(self, seq: int, time_ns: int, **own: Any) -> tuple[int, Document]:
        """Also the time by which it is sorted: at most that of acceptance, so that records of a clock that is ahead do
        not displace others.
        """
        return min(time_ns, self._accepted_at_ns), {**self._source, "seq": seq, "time_ns": time_ns, **own}


def select(batches: Iterable[LiveBatch], query: LiveQuery) -> Document:
    """``series``, ``logs``, ``alerts``, and ``truncated`` if there is more than the query asks for."""
    series: _SeriesByKey = {}
    logs: list[tuple[int, Document]] = []
    alerts: list[tuple[int, Document]] = []
    for live, lost in _with_lost_numbers(batches):
        if not fits(live.identity.agent_id, query.agent):
            continue
        if query.name is not None and query.name not in live.batch.texts:
            continue
        search = _Search(live, lost, query)
        search.add_series(series, live.batch.samples, None)
        search.add_series(series, live.batch.histograms.samples, live.batch.histograms)
        logs += search.logs()
        alerts += search.alerts()
    # There may be millions of series; only those that are answered become documents.
    answered = nsmallest(query.series, series.values(), key=lambda each: each.order)
    return {
        "series": [each.document(query.points) for each in answered],
        "logs": _latest(logs, query.series),
        "alerts": _latest(alerts, query.series),
        "truncated": any(len(found) > query.series for found in (series, logs, alerts)),
    }


def _with_lost_numbers(batches: Iterable[LiveBatch]) -> Iterator[tuple[LiveBatch, Ints | None]]:
    """Each batch, with those of its numbers that another batch keeps."""
    for group in overlapping_groups(batches, lambda each: each.identity):
        if len(group) == 1:
            yield group[0], None
        else:
            yield from zip(group, repeated_numbers([each.batch.seqs for each in group]), strict=True)


def _latest(records: list[tuple[int, Document]], limit: int) -> list[Document]:
    records.sort(key=lambda record: (record[0], record[1]["seq"]))
    return [document for _, document in records[-limit:]]
