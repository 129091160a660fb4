"""The records of many batches in columns: each (agent, boot, sequence number) once, by series of all batches.

Of two batches that share numbers the one of the lower identity counts, record by record, in whatever order they are
given (correction 10). Records that are left out so are compared with those that count, and differences are counted.

To users a series is (agent, name, kind, labels): it continues when its host restarts. Here each boot of it has a key
of its own, because two senders under one agent id may interleave, and values of a counter are only comparable within
one boot. ``query.statements`` joins boots that follow each other.

Nothing loops over records, and a table of series that an agent sends again and again is looked up as a whole, so that
thousands of small batches cost little more than their columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.telemetry.frame import Batch, Histograms, Samples, Sequenced
from holdfast.telemetry.overlaps import overlapping_groups, repeated_numbers
from holdfast.telemetry.records import Kind, same
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import NO_FLOATS, NO_INTS, Flags, Floats, Ints
from holdfast.telemetry.rollup.layout import HOUR_NS

Labels = tuple[tuple[str, str], ...]
"""Sorted by name."""

GAUGE, COUNTER, HISTOGRAM = "gauge", "counter", "histogram"
_KINDS = {kind: kind.name.lower() for kind in Kind}


class SeriesKey(NamedTuple):
    """Sorts by name, then agent: the series of one metric are neighbours."""

    name: str
    agent: str
    labels: Labels
    kind: str
    boot: str = ""
    """Boots are kept apart in rows and joined in answers; to users boot is no part of a series."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Samples of gauges and counters; or histograms, each of which says how many observations fell into its buckets
    since the one before it.
    """

    series: Sequence[SeriesKey]
    """In order."""
    series_id: Ints
    seq: Ints
    time_ns: Ints
    value: Floats
    """Of a histogram, the sum of its observations."""
    buckets: Buckets | None = None
    """Of histograms."""

    def __len__(self) -> int:
        return len(self.series_id)

    def of_metric(self, name: str) -> "Points":
        first = sum(key.name < name for key in self.series)
        series = [key for key in self.series if key.name == name]
        at = np.flatnonzero((self.series_id >= first) & (self.series_id < first + len(series)))
        buckets = None if self.buckets is None else self.buckets.take(at)
        return Points(series, self.series_id[at] - first, self.seq[at], self.time_ns[at], self.value[at], buckets)


class Source(NamedTuple):
    """The batch that a record came in."""

    manifest_id: str
    agent: str
    boot: str


@dataclass(frozen=True, slots=True, eq=False)
class LogLines:
    sources: Sequence[Source]
    label_sets: Sequence[Labels]
    source: Ints
    """Row numbers in ``sources``, as ``labels`` has those in ``label_sets``."""
    seq: Ints
    time_ns: Ints
    severity: Ints
    labels: Ints
    message: pa.StringArray

    def __len__(self) -> int:
        return len(self.seq)


@dataclass(frozen=True, slots=True, eq=False)
class Telemetry:
    """All that some batches say about a range of time."""

    samples: Points
    histograms: Points
    logs: LogLines
    alerts: int
    """How many there are."""
    repeated: int
    """Records left out because another batch or a closed hour has their number, whatever their time."""
    doubtful: int
    """Those of them that differ from the record that counts."""
    seqs: Mapping[tuple[str, str], Ints]
    """Numbers of the records that count, by agent and boot."""

    @property
    def records(self) -> int:
        return len(self.samples) + len(self.histograms) + len(self.logs) + self.alerts


@dataclass(frozen=True, slots=True)
class Exclusions:
    """Which records of an open hour's batches do not count, because of closed hours (``shared_numbers``)."""

    hours: frozenset[int] = frozenset()
    """Closed hours: a record in one of these counts in no other hour."""
    numbers: Mapping[tuple[str, str], Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Ranges of numbers that they have counted, of the agents and boots whose batches share numbers."""

    @classmethod
    def joined(cls, parts: Sequence["Exclusions"]) -> "Exclusions":
        hours = frozenset(hour for each in parts for hour in each.hours)
        return cls(hours, {source: ranges for each in parts for source, ranges in each.numbers.items()})

    def concerns(self, batch: Batch) -> bool:
        return (batch.identity.agent_id, batch.identity.boot_id) in self.numbers

    def free(self, batch: Batch, seqs: Ints) -> Flags:
        """Which of the batch's records may still be counted."""
        free = ~np.isin(batch.times_ns // HOUR_NS, np.array(sorted(self.hours), np.int64))
        for first, last in self.numbers.get((batch.identity.agent_id, batch.identity.boot_id), ()):
            free &= (seqs < first) | (seqs > last)
        return free


NO_EXCLUSIONS = Exclusions()


def telemetry_of(
    batches: Iterable[Batch],
    since_ns: int | None = None,
    until_ns: int | None = None,
    excluded: Exclusions = NO_EXCLUSIONS,
) -> Telemetry:
    """All records of these batches in [since, until), each once, without those that closed hours exclude. The order of
    batches does not matter.
    """
    gathering = _Gathering(since_ns, until_ns)
    unique = {batch.identity: batch for batch in batches}
    for group in overlapping_groups(unique.values(), lambda batch: batch.identity):
        if len(group) == 1 and not excluded.concerns(group[0]):
            gathering.add(group[0], None)
            continue
        seqs = [batch.seqs for batch in group]
        free = [excluded.free(batch, own) for batch, own in zip(group, seqs, strict=True)]
        repeated: set[int] = set()
        for batch, dropped in zip(group, repeated_numbers(seqs, free), strict=True):
            gathering.add(batch, dropped)
            if dropped is not None:
                gathering.repeated += len(dropped)
                repeated.update(dropped.tolist())
        gathering.doubtful += _differences(group, repeated) if repeated else 0
    return gathering.telemetry()


def _differences(group: list[Batch], repeated: set[int]) -> int:
    """How many records under these numbers differ from the first one. This is rare, so it goes record by record."""
    first: dict[int, Sequenced] = {}
    found = 0
    for batch in group:
        for each in batch.records():
            if each.seq in repeated:
                found += not same(first.setdefault(each.seq, each).record, each.record)
    return found


@dataclass(slots=True)
class _Pieces:
    """Columns of samples or of histograms, batch by batch."""

    series: list[Ints] = field(default_factory=lambda: [NO_INTS])
    seq: list[Ints] = field(default_factory=lambda: [NO_INTS])
    time_ns: list[Ints] = field(default_factory=lambda: [NO_INTS])
    value: list[Floats] = field(default_factory=lambda: [NO_FLOATS])
    buckets: list[Buckets] = field(default_factory=list)


class _Gathering:
    def __init__(self, since_ns: int | None, until_ns: int | None) -> None:
        self.repeated = self.doubtful = 0
        self._since_ns, self._until_ns = since_ns, until_ns
        self._samples, self._histograms = _Pieces(), _Pieces()
        self._series: dict[SeriesKey, int] = {}
        self._tables: dict[tuple[Any, ...], Ints] = {}
        """The numbers of the series in each table of series that was seen before."""
        self._label_sets: dict[Labels, int] = {}
        self._sources: list[Source] = []
        self._logs: list[tuple[Any, ...]] = []
        self._alerts = 0
        self._seqs: dict[tuple[str, str], list[Ints]] = {}

    def add(self, batch: Batch, dropped: Ints | None) -> None:
        """The records of a batch, without those whose numbers are dropped."""
        identity = batch.identity
        counted = self._seqs.setdefault((identity.agent_id, identity.boot_id), [])
        counted.append(self._add_points(self._samples, batch, batch.samples, None, dropped))
        counted.append(self._add_points(self._histograms, batch, batch.histograms.samples, batch.histograms, dropped))
        if len(batch.logs):
            counted.append(self._add_logs(batch, dropped))
        alerts = batch.alerts.seq[self._places(batch.alerts.seq, batch.alerts.time_ns, dropped)]
        self._alerts += len(alerts)
        counted.append(alerts)

    def telemetry(self) -> Telemetry:
        return Telemetry(
            self._points(self._samples, None),
            self._points(self._histograms, Buckets.joined(self._histograms.buckets)),
            self._log_lines(),
            self._alerts,
            self.repeated,
            self.doubtful,
            {source: np.concatenate(pieces) for source, pieces in self._seqs.items()},
        )

    def _add_points(
        self, pieces: _Pieces, batch: Batch, samples: Samples, histograms: Histograms | None, dropped: Ints | None
    ) -> Ints:
        """The numbers of the records that were added."""
        at = self._places(samples.seq, samples.time_ns, dropped)
        seq = samples.seq[at]
        if not len(seq):
            return seq
        pieces.series.append(np.repeat(self._numbers(batch, samples), samples.series.lengths)[at])
        pieces.seq.append(seq)
        pieces.time_ns.append(samples.time_ns[at])
        pieces.value.append(samples.value[at])
        if histograms is not None:
            buckets = Buckets(histograms.layouts, histograms.layout, histograms.rows, histograms.counts)
            pieces.buckets.append(buckets.take(at))
        return seq

    def _numbers(self, batch: Batch, samples: Samples) -> Ints:
        """The number of each series of a batch among all series."""
        own, sets = samples.series, batch.label_sets
        columns = (own.kind, own.name, own.labels, sets.lengths, sets.names, sets.values)
        agent, boot = batch.identity.agent_id, batch.identity.boot_id
        table = (agent, boot, batch.texts, *(column.tobytes() for column in columns))
        if table not in self._tables:
            labels, texts = [_sorted(each) for each in batch.labels()], batch.texts
            rows = zip(own.kind.tolist(), own.name.tolist(), own.labels.tolist(), strict=True)
            keys = [SeriesKey(texts[name], agent, labels[number], _KINDS[kind], boot) for kind, name, number in rows]
            self._tables[table] = np.array([self._series.setdefault(key, len(self._series)) for key in keys], np.int64)
        return self._tables[table]

    def _places(self, seq: Ints, time_ns: Ints, dropped: Ints | None) -> "Ints | slice":
        """Where the records are that are selected; usually all of them."""
        wanted: Flags | None = None if dropped is None else ~np.isin(seq, dropped)
        if len(seq) and self._since_ns is not None and int(time_ns.min()) < self._since_ns:
            late = time_ns >= self._since_ns
            wanted = late if wanted is None else wanted & late
        if len(seq) and self._until_ns is not None and int(time_ns.max()) >= self._until_ns:
            early = time_ns < self._until_ns
            wanted = early if wanted is None else wanted & early
        return slice(None) if wanted is None else np.flatnonzero(wanted)

    def _points(self, pieces: _Pieces, buckets: Buckets | None) -> Points:
        """With the series that have records, in order."""
        of = np.concatenate(pieces.series)
        used = np.flatnonzero(np.bincount(of, minlength=len(self._series)))
        keys = list(self._series)
        series, numbers = in_order([keys[number] for number in used.tolist()])
        renumbered = np.zeros(len(keys), np.int64)
        renumbered[used] = numbers
        columns = (np.concatenate(pieces.seq), np.concatenate(pieces.time_ns), np.concatenate(pieces.value))
        return Points(series, renumbered[of], *columns, buckets)

    def _add_logs(self, batch: Batch, dropped: Ints | None) -> Ints:
        """The numbers of the records that were added."""
        logs, identity = batch.logs, batch.identity
        at = self._places(logs.seq, logs.time_ns, dropped)
        keys = [_sorted(each) for each in batch.labels()]
        sets = np.array([self._label_sets.setdefault(key, len(self._label_sets)) for key in keys], np.int64)
        seq = logs.seq[at]
        source = np.full(len(seq), len(self._sources))
        self._sources.append(Source(identity.manifest_id, identity.agent_id, identity.boot_id))
        message = logs.message.take(pa.array(np.arange(len(logs))[at]))
        self._logs.append((source, seq, logs.time_ns[at], logs.severity[at], sets[logs.attributes[at]], message))
        return seq

    def _log_lines(self) -> LogLines:
        if not self._logs:
            return LogLines([], [], NO_INTS, NO_INTS, NO_INTS, NO_INTS, NO_INTS, pa.nulls(0, pa.string()))
        *numbers, message = zip(*self._logs, strict=True)
        source, seq, time_ns, severity, labels = (np.concatenate(each) for each in numbers)
        sets, messages = list(self._label_sets), pa.concat_arrays(message)
        return LogLines(self._sources, sets, source, seq, time_ns, severity, labels, messages)


def in_order(keys: Sequence[SeriesKey]) -> tuple[list[SeriesKey], Ints]:
    """The series in order, and for each old number the new one."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    numbers = np.empty(len(keys), np.int64)
    numbers[order] = np.arange(len(keys))
    return [keys[old] for old in order], numbers


def _sorted(labels: Mapping[str, str]) -> Labels:
    return tuple(sorted(labels.items()))
