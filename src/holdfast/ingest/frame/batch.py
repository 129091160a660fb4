"""A batch in memory: the columns of its records, ready for Arrow, and the identity that it is accepted under.

Records of one sort stand in columns of equal length, one element per record, and refer to small tables: texts, sets of
labels, series. Samples and histograms stand series by series, and within a series by sequence number; logs and alerts
stand by sequence number. So ``seq``, not the place in a column, says in which order records were sent. No column is
walked in Python unless somebody asks for ``records()``.

Tables are in the order of their first use, which makes equal batches equal bytes: label sets by samples' series,
histograms' series, logs, alerts; texts by names of those series, names of alerts, label names, label values.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.ingest.frame.columns import NONE, Ints
from holdfast.ingest.frame.envelope import Identity
from holdfast.ingest.frame.scales import Flags, Floats
from holdfast.ingest.frame.texts import text_array
from holdfast.ingest.records import Alert, Counter, Gauge, Histogram, Kind, Log, Record, State

NO_FLOATS: Floats = NONE.view(np.float64)
NO_FLAGS: Flags = np.zeros(0, np.bool_)
NO_TEXTS = text_array([])


@dataclass(frozen=True, slots=True)
class Sequenced:
    """A record and its number within (agent, boot)."""

    seq: int
    record: Record


@dataclass(frozen=True, slots=True, eq=False)
class LabelSets:
    """Sets of labels: set ``i`` has ``lengths[i]`` pairs. Within a set, the numbers of label names grow."""

    lengths: Ints
    names: Ints
    """Numbers of texts, as are ``values``."""
    values: Ints


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One element per series."""

    kind: Ints
    """Numbers of ``Kind``."""
    whole: Flags
    """Whether the values were given as ``int``."""
    name: Ints
    """Numbers of texts."""
    labels: Ints
    """Numbers of label sets."""
    lengths: Ints
    """How many records each series has: at least one."""

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Gauges and counters; and what histograms have in common with them, where ``value`` is the sum."""

    series: Series
    seq: Ints
    time_ns: Ints
    value: Floats
    exact: Ints | None
    """The values of series of whole numbers as they were given, where ``value`` is rounded beyond 2**53; zero for other
    series. None if there is no such series."""

    def __len__(self) -> int:
        return len(self.seq)

    @property
    def series_id(self) -> Ints:
        """The number of the series of each record."""
        return np.repeat(np.arange(len(self.series)), self.series.lengths)


Columns = tuple[Ints, Ints, Floats, Ints | None]
"""``seq``, ``time_ns``, ``value`` and ``exact`` of samples."""


class Unread(Samples):
    """Samples whose columns are known to be right, and are read when somebody looks at them."""

    __slots__ = ("_count", "_read")
    _count: int
    _read: Callable[[], Columns] | None

    def __init__(self, series: Series, count: int, read: Callable[[], Columns]) -> None:
        object.__setattr__(self, "series", series)
        object.__setattr__(self, "_count", count)
        object.__setattr__(self, "_read", read)

    def __len__(self) -> int:
        return self._count

    def __getattr__(self, name: str) -> Any:
        """Only of what was not set yet. Two threads may both read: they find the same."""
        if name not in _COLUMNS:
            raise AttributeError(name)
        read = self._read
        if read is not None:
            for column, values in zip(_COLUMNS, read(), strict=True):
                object.__setattr__(self, column, values)
            object.__setattr__(self, "_read", None)  # which holds on to the frame
        return object.__getattribute__(self, name)


_COLUMNS = ("seq", "time_ns", "value", "exact")


@dataclass(frozen=True, slots=True, eq=False)
class Histograms:
    """``layout`` gives each histogram one of the ``layouts`` of bounds. Its counts stand in ``counts[layout]``, a row
    per histogram of that layout in their common order, a column per bucket."""

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
    """Numbers of label sets."""
    message: pa.StringArray

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True, eq=False)
class Alerts:
    seq: Ints
    time_ns: Ints
    state: Ints
    """Numbers of ``State``."""
    name: Ints
    """Numbers of texts."""
    labels: Ints
    """Numbers of label sets."""
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
    """Of all texts, as UTF-8."""
    label_sets: LabelSets
    samples: Samples
    histograms: Histograms
    logs: Logs
    alerts: Alerts

    def __len__(self) -> int:
        """How many records."""
        return len(self.samples) + len(self.histograms) + len(self.logs) + len(self.alerts)

    def labels(self) -> list[dict[str, str]]:
        """Every label set. Records of one set share the very same dictionary."""
        names, values = self.label_sets.names.tolist(), self.label_sets.values.tolist()
        ends = [0, *np.cumsum(self.label_sets.lengths).tolist()]
        return [
            {self.texts[names[at]]: self.texts[values[at]] for at in range(begin, end)} for begin, end in pairwise(ends)
        ]

    def records(self) -> Iterator[Sequenced]:
        """Every record as an object of its own, by sequence number. Slow beside the columns."""
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
