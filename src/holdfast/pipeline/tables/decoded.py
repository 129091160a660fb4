"""Records of batches as rows, each (agent, boot, sequence number) once. Pure.

Of batches that share numbers the one of the lower identity keeps each of them, as everywhere
(``telemetry.rollup.extract``). Records dated more than a day after their batch was accepted are in no table, as they
are in no hour.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.pipeline.tables.table import TIMESTAMP, TimeSpan
from holdfast.telemetry.accept.record_times import TimeLimits
from holdfast.telemetry.frame import Batch, Histograms, Samples
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.overlaps import repeated_numbers
from holdfast.telemetry.records import Kind, State
from holdfast.telemetry.rollup.chunk import LABELS, label_maps

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_PLACE = [("agent", pa.string()), ("boot", pa.string()), ("seq", pa.int64())]
_TIME = [("time", TIMESTAMP), ("time_ns", pa.int64())]
SAMPLES = pa.schema(
    [
        *_PLACE,
        ("metric", pa.string()),
        ("kind", pa.string()),
        ("labels", LABELS),
        *_TIME,
        ("value", pa.float64()),
        ("sum", pa.float64()),
        ("bounds", pa.list_(pa.float64())),
        ("bucket_counts", pa.list_(pa.int64())),
    ]
)
LOGS = pa.schema([*_PLACE, ("severity", pa.int64()), ("labels", LABELS), *_TIME, ("message", pa.string())])
ALERTS = pa.schema(
    [
        *_PLACE,
        ("name", pa.string()),
        ("state", pa.string()),
        ("labels", LABELS),
        *_TIME,
        ("value", pa.float64()),
        ("message", pa.string()),
    ]
)
SCHEMAS = {"samples": SAMPLES, "logs": LOGS, "alerts": ALERTS}
_STATES = {int(each): each.name.lower() for each in State}


@dataclass(frozen=True)
class Accepted:
    """A batch, and when it was accepted."""

    batch: Batch
    at_ns: int
    before: bool = False
    """Its numbers were returned before: it comes before all others."""


def rows(
    table: str,
    cluster: Sequence[Accepted],
    span: TimeSpan,
    metrics: Callable[[str], bool],
    given: frozenset[BatchIdentity] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of batches that may share numbers. With ``given``, only those of the batches with these identities: the
    others are read to take away what is theirs."""
    ordered = sorted(cluster, key=lambda each: (not each.before, each.batch.identity))
    dropped = repeated_numbers([each.batch.seqs for each in ordered]) if len(ordered) > 1 else [None] * len(ordered)
    for each, gone in zip(ordered, dropped, strict=True):
        if given is not None and each.batch.identity not in given:
            continue
        for batch in _MAKERS[table](each.batch, _Chosen(each, gone, span), metrics):
            if batch.num_rows:
                yield batch


@dataclass(frozen=True)
class _Chosen:
    """Which records of a batch count."""

    accepted: Accepted
    dropped: Ints | None
    span: TimeSpan

    def __call__(self, seq: Ints, time_ns: Ints) -> Flags:
        wanted: Flags = time_ns < TimeLimits.by_default(self.accepted.at_ns).until_ns
        if self.dropped is not None:
            wanted &= ~np.isin(seq, self.dropped)
        if self.span.since_ns is not None:
            wanted &= time_ns >= self.span.since_ns
        if self.span.until_ns is not None:
            wanted &= time_ns < self.span.until_ns
        return wanted


def _samples(batch: Batch, chosen: _Chosen, metrics: Callable[[str], bool]) -> Iterator[pa.RecordBatch]:
    labels = label_maps([tuple(sorted(each.items())) for each in batch.labels()])
    for samples, histograms in ((batch.samples, None), (batch.histograms.samples, batch.histograms)):
        if len(samples):
            yield _sampled(batch, samples, histograms, labels, chosen, metrics)


