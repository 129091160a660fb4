"""From accepted batches to points: each (agent, boot, sequence number) once, by series of all batches.

Of two batches that share numbers the one of the lower identity counts, record by record, in whatever order they are
given (correction 10). Records that are dropped so are compared with those that count: different content under one
number is counted and reported.

Nothing loops over records, and a set of series that an agent sends again and again is looked up as a whole, so that
thousands of small batches cost little more than their columns.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.telemetry.frame import Batch, Histograms, Samples, Sequenced
from holdfast.telemetry.records import Kind, same
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.counted import NOTHING, Taken, seqs_of
from holdfast.telemetry.rollup.points import (
    AlertChanges,
    Doubt,
    HistogramPoints,
    Labels,
    LogLines,
    Points,
    SeriesKey,
    Source,
    Telemetry,
    in_order,
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

MOST_DOUBTS = 100
"""How many conflicting records are named; all are counted."""
_KINDS = {kind: kind.name.lower() for kind in Kind}


def telemetry_of(
    batches: Iterable[Batch], since_ns: int | None = None, until_ns: int | None = None, taken: Taken = NOTHING
) -> Telemetry:
    """All records of these batches in [since, until), each once, without those that closed hours take away. The order
    of batches does not matter.
    """
    gathered = _Gathered(since_ns, until_ns, taken)
    for cluster in clusters(batches):
        if len(cluster) == 1 and not taken.concerns(cluster[0]):
            gathered.add(cluster[0], None, None)
        else:
            gathered.add_overlapping(cluster)
    return gathered.telemetry()


def clusters(batches: Iterable[Batch]) -> Iterable[list[Batch]]:
    """Batches by identity; those whose ranges overlap together. The same identity twice is one batch."""
    cluster: list[Batch] = []
    reach = -1
    for batch in sorted(batches, key=lambda each: each.identity):
        own = batch.identity
        if cluster and cluster[-1].identity == own:
            continue
        apart = cluster and (
            (own.agent_id, own.boot_id) != (cluster[0].identity.agent_id, cluster[0].identity.boot_id)
            or own.seq_start > reach
        )
        if apart:
            yield cluster
            cluster, reach = [], -1
        cluster.append(batch)
        reach = max(reach, own.seq_end)
    if cluster:
        yield cluster


@dataclass(slots=True)
class _Column:
    """Samples or histograms, piece by piece."""

    series: list[Ints] = field(default_factory=list)
    time_ns: list[Ints] = field(default_factory=list)
    value: list[npt.NDArray[np.float64]] = field(default_factory=list)
    buckets: list[Buckets] = field(default_factory=list)

    def columns(self) -> tuple[Ints, Ints, npt.NDArray[np.float64]]:
        none = np.zeros(0, np.int64)
        return (
            np.concatenate([none, *self.series]),
            np.concatenate([none, *self.time_ns]),
            np.concatenate([none.view(np.float64), *self.value]),
        )


class _Gathered:
    def __init__(self, since_ns: int | None, until_ns: int | None, taken: Taken) -> None:
        self._since_ns, self._until_ns, self._taken = since_ns, until_ns, taken
        self._samples, self._histograms = _Column(), _Column()
        self._series: dict[SeriesKey, int] = {}
        self._tables: dict[tuple[Any, ...], Ints] = {}
        """Numbers of series for tables that were seen before."""
        self._label_sets: dict[Labels, int] = {}
        self._sources: list[Source] = []
        self._logs: list[tuple[Any, ...]] = []
        self._alerts: list[tuple[Any, ...]] = []
        self._repeated = self._doubtful = 0
        self._doubts: list[Doubt] = []
        self._seqs: dict[tuple[str, str], list[Ints]] = {}

    def add(self, batch: Batch, dropped: Ints | None, order: "_Ordered | None") -> None:
        """The records of a batch, without those whose numbers are dropped."""
        if len(batch.samples):
            self._add_samples(batch, batch.samples, None, dropped, order)
        if len(batch.histograms):
            self._add_samples(batch, batch.histograms.samples, batch.histograms, dropped, order)
        if len(batch.logs) or len(batch.alerts):
            own = batch.identity
            self._sources.append(Source(batch.identity.manifest_id, own.agent_id, own.boot_id))
            self._add_texts(batch, dropped)

    def add_overlapping(self, cluster: list[Batch]) -> None:
        """Batches that share a range, by identity. The first that has a number in an open hour keeps it."""
        seqs = [seqs_of(each) for each in cluster]
        everything = np.concatenate(seqs)
        free = [self._taken.free(each, own) for each, own in zip(cluster, seqs, strict=True)]
        places = np.flatnonzero(np.concatenate(free))
        again = np.ones(len(everything), np.bool_)
        again[places[np.unique(everything[places], return_index=True)[1]]] = False
        order = _Ordered()
        end = 0
        for batch, own in zip(cluster, seqs, strict=True):
            begin, end = end, end + len(own)
            dropped = own[again[begin:end]]
            self._repeated += len(dropped)
            self.add(batch, dropped if len(dropped) else None, order)
        order.settle(self._samples, order.samples)
        order.settle(self._histograms, order.histograms)
        if again.any():
            self._compare(cluster, set(everything[again].tolist()))

    def telemetry(self) -> Telemetry:
        return Telemetry(
            self._points(),
            self._histogram_points(),
            self._log_lines(),
            self._alert_changes(),
            self._repeated,
            tuple(self._doubts),
            self._doubtful,
            self._seqs,
        )

    # --- samples ---

    def _add_samples(
        self,
        batch: Batch,
        samples: Samples,
        histograms: Histograms | None,
        dropped: Ints | None,
        order: "_Ordered | None",
    ) -> None:
        numbers = self._numbers(batch, samples)
        of = np.repeat(numbers, samples.series.lengths)
        places = self._chosen(samples.seq, samples.time_ns, dropped)
        if places is not None and not len(places):
            return
        column = self._samples if histograms is None else self._histograms
        seq, time_ns, value = samples.seq, samples.time_ns, samples.value
        buckets = None if histograms is None else _buckets(histograms)
        if places is not None:
            of, seq, time_ns, value = of[places], seq[places], time_ns[places], value[places]
            buckets = None if buckets is None else buckets.take(places)
        self._count(batch, seq)
        if order is None and len(np.unique(numbers)) < len(numbers):
            # One series as whole numbers and as floats: two in the frame, one here, in the order of their numbers.
            by_seq = np.argsort(seq, kind="stable")
            of, time_ns, value = of[by_seq], time_ns[by_seq], value[by_seq]
            buckets = None if buckets is None else buckets.take(by_seq)
        if order is not None:
            (order.samples if histograms is None else order.histograms).append(seq)
        column.series.append(of)
        column.time_ns.append(time_ns)
        column.value.append(value)
        if buckets is not None:
            column.buckets.append(buckets)

    def _numbers(self, batch: Batch, samples: Samples) -> Ints:
        """The number of each series of a batch among all series."""
        own, sets = samples.series, batch.label_sets
        columns = (own.kind, own.name, own.labels, sets.lengths, sets.names, sets.values)
        table = (
            batch.identity.agent_id,
            batch.identity.boot_id,
            batch.texts,
            *(column.tobytes() for column in columns),
        )
        numbers = self._tables.get(table)
        if numbers is None:
            numbers = self._tables[table] = self._interned(batch, samples)
        return numbers

    def _interned(self, batch: Batch, samples: Samples) -> Ints:
        labels = [tuple(sorted(each.items())) for each in batch.labels()]
        agent, boot = batch.identity.agent_id, batch.identity.boot_id
        texts, own = batch.texts, samples.series
        rows = zip(own.kind.tolist(), own.name.tolist(), own.labels.tolist(), strict=True)
        keys = [SeriesKey(texts[name], agent, labels[number], _KINDS[Kind(kind)], boot) for kind, name, number in rows]
        return np.array([self._series.setdefault(key, len(self._series)) for key in keys], np.int64)

    def _chosen(self, seq: Ints, time_ns: Ints, dropped: Ints | None) -> Ints | None:
        """The positions that are selected; None for all."""
        wanted: Flags | None = None if dropped is None else ~np.isin(seq, dropped)
        if len(seq) and self._since_ns is not None and int(time_ns.min()) < self._since_ns:
            late = time_ns >= self._since_ns
            wanted = late if wanted is None else wanted & late
        if len(seq) and self._until_ns is not None and int(time_ns.max()) >= self._until_ns:
            early = time_ns < self._until_ns
            wanted = early if wanted is None else wanted & early
        return None if wanted is None else np.flatnonzero(wanted)

    def _points(self) -> Points:
        series_id, time_ns, value = self._samples.columns()
        series, of = self._in_order(series_id)
        return Points(series, of, time_ns, value)

    def _histogram_points(self) -> HistogramPoints:
        series_id, time_ns, value = self._histograms.columns()
        series, of = self._in_order(series_id)
        return HistogramPoints(series, of, time_ns, value, Buckets.joined(self._histograms.buckets))

    def _in_order(self, series_id: Ints) -> tuple[list[SeriesKey], Ints]:
        """The series that have records, in order, and the new number of each record's."""
        used = np.flatnonzero(np.bincount(series_id, minlength=len(self._series)))
        keys = list(self._series)
        series, numbers = in_order([keys[number] for number in used.tolist()])
        renumbered = np.zeros(len(keys), np.int64)
        renumbered[used] = numbers
        return series, renumbered[series_id]

    # --- logs and alerts ---

    def _add_texts(self, batch: Batch, dropped: Ints | None) -> None:
        sets = [self._label_set(each) for each in batch.labels()]
        numbers = np.array(sets, np.int64)
        source = len(self._sources) - 1
        logs, alerts = batch.logs, batch.alerts
        if len(logs):
            at = _all_or(self._chosen(logs.seq, logs.time_ns, dropped), len(logs))
            columns = (logs.seq[at], logs.time_ns[at], logs.severity[at], numbers[logs.attributes[at]])
            self._count(batch, columns[0])
            self._logs.append((source, *columns, logs.message.take(pa.array(at))))
        if len(alerts):
            at = _all_or(self._chosen(alerts.seq, alerts.time_ns, dropped), len(alerts))
            value = np.where(alerts.valued[at], alerts.value[at], np.nan)
            columns = (alerts.seq[at], alerts.time_ns[at], alerts.state[at], numbers[alerts.labels[at]])
            self._count(batch, columns[0])
            names = pa.array([batch.texts[name] for name in alerts.name[at].tolist()], pa.string())
            self._alerts.append((source, *columns, value, names, alerts.message.take(pa.array(at))))

    def _count(self, batch: Batch, seqs: Ints) -> None:
        self._seqs.setdefault((batch.identity.agent_id, batch.identity.boot_id), []).append(seqs)

    def _label_set(self, labels: dict[str, str]) -> int:
        return self._label_sets.setdefault(tuple(sorted(labels.items())), len(self._label_sets))

    def _log_lines(self) -> LogLines:
        if not self._logs:
            return LogLines.empty()
        _, seq, time_ns, severity, labels, message = zip(*self._logs, strict=True)
        columns: list[Any] = [np.concatenate(each) for each in (seq, time_ns, severity, labels)]
        columns.append(pa.concat_arrays(message))
        return LogLines(self._sources, list(self._label_sets), _sources(self._logs), *columns)

    def _alert_changes(self) -> AlertChanges:
        if not self._alerts:
            return AlertChanges.empty()
        _, seq, time_ns, state, labels, value, names, messages = zip(*self._alerts, strict=True)
        numbers = [np.concatenate(each) for each in (seq, time_ns, state, labels, value)]
        texts = [pa.concat_arrays(each) for each in (names, messages)]
        return AlertChanges(self._sources, list(self._label_sets), _sources(self._alerts), *numbers, *texts)

    # --- the same number twice ---

    def _compare(self, cluster: list[Batch], shared: set[int]) -> None:
        """Count the numbers under which a dropped record is not the one that counts. Seldom, so record by record."""
        kept: dict[int, tuple[Sequenced, str]] = {}
        for batch in cluster:
            manifest_id = batch.identity.manifest_id
            for each in batch.records():
                if each.seq not in shared:
                    continue
                winner, owner = kept.setdefault(each.seq, (each, manifest_id))
                if winner is each or same(winner.record, each.record):
                    continue
                self._doubtful += 1
                if len(self._doubts) < MOST_DOUBTS:
                    own = batch.identity
                    self._doubts.append(Doubt(own.agent_id, own.boot_id, each.seq, owner, manifest_id))


