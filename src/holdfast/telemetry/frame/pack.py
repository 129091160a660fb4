"""Make a batch of records: number them, sort them into columns, and store each text, label set and series once."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame.batch import (
    Alerts,
    Batch,
    Histograms,
    LabelSets,
    Logs,
    Samples,
    Sequenced,
    Series,
    text_array,
)
from holdfast.telemetry.frame.columns import Ints
from holdfast.telemetry.frame.envelope import Identity
from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Kind, Labels, Log, Record

Pairs = tuple[tuple[str, str], ...]
SeriesKey = tuple[Kind, bool, str, Pairs]


def pack(agent_id: str, boot_id: str, records: Iterable[Record], *, seq_start: int) -> Batch:
    """A batch of these records, numbered without gaps from ``seq_start``."""
    return pack_sequenced(agent_id, boot_id, (Sequenced(seq, each) for seq, each in enumerate(records, seq_start)))


def pack_sequenced(agent_id: str, boot_id: str, records: Iterable[Sequenced]) -> Batch:
    """A batch of numbered records. The lowest and the highest number are the bounds of its identity."""
    sorter = _Sorter()
    ordered = sorted(records, key=lambda each: each.seq)
    if not ordered:
        raise Invalid("a batch has at least one record")
    for each in ordered:
        sorter.add(each.seq, each.record)
    return sorter.batch(Identity(agent_id, boot_id, ordered[0].seq, ordered[-1].seq))


@dataclass
class _Metrics:
    """Records of samples or histograms, by their series."""

    series: dict[SeriesKey, list[tuple[int, Gauge | Counter | Histogram]]] = field(default_factory=dict)

    def add(self, seq: int, kind: Kind, whole: bool, record: Gauge | Counter | Histogram) -> None:
        key = (kind, whole, record.name, _pairs(record.labels))
        self.series.setdefault(key, []).append((seq, record))

    def records(self) -> list[tuple[int, Gauge | Counter | Histogram]]:
        return [each for group in self.series.values() for each in group]


class _Sorter:
    def __init__(self) -> None:
        self._samples = _Metrics()
        self._histograms = _Metrics()
        self._logs: list[tuple[int, Log]] = []
        self._alerts: list[tuple[int, Alert]] = []

    def add(self, seq: int, record: Record) -> None:
        match record:
            case Gauge():
                self._samples.add(seq, Kind.GAUGE, isinstance(record.value, int), record)
            case Counter():
                self._samples.add(seq, Kind.COUNTER, isinstance(record.value, int), record)
            case Histogram():
                self._histograms.add(seq, Kind.HISTOGRAM, False, record)
            case Log():
                self._logs.append((seq, record))
            case Alert():
                self._alerts.append((seq, record))
            case _:  # sequence numbers may have gaps, so a record left out here would be lost silently
                raise Invalid(
                    f"record {seq}: expected a Gauge, Counter, Histogram, Log or Alert, got {type(record).__name__}"
                )

    def batch(self, identity: Identity) -> Batch:
        tables = _Tables()
        # The format demands that rows of a table are in the order of their first use, in this order of sections.
        metrics = [tables.series(self._samples), tables.series(self._histograms)]
        attributes = _ints(tables.label_set(_pairs(log.attributes)) for _, log in self._logs)
        alert_labels = _ints(tables.label_set(_pairs(alert.labels)) for _, alert in self._alerts)
        alert_names = _ints(tables.text(alert.name) for _, alert in self._alerts)
        return Batch(
            identity=identity,
            label_sets=tables.label_sets(),
            texts=tuple(tables.texts),
            text_bytes=sum(len(text.encode("utf-8", "surrogatepass")) for text in tables.texts),
            samples=_samples(metrics[0], self._samples),
            histograms=_histograms(metrics[1], self._histograms),
            logs=_logs(self._logs, attributes),
            alerts=_alerts(self._alerts, alert_names, alert_labels),
        )


class _Tables:
    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self._sets: dict[Pairs, int] = {}

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def label_set(self, pairs: Pairs) -> int:
        return self._sets.setdefault(pairs, len(self._sets))

    def series(self, metrics: _Metrics) -> Series:
        keys = list(metrics.series)
        return Series(
            kind=_ints(kind for kind, _, _, _ in keys),
            whole=np.array([whole for _, whole, _, _ in keys], np.bool_),
            name=_ints(self.text(name) for _, _, name, _ in keys),
            labels=_ints(self.label_set(pairs) for _, _, _, pairs in keys),
            lengths=_ints(map(len, metrics.series.values())),
        )

    def label_sets(self) -> LabelSets:
        """Call this last: the format demands label names after all other texts, and label values after the names."""
        names: list[int] = []
        values: list[str] = []
        for pairs in self._sets:
            known = sorted((self.texts[name], value) for name, value in pairs if name in self.texts)
            new = [(self.text(name), value) for name, value in pairs if name not in self.texts]
            for number, value in known + new:
                names.append(number)
                values.append(value)
        lengths = _ints(map(len, self._sets))
        return LabelSets(lengths, _ints(names), _ints(self.text(value) for value in values))


def _pairs(labels: Labels) -> Pairs:
    return tuple(sorted(labels.items()))


def _ints(numbers: Iterable[int]) -> Ints:
    return np.array(list(numbers), np.int64)


def _samples(series: Series, metrics: _Metrics) -> Samples:
    records = metrics.records()
    given = [record.sum if isinstance(record, Histogram) else record.value for _, record in records]
    exact = None
    if series.whole.any():
        exact = _ints(value if isinstance(value, int) else 0 for value in given)
    seq, time_ns = _ints(seq for seq, _ in records), _ints(record.time_ns for _, record in records)
    return Samples(series, seq, time_ns, np.array(given, np.float64), exact)


def _histograms(series: Series, metrics: _Metrics) -> Histograms:
    layouts: dict[tuple[float, ...], list[tuple[int, ...]]] = {}
    layout: list[int] = []
    numbers: dict[tuple[float, ...], int] = {}
    for _, record in metrics.records():
        if isinstance(record, Histogram):
            layout.append(numbers.setdefault(record.bounds, len(numbers)))
            layouts.setdefault(record.bounds, []).append(record.counts)
    return Histograms(
        samples=_samples(series, metrics),
        layouts=tuple(np.array(bounds, np.float64) for bounds in layouts),
        layout=_ints(layout),
        counts=tuple(np.array(counts, np.int64) for counts in layouts.values()),
    )


def _logs(logs: list[tuple[int, Log]], attributes: Ints) -> Logs:
    return Logs(
        seq=_ints(seq for seq, _ in logs),
        time_ns=_ints(log.time_ns for _, log in logs),
        severity=_ints(log.severity for _, log in logs),
        attributes=attributes,
        message=text_array([log.message for _, log in logs]),
    )


def _alerts(alerts: list[tuple[int, Alert]], names: Ints, labels: Ints) -> Alerts:
    return Alerts(
        seq=_ints(seq for seq, _ in alerts),
        time_ns=_ints(alert.time_ns for _, alert in alerts),
        state=_ints(alert.state for _, alert in alerts),
        name=names,
        labels=labels,
        valued=np.array([alert.value is not None for _, alert in alerts], np.bool_),
        value=np.array([0.0 if alert.value is None else alert.value for _, alert in alerts], np.float64),
        message=text_array([alert.message for _, alert in alerts]),
    )
