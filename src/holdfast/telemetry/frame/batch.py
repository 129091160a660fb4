"""A batch in memory: its identity, and its records as columns.

Records of one kind (samples, histograms, logs, alerts) are columns of equal length with one element per record. They
refer to small tables by row number: texts, label sets, series. Samples and histograms are sorted by series, and within
a series by sequence number; logs and alerts are sorted by sequence number. The order in which records were sent is
therefore given by ``seq``, not by the position in a column. ``pack`` makes a batch of records; only ``records()`` makes
a Python object per record again.

The rows of a table are in the order of their first use, so that equal batches have equal bytes: label sets in the order
of sample series, histogram series, logs, alerts; texts in the order of the names of those series, names of alerts,
label names, label values.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import merge
from itertools import pairwise
from operator import attrgetter

import numpy as np
import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame.columns import NONE, Flags, Floats, Ints
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Kind, Labels, Log, Record, State

NO_FLOATS: Floats = NONE.view(np.float64)
NO_FLAGS: Flags = np.zeros(0, np.bool_)
LONGEST_TEXTS = 2**31 - 1
"""Bytes of a text column: Arrow's offsets have 32 bits."""


def text_array(texts: Sequence[str]) -> pa.StringArray:
    """A column of text.

    Made from its buffers, because ``pa.array`` imports pandas where that is installed, which doubles the memory of an
    agent.
    """
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if int(ends[-1]) > LONGEST_TEXTS:
        raise Invalid(
            f"the texts of a batch have {ends[-1]} bytes, more than {LONGEST_TEXTS}", remedy="send smaller batches"
        )
    offsets, data = ends.astype(np.int32), b"".join(encoded)
    return pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(data))


NO_TEXTS = text_array([])


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A record and its sequence number within (agent, boot)."""

    seq: int
    record: Record


@dataclass(frozen=True, slots=True, eq=False)
class LabelSets:
    """Label sets: set ``i`` has ``lengths[i]`` pairs. Within a set, the text numbers of the label names increase."""

    lengths: Ints
    names: Ints
    """Row numbers in the table of texts, as in ``values``."""
    values: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """The table of series, one element per series."""

    kind: Ints
    """Values of ``Kind``."""
    whole: Flags
    """Whether the values of the series are of type ``int``."""
    name: Ints
    """Row numbers in the table of texts."""
    labels: Ints
    """Row numbers in the table of label sets."""
    lengths: Ints
    """How many records each series has: at least one."""

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Gauges and counters. Histograms have the same columns, where ``value`` is the sum."""

    series: Series
    seq: Ints
    time_ns: Ints
    value: Floats
    exact: Ints | None
    """Exact values of the series of ``int``, because ``value`` is rounded above 2**53; zero for other series. None if
    no series is of ``int``."""

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def series_id(self) -> Ints:
        """For each record, the row number of its series."""
        return np.repeat(np.arange(len(self.series)), self.series.lengths)


@dataclass(frozen=True, slots=True, eq=False)
class Histograms:
    """``layout`` is the row number of each histogram's bounds in ``layouts``. Its counts are in ``counts[layout]``: one
    row per histogram of that layout, in column order, and one column per bucket."""

    samples: Samples
    layouts: tuple[Floats, ...]
    layout: Ints
    counts: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.layout)

    @property
    def rows(self) -> Ints:
        """For each histogram, the row of its counts in ``counts[layout]``."""
        rows = np.zeros(len(self), np.int64)
        for number in range(len(self.layouts)):
            chosen = self.layout == number
            rows[chosen] = np.arange(int(chosen.sum()))
        return rows


@dataclass(frozen=True, slots=True, eq=False)
class Logs:
    seq: Ints
    time_ns: Ints
    severity: Ints
    attributes: Ints
    """Row numbers in the table of label sets."""
    message: pa.StringArray

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True, eq=False)
class Alerts:
    seq: Ints
    time_ns: Ints
    state: Ints
    """Values of ``State``."""
    name: Ints
    """Row numbers in the table of texts."""
    labels: Ints
    """Row numbers in the table of label sets."""
    valued: Flags
    value: Floats
    """Zero where there is no value."""
    message: pa.StringArray

    def __len__(self) -> int:
        return len(self.seq)


