"""Samples, histograms, logs and alerts of many batches in columns, each record once, by series of all of them.

Rows of one series stand in the order of their sequence numbers. Sorting by time is stable, so that this order breaks
ties of equal times: the same records give the same rows, in whatever order their batches were found.

To users a series is (agent, name, kind, labels): it goes on when its host starts again. Here each boot of it has a key
of its own, because two senders under one agent id may interleave, and values of a counter are only comparable within
one boot. ``query.answer`` joins boots that follow each other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import NO_FLOATS, NO_INTS, Floats, Ints

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"


class SeriesKey(NamedTuple):
    """Sorts by name, then agent: the series of one metric stand together."""

    name: str
    agent: str
    labels: Labels
    kind: str
    boot: str = ""
    """Boots are kept apart in rows and joined in answers; to users boot is no part of a series."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Samples of gauges and counters."""

    series: Sequence[SeriesKey]
    """In order."""
    series_id: Ints
    time_ns: Ints
    value: Floats

    def __len__(self) -> int:
        return len(self.series_id)

    @classmethod
    def empty(cls) -> "Points":
        return cls([], NO_INTS, NO_INTS, NO_FLOATS)


@dataclass(frozen=True, slots=True, eq=False)
class HistogramPoints:
    """Histograms: each says how many observations fell into its buckets since the one before it."""

    series: Sequence[SeriesKey]
    """In order."""
    series_id: Ints
    time_ns: Ints
    sum: Floats
    buckets: Buckets

    def __len__(self) -> int:
        return len(self.series_id)

    @classmethod
    def empty(cls) -> "HistogramPoints":
        return cls([], NO_INTS, NO_INTS, NO_FLOATS, Buckets.empty())


class Source(NamedTuple):
    """The batch that a record came in."""

    manifest_id: str
    agent: str
    boot: str


NO_TEXTS = pa.nulls(0, pa.string())


@dataclass(frozen=True, slots=True, eq=False)
class LogLines:
    sources: Sequence[Source]
    label_sets: Sequence[Labels]
    source: Ints
    """The number of the source of each, as ``labels`` is of the label set."""
    seq: Ints
    time_ns: Ints
    severity: Ints
    labels: Ints
    message: pa.StringArray

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def empty(cls) -> "LogLines":
        return cls([], [], NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_TEXTS)


@dataclass(frozen=True, slots=True, eq=False)
class AlertChanges:
    sources: Sequence[Source]
    label_sets: Sequence[Labels]
    source: Ints
    seq: Ints
    time_ns: Ints
    state: Ints
    labels: Ints
    value: Floats
    """NaN where there is none."""
    name: pa.StringArray
    message: pa.StringArray

    def __len__(self) -> int:
        return len(self.seq)

    @classmethod
    def empty(cls) -> "AlertChanges":
        return cls([], [], NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_FLOATS, NO_TEXTS, NO_TEXTS)


class Doubt(NamedTuple):
    """Two batches have different records under one number. The one of the lower identity counts."""

    agent: str
    boot: str
    seq: int
    kept: str
    """Manifest id of the batch whose record counts."""
    dropped: str


@dataclass(frozen=True, slots=True, eq=False)
class Telemetry:
    """All that some batches say about a range of time."""

    points: Points
    histograms: HistogramPoints
    logs: LogLines
    alerts: AlertChanges
    repeated: int = 0
    """Records left out because another batch has their number, whatever their time."""
    doubts: tuple[Doubt, ...] = ()
    """Those of them that were not the same; the first ones."""
    doubtful: int = 0
    """How many such there were."""
    seqs: Mapping[tuple[str, str], Sequence[Ints]] = field(default_factory=dict)
    """Numbers of the records that are counted, by agent and boot, in pieces."""

    @property
    def records(self) -> int:
        return len(self.points) + len(self.histograms) + len(self.logs) + len(self.alerts)


def in_order(keys: Sequence[SeriesKey]) -> tuple[list[SeriesKey], Ints]:
    """The series in order, and for each old number the new one."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.arange(len(keys))
    return [keys[old] for old in order], numbers
