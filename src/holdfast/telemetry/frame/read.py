"""Decode a frame into a batch. Raises ``FrameInvalid`` and nothing else, whatever the bytes are.

Order of checks: length against the limit, head, checksum, declared sizes against the limits, decompression into exactly
the declared size, counts, columns, rules. No allocation is larger than the limits allow. The columns of a batch are
copies: they do not keep the frame or its payload in memory.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.telemetry.frame.batch import (
    NO_ALERTS,
    NO_HISTOGRAMS,
    NO_LOGS,
    NO_SAMPLES,
    Alerts,
    Batch,
    Histograms,
    LabelSets,
    Logs,
    Samples,
    Series,
)
from holdfast.telemetry.frame.columns import Counts, Floats, Groups, Ints, Reader, all_of, from_whole, least, most
from holdfast.telemetry.frame.envelope import FrameInvalid, Header, Limits, Reason, inspect, unwrap
from holdfast.telemetry.frame.rules import check_batch
from holdfast.telemetry.identity import BatchIdentity

PER_TEXT = 160
"""Bytes of a text as a Python object, in the table and in the set that finds duplicates."""
PER_LABEL = 32


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A frame whose payload is decompressed and whose counts are within the limits."""

    identity: BatchIdentity
    counts: Counts
    reader: Reader

    @property
    def table_bytes(self) -> int:
        """Estimated memory of texts and labels as Python objects: many times their size in the payload."""
        return PER_TEXT * self.counts.texts + PER_LABEL * self.counts.pairs

    def batch(self) -> Batch:
        """Decode and check all columns. Call it once: it reads the payload to its end."""
        batch = _read(self.identity, self.reader, self.counts)
        check_batch(batch)
        return batch


def decode(
    data: bytes | memoryview,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    *,
    header: Header | None = None,
) -> Batch:
    """The batch in a frame, completely checked. Pass the ``header`` that ``inspect`` returned for these bytes, if any,
    to avoid a second check of the envelope."""
    return unpack(data, limits, header).batch()


def unpack(data: bytes | memoryview, limits: Limits = Limits(), header: Header | None = None) -> Unpacked:  # noqa: B008  # frozen
    """The first half of ``decode``, for callers that reserve memory for the second half."""
    known = inspect(data, limits) if header is None else header
    reader = Reader(unwrap(data, known))
    return Unpacked(known.identity, Counts.read(reader, known.records, limits), reader)


def _read(identity: BatchIdentity, reader: Reader, counts: Counts) -> Batch:
    texts = _table(reader, counts)
    sets = LabelSets(reader.ints(counts.label_sets), reader.steps(counts.pairs), reader.steps(counts.pairs))
    samples = _samples(reader, counts.series, counts.samples, counts.times) if counts.samples else NO_SAMPLES
    histograms = _histograms(reader, counts) if counts.histograms else NO_HISTOGRAMS
    logs = _logs(reader, counts) if counts.logs else NO_LOGS
    alerts = _alerts(reader, counts) if counts.alerts else NO_ALERTS
    reader.finish()
    return Batch(identity, texts, counts.text_bytes, sets, samples, histograms, logs, alerts)


def _table(reader: Reader, counts: Counts) -> tuple[str, ...]:
    ends = _ends(reader.ints(counts.texts), counts.text_bytes).tolist()
    data = reader.raw(counts.text_bytes).tobytes()
    begins = [0, *ends[:-1]]
    try:
        if data.isascii():
            text = data.decode()
            return tuple([text[begin:end] for begin, end in zip(begins, ends, strict=False)])
        return tuple([data[begin:end].decode() for begin, end in zip(begins, ends, strict=False)])
    except UnicodeDecodeError as error:
        raise FrameInvalid(Reason.TEXT, f"a text is not UTF-8 ({error.reason})") from error