@dataclass(slots=True)
class _Ordered:
    """Brings the records of overlapping batches into the order of their numbers, where their pieces stand."""

    samples: list[Ints] = field(default_factory=list)
    histograms: list[Ints] = field(default_factory=list)

    def settle(self, column: _Column, seqs: Sequence[Ints]) -> None:
        count = len(seqs)
        if not count:
            return
        order = np.argsort(np.concatenate(seqs), kind="stable")
        every: tuple[list[Any], ...] = (column.series, column.time_ns, column.value)
        for pieces in every:
            pieces[-count:] = [np.concatenate(pieces[-count:])[order]]
        if column.buckets:
            column.buckets[-count:] = [Buckets.joined(column.buckets[-count:]).take(order)]


def _buckets(histograms: Histograms) -> Buckets:
    row = np.zeros(len(histograms), np.int64)
    for number in range(len(histograms.layouts)):
        chosen = histograms.layout == number
        row[chosen] = np.arange(int(chosen.sum()))
    return Buckets(histograms.layouts, histograms.layout, row, histograms.counts)


def _all_or(places: Ints | None, count: int) -> Ints:
    return np.arange(count) if places is None else places


def _sources(pieces: list[tuple[Any, ...]]) -> Ints:
    return np.repeat([piece[0] for piece in pieces], [len(piece[1]) for piece in pieces]).astype(np.int64)
