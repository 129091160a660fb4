"""A batch in memory: its identity, and its records as columns.

Records of one kind (samples, histograms, logs, alerts) are columns of equal length with one element per record. They
refer to small tables by row number: texts, label sets, series. Samples and histograms are sorted by series, and within
a series by sequence number; logs and alerts are sorted by sequence number. The order in which records were sent is
therefore given by ``seq``, not by the position in a column. Only ``records()`` makes a Python object per record.

The rows of a table are in the order of their first use, so that equal batches have equal bytes: label sets in the order
of sample series, histogram series, logs, alerts; texts in the order of the names of those series, names of alerts,
label names, label values.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from operator import attrgetter

import numpy as np
import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.telemetry.frame.columns import NONE, Ints
from holdfast.telemetry.frame.envelope import Identity
from holdfast.telemetry.frame.scales import Flags, Floats
from holdfast.telemetry.records import Alert, Counter, Gauge, Histogram, Kind, Log, Record, State

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
    identity: Identity
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