def _samples(reader: Reader, series: int, samples: int, times: int) -> Samples:
    kind, scales = reader.ints(series), reader.ints(series)
    name, labels = reader.steps(series), reader.steps(series)
    lengths = reader.ints(series)
    _ends(lengths, samples)
    if least(lengths) < 1:
        raise FrameInvalid(Reason.COLUMN, "a series has no samples")
    groups = Groups(lengths, samples)
    seq = reader.grouped(groups, related=True)
    time_ns = _times(reader, groups, times)
    value, exact, whole = from_whole(reader.grouped(groups, related=False), scales, lengths)
    return Samples(Series(kind, whole, name, labels, lengths), seq, time_ns, value, exact)


def _times(reader: Reader, groups: Groups, times: int) -> Ints:
    """The time of each sample: written as such, or as a row number in a table of ``times`` different times."""
    if not times:
        return reader.grouped(groups, related=True)
    table = reader.steps(times)
    if not all_of(table[1:] > table[:-1]):
        raise FrameInvalid(Reason.COLUMN, "the table of times is not in ascending order")
    numbers = reader.grouped(groups, related=True)
    if least(numbers) < 0 or most(numbers) >= times:
        raise FrameInvalid(Reason.COLUMN, f"a sample refers to a time outside the table of {times} times")
    return table[numbers]


def _histograms(reader: Reader, counts: Counts) -> Histograms:
    samples = _samples(reader, counts.histogram_series, counts.histograms, counts.histogram_times)
    sizes = reader.ints(counts.layouts)
    ends = _ends(sizes, counts.bounds)
    bounds: Floats = reader.steps(counts.bounds).view(np.float64)
    layout = reader.steps(counts.histograms)
    if least(layout) < 0 or most(layout) >= counts.layouts:
        raise FrameInvalid(
            Reason.COLUMN, f"a histogram refers to a layout outside the table of {counts.layouts} layouts"
        )
    rows = np.bincount(layout, minlength=counts.layouts)
    places = _ends(rows * (sizes + 1), counts.buckets)
    steps = reader.ints(counts.buckets)
    tables: list[Ints] = []
    for number, (size, height) in enumerate(zip(sizes.tolist(), rows.tolist(), strict=True)):
        end = int(places[number])
        of_layout = steps[end - height * (size + 1) : end].reshape(size + 1, height)
        tables.append(np.cumsum(of_layout, axis=1).T)
    layouts = tuple(np.split(bounds, ends[:-1]))
    return Histograms(samples, layouts, layout, tuple(tables))


def _logs(reader: Reader, counts: Counts) -> Logs:
    number = counts.logs
    seq, time_ns, severity, attributes = _columns(reader, number)
    return Logs(seq, time_ns, severity, attributes, _texts(reader, number, counts.log_bytes))


def _columns(reader: Reader, count: int) -> tuple[Ints, Ints, Ints, Ints]:
    return reader.steps(count), reader.steps(count), reader.ints(count), reader.steps(count)


def _alerts(reader: Reader, counts: Counts) -> Alerts:
    number = counts.alerts
    seq, time_ns, state, name = _columns(reader, number)
    labels = reader.steps(number)
    valued = reader.ints(number)
    if least(valued) < 0 or most(valued) > 1:
        raise FrameInvalid(Reason.COLUMN, "the flag of an alert's value is neither 0 nor 1")
    value: Floats = reader.steps(number).view(np.float64)
    message = _texts(reader, number, counts.alert_bytes)
    return Alerts(seq, time_ns, state, name, labels, valued.astype(np.bool_), value, message)


def _texts(reader: Reader, count: int, size: int) -> pa.StringArray:
    """A text column. ``check_batch`` checks that it is UTF-8."""
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = _ends(reader.ints(count), size)
    data = reader.raw(size).tobytes()
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def _ends(lengths: Ints, total: int) -> Ints:
    """The end of each piece. Checks that no length is negative and that they add up to ``total``."""
    ends = lengths.cumsum()
    # The sum cannot wrap around: lengths are at most ``total`` < 2**32, and fewer than 2**31, as the payload has their
    # bytes.
    within = not len(lengths) or (least(lengths) >= 0 and most(lengths) <= total)
    if not within or (int(ends[-1]) if len(lengths) else 0) != total:
        raise FrameInvalid(Reason.COLUMN, f"the lengths of a column do not add up to {total}")
    return ends