NO_SERIES = Series(NONE, NO_FLAGS, NONE, NONE, NONE)
NO_SAMPLES = Samples(NO_SERIES, NONE, NONE, NO_FLOATS, None)
NO_HISTOGRAMS = Histograms(NO_SAMPLES, (), NONE, ())
NO_LOGS = Logs(NONE, NONE, NONE, NONE, NO_TEXTS)
NO_ALERTS = Alerts(NONE, NONE, NONE, NONE, NONE, NO_FLAGS, NO_FLOATS, NO_TEXTS)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    identity: BatchIdentity
    texts: tuple[str, ...]
    text_bytes: int
    """Length of all texts together, in UTF-8."""
    label_sets: LabelSets
    samples: Samples
    histograms: Histograms
    logs: Logs
    alerts: Alerts

    def __len__(self) -> int:
        """The number of records."""
        return len(self.samples) + len(self.histograms) + len(self.logs) + len(self.alerts)

    @property
    def seqs(self) -> Ints:
        """The sequence numbers of all records: samples, histograms, logs, alerts."""
        return np.concatenate([self.samples.seq, self.histograms.samples.seq, self.logs.seq, self.alerts.seq])

    @property
    def times_ns(self) -> Ints:
        """The times of all records, in the order of ``seqs``."""
        parts = (self.samples, self.histograms.samples, self.logs, self.alerts)
        return np.concatenate([part.time_ns for part in parts])

    def labels(self) -> list[dict[str, str]]:
        """All label sets. Records with the same label set share one dictionary."""
        names, values = self.label_sets.names.tolist(), self.label_sets.values.tolist()
        ends = [0, *np.cumsum(self.label_sets.lengths).tolist()]
        return [
            {self.texts[names[at]]: self.texts[values[at]] for at in range(begin, end)} for begin, end in pairwise(ends)
        ]

    def records(self) -> Iterator[Sequenced]:
        """All records as objects, in the order of their sequence numbers. Much slower than working on the columns."""
        labels = self.labels()
        parts = [self._samples(labels), self._histograms(labels), self._logs(labels), self._alerts(labels)]
        return merge(*(sorted(part, key=attrgetter("seq")) for part in parts), key=attrgetter("seq"))

    def _samples(self, labels: list[dict[str, str]]) -> Iterator[Sequenced]:
        found = self.samples
        series = _series(found.series, self.texts, labels)
        whole = found.series.whole.tolist()
        exact = found.exact.tolist() if found.exact is not None else []
        columns = (found.series_id, found.seq, found.time_ns, found.value)
        for at, (of, seq, time_ns, value) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
            kind, name, its_labels = series[of]
            make = Counter if kind == Kind.COUNTER else Gauge
            yield Sequenced(seq, make(name, exact[at] if whole[of] else value, time_ns, its_labels))

    def _histograms(self, labels: list[dict[str, str]]) -> Iterator[Sequenced]:
        found = self.histograms
        series = _series(found.samples.series, self.texts, labels)
        rows = [iter(counts.tolist()) for counts in found.counts]
        bounds = [tuple(layout.tolist()) for layout in found.layouts]
        common = found.samples
        columns = (common.series_id, common.seq, common.time_ns, common.value, found.layout)
        for of, seq, time_ns, total, layout in zip(*(column.tolist() for column in columns), strict=True):
            _, name, its_labels = series[of]
            counts = tuple(next(rows[layout]))
            yield Sequenced(seq, Histogram(name, bounds[layout], counts, total, time_ns, its_labels))

    def _logs(self, labels: list[dict[str, str]]) -> Iterator[Sequenced]:
        found = self.logs
        columns = (found.seq, found.time_ns, found.severity, found.attributes, found.message)
        for seq, time_ns, severity, attributes, message in zip(*(each.tolist() for each in columns), strict=True):
            yield Sequenced(seq, Log(message, time_ns, severity, labels[attributes]))

    def _alerts(self, labels: list[dict[str, str]]) -> Iterator[Sequenced]:
        found = self.alerts
        columns = (found.seq, found.time_ns, found.state, found.name, found.labels, found.valued, found.value)
        messages = found.message.tolist()
        for at, (seq, time_ns, state, name, its_labels, valued, value) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            given = value if valued else None
            alert = Alert(self.texts[name], State(state), time_ns, labels[its_labels], given, messages[at])
            yield Sequenced(seq, alert)


def _series(
    series: Series, texts: tuple[str, ...], labels: list[dict[str, str]]
) -> list[tuple[int, str, dict[str, str]]]:
    columns = zip(series.kind.tolist(), series.name.tolist(), series.labels.tolist(), strict=True)
    return [(kind, texts[name], labels[number]) for kind, name, number in columns]


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
    return sorter.batch(BatchIdentity(agent_id, boot_id, ordered[0].seq, ordered[-1].seq))


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
                if record.cumulative:
                    raise Invalid(
                        f"record {seq}: {record.name} is a cumulative histogram, and a batch holds differences",
                        remedy="send it with Client, or give what was observed since the histogram before it",
                    )
                self._histograms.add(seq, Kind.HISTOGRAM, False, record)
            case Log():
                self._logs.append((seq, record))
            case Alert():
                self._alerts.append((seq, record))
            case _:  # sequence numbers may have gaps, so a record left out here would be lost silently
                raise Invalid(
                    f"record {seq}: expected a Gauge, Counter, Histogram, Log or Alert, got {type(record).__name__}"
                )

    def batch(self, identity: BatchIdentity) -> Batch:
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