def _sampled(
    batch: Batch,
    samples: Samples,
    histograms: Histograms | None,
    labels: pa.MapArray,
    chosen: _Chosen,
    metrics: Callable[[str], bool],
) -> pa.RecordBatch:
    series = samples.series
    names = [batch.texts[each] for each in series.name.tolist()]
    meant = np.array([metrics(each) for each in names], np.bool_)
    at = np.flatnonzero(chosen(samples.seq, samples.time_ns) & np.repeat(meant, series.lengths))
    of = samples.series_id[at]
    taken = pa.array(of)
    kinds = pa.array([Kind(each).name.lower() for each in series.kind.tolist()], pa.string())
    seq, time_ns, value = samples.seq[at], samples.time_ns[at], pa.array(samples.value[at])
    own = {
        **_placed(batch, seq, time_ns),
        "metric": pa.array(names, pa.string()).take(taken),
        "kind": kinds.take(taken),
        "labels": labels.take(pa.array(series.labels[of])),
        "value": value,
        "sum": pa.nulls(len(at), pa.float64()),
        "bounds": pa.nulls(len(at), pa.list_(pa.float64())),
        "bucket_counts": pa.nulls(len(at), pa.list_(pa.int64())),
    }
    if histograms is not None:
        bounds = pa.array([each.tolist() for each in histograms.layouts], pa.list_(pa.float64()))
        own |= {
            "value": pa.nulls(len(at), pa.float64()),
            "sum": value,
            "bounds": bounds.take(pa.array(histograms.layout[at])),
            "bucket_counts": pa.array(_counts(histograms, at), pa.list_(pa.int64())),
        }
    return _batch(SAMPLES, own)


def _counts(histograms: Histograms, at: Ints) -> list[list[int]]:
    rows = histograms.rows
    return [histograms.counts[int(histograms.layout[each])][int(rows[each])].tolist() for each in at.tolist()]


def _logs(batch: Batch, chosen: _Chosen, metrics: Callable[[str], bool]) -> Iterator[pa.RecordBatch]:
    logs = batch.logs
    if not len(logs):
        return
    labels = label_maps([tuple(sorted(each.items())) for each in batch.labels()])
    at = np.flatnonzero(chosen(logs.seq, logs.time_ns))
    yield _batch(
        LOGS,
        {
            **_placed(batch, logs.seq[at], logs.time_ns[at]),
            "severity": pa.array(logs.severity[at], pa.int64()),
            "labels": labels.take(pa.array(logs.attributes[at])),
            "message": logs.message.take(pa.array(at)),
        },
    )


def _alerts(batch: Batch, chosen: _Chosen, metrics: Callable[[str], bool]) -> Iterator[pa.RecordBatch]:
    alerts = batch.alerts
    if not len(alerts):
        return
    labels = label_maps([tuple(sorted(each.items())) for each in batch.labels()])
    at = np.flatnonzero(chosen(alerts.seq, alerts.time_ns))
    yield _batch(
        ALERTS,
        {
            **_placed(batch, alerts.seq[at], alerts.time_ns[at]),
            "name": pa.array([batch.texts[each] for each in alerts.name[at].tolist()], pa.string()),
            "state": pa.array([_STATES.get(each, str(each)) for each in alerts.state[at].tolist()], pa.string()),
            "labels": labels.take(pa.array(alerts.labels[at])),
            "value": pa.array(alerts.value[at], mask=~alerts.valued[at]),
            "message": alerts.message.take(pa.array(at)),
        },
    )


def _placed(batch: Batch, seq: Ints, time_ns: Ints) -> dict[str, Any]:
    count, own = len(seq), batch.identity
    return {
        "agent": pa.repeat(pa.scalar(own.agent_id, pa.string()), count),
        "boot": pa.repeat(pa.scalar(own.boot_id, pa.string()), count),
        "seq": pa.array(seq, pa.int64()),
        "time": pa.array(time_ns // 1000, pa.int64()).cast(TIMESTAMP),
        "time_ns": pa.array(time_ns, pa.int64()),
    }


def _batch(schema: pa.Schema, columns: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


_MAKERS = {"samples": _samples, "logs": _logs, "alerts": _alerts}
