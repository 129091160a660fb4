"""Encode a batch as a frame. ``docs/formats.md`` specifies the bytes.

Equal batches have equal payloads: every choice here depends on the batch alone. The compressed frame may differ between
versions of zstd, so a frame is made once, and every retry sends the same bytes.
"""

import numpy as np
import pyarrow as pa

from holdfast.telemetry.frame.batch import Alerts, Batch, Histograms, LabelSets, Logs, Samples
from holdfast.telemetry.frame.columns import Counts, Groups, Ints, Writer, to_whole
from holdfast.telemetry.frame.envelope import wrap
from holdfast.telemetry.frame.rules import check_batch

LEVEL = 3
"""Level of zstd. Levels up to 9 compress hardly better; 19 saves about 7 % at many times the cost."""


def encode(batch: Batch, *, level: int | None = LEVEL) -> bytes:
    """The frame of a batch. ``level`` is that of zstd; None leaves the payload uncompressed. Raises ``FrameInvalid``
    for a batch that breaks a rule."""
    check_batch(batch)
    return wrap(batch.identity, len(batch), payload_of(batch), level=level)


def payload_of(batch: Batch) -> bytes:
    writer = Writer()
    times, histogram_times = _times(batch.samples), _times(batch.histograms.samples)
    texts = [text.encode() for text in batch.texts]
    writer.raw(_counts(batch, texts, times, histogram_times).to_bytes())
    writer.ints(np.array([len(text) for text in texts], np.int64))
    writer.raw(b"".join(texts))
    _label_sets(writer, batch.label_sets)
    if len(batch.samples):
        _samples(writer, batch.samples, times)
    if len(batch.histograms):
        _samples(writer, batch.histograms.samples, histogram_times)
        _histograms(writer, batch.histograms)
    if len(batch.logs):
        _logs(writer, batch.logs)
    if len(batch.alerts):
        _alerts(writer, batch.alerts)
    return writer.payload()


def _counts(batch: Batch, texts: list[bytes], times: Ints | None, histogram_times: Ints | None) -> Counts:
    histograms = batch.histograms
    return Counts(
        texts=len(texts),
        text_bytes=sum(map(len, texts)),
        label_sets=len(batch.label_sets.lengths),
        pairs=len(batch.label_sets.names),
        series=len(batch.samples.series),
        samples=len(batch.samples),
        times=0 if times is None else len(times),
        histogram_series=len(histograms.samples.series),
        histograms=len(histograms),
        histogram_times=0 if histogram_times is None else len(histogram_times),
        layouts=len(histograms.layouts),
        bounds=sum(map(len, histograms.layouts)),
        buckets=sum(counts.size for counts in histograms.counts),
        logs=len(batch.logs),
        log_bytes=_text_bytes(batch.logs.message),
        alerts=len(batch.alerts),
        alert_bytes=_text_bytes(batch.alerts.message),
    )


def _times(samples: Samples) -> Ints | None:
    """The table of different times if they are at most half as many as samples; otherwise None."""
    if not len(samples):
        return None
    times = np.unique(samples.time_ns)
    return times if 2 * len(times) <= len(samples) else None


def _label_sets(writer: Writer, sets: LabelSets) -> None:
    writer.ints(sets.lengths)
    writer.steps(sets.names)
    writer.steps(sets.values)


def _samples(writer: Writer, samples: Samples, times: Ints | None) -> None:
    series = samples.series
    scales, numbers = to_whole(samples.value, samples.exact, series.whole, series.lengths)
    writer.ints(series.kind)
    writer.ints(scales)
    writer.steps(series.name)
    writer.steps(series.labels)
    writer.ints(series.lengths)
    groups = Groups(series.lengths, len(samples))
    writer.grouped(samples.seq, groups, related=True)
    if times is None:
        writer.grouped(samples.time_ns, groups, related=True)
    else:
        writer.steps(times)
        writer.grouped(np.searchsorted(times, samples.time_ns), groups, related=True)
    writer.grouped(numbers, groups, related=False)


def _histograms(writer: Writer, found: Histograms) -> None:
    writer.ints(np.array([len(bounds) for bounds in found.layouts], np.int64))
    writer.steps(np.concatenate([bounds.view(np.int64) for bounds in found.layouts]))
    writer.steps(found.layout)
    # Differences within a bucket: its count changes little from one histogram to the next.
    steps = [np.diff(counts, axis=0, prepend=0).T.reshape(-1) for counts in found.counts]
    writer.ints(np.concatenate(steps))


def _logs(writer: Writer, found: Logs) -> None:
    writer.steps(found.seq)
    writer.steps(found.time_ns)
    writer.ints(found.severity)
    writer.steps(found.attributes)
    _texts(writer, found.message)


def _alerts(writer: Writer, found: Alerts) -> None:
    writer.steps(found.seq)
    writer.steps(found.time_ns)
    writer.ints(found.state)
    writer.steps(found.name)
    writer.steps(found.labels)
    writer.ints(found.valued.astype(np.int64))
    writer.steps(found.value.view(np.int64))
    _texts(writer, found.message)


def _texts(writer: Writer, texts: pa.StringArray) -> None:
    encoded = [text.encode() for text in texts.to_pylist()]
    writer.ints(np.array([len(text) for text in encoded], np.int64))
    writer.raw(b"".join(encoded))


def _text_bytes(texts: pa.StringArray) -> int:
    return sum(len(text.encode()) for text in texts.to_pylist())
