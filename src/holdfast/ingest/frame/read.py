"""From the bytes of a frame to a batch. Raises ``FrameInvalid`` and nothing else, whatever the bytes are.

Order of checks: length against the limit, head, checksum, declared sizes against the limits, decompression into exactly
the declared size, counts, columns, rules. So nothing is allocated that the limits do not allow.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.ingest.frame.batch import (
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
from holdfast.ingest.frame.columns import Groups, Ints, Reader, least, most
from holdfast.ingest.frame.counts import Counts
from holdfast.ingest.frame.envelope import Header, Identity, Limits, Packed
from holdfast.ingest.frame.errors import FrameInvalid, Reason
from holdfast.ingest.frame.read_again import read_again
from holdfast.ingest.frame.repeated import Repeated
from holdfast.ingest.frame.rules import check_batch
from holdfast.ingest.frame.scales import Floats, Scaling
from holdfast.ingest.frame.times import read_times

PER_TEXT = 160
"""A text as an object, in the table and in the set that shows that it is there once."""
PER_LABEL = 32


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A frame whose payload is decompressed, and whose counts are known to be within the limits."""

    packed: Packed
    counts: Counts
    reader: Reader

    @property
    def table_bytes(self) -> int:
        """What texts and labels take as objects, about: many times what they take in the payload."""
        return PER_TEXT * self.counts.texts + PER_LABEL * self.counts.pairs

    def batch(self, repeated: Repeated | None = None) -> Batch:
        """Once: the payload is read to its end."""
        identity, counts, reader = self.packed.header.identity, self.counts, self.reader
        beginning = None if repeated is None else repeated.beginning(reader, counts)
        if repeated is None or beginning is None:
            batch = _read(identity, reader, counts)
            check_batch(batch)
            return batch
        tables = repeated.tables.find(beginning.key)
        if tables is not None:
            return read_again(self.packed, reader, counts, tables, beginning, repeated)
        batch = _read(identity, reader, counts)
        check_batch(batch)
        repeated.keep(beginning, batch)
        return batch


def decode(
    data: bytes | memoryview,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    *,
    header: Header | None = None,
    repeated: Repeated | None = None,
) -> Batch:
    """The batch in a frame, checked throughout. ``header``: what ``inspect`` gave for it, if that was asked before.

    ``repeated`` makes frames quicker that have tables of earlier ones.
    """
    return unpack(data, limits, header).batch(repeated)


def unpack(data: bytes | memoryview, limits: Limits = Limits(), header: Header | None = None) -> Unpacked:  # noqa: B008  # frozen
    """The first half of ``decode``, for those who look at how much memory the other half will take."""
    packed = Packed(data, Header.read(data, limits) if header is None else header)
    reader = Reader(packed.payload())
    return Unpacked(packed, Counts.read(reader, packed.header.records, limits), reader)


def _read(identity: Identity, reader: Reader, counts: Counts) -> Batch:
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
    scaling, groups = Scaling(scales, lengths, samples), Groups(lengths, samples)
    seq = reader.grouped(groups, related=True)
    _, time_ns = read_times(reader, groups, times)
    value, exact = scaling.values(reader.grouped(groups, related=False))
    return Samples(Series(kind, scaling.whole, name, labels, lengths), seq, time_ns, value, exact)


def _histograms(reader: Reader, counts: Counts) -> Histograms:
    samples = _samples(reader, counts.histogram_series, counts.histograms, counts.histogram_times)
    sizes = reader.ints(counts.layouts)
    ends = _ends(sizes, counts.bounds)
    bounds: Floats = reader.steps(counts.bounds).view(np.float64)
    layout = reader.steps(counts.histograms)
    if least(layout) < 0 or most(layout) >= counts.layouts:
        raise FrameInvalid(Reason.COLUMN, f"a histogram has a layout that is not among the {counts.layouts}")
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
        raise FrameInvalid(Reason.COLUMN, "an alert has a value, or it has none")
    value: Floats = reader.steps(number).view(np.float64)
    message = _texts(reader, number, counts.alert_bytes)
    return Alerts(seq, time_ns, state, name, labels, valued.astype(np.bool_), value, message)


def _texts(reader: Reader, count: int, size: int) -> pa.StringArray:
    """Texts as Arrow keeps them. Whether they are UTF-8 is for the rules to say."""
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = _ends(reader.ints(count), size)
    data = reader.raw(size).tobytes()
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def _ends(lengths: Ints, total: int) -> Ints:
    """Where each piece ends, if the lengths are none below zero and add up to the total."""
    ends = lengths.cumsum()
    # A sum cannot wrap around unnoticed: each length is within the total, so the sum grows by less than it.
    within = not len(lengths) or (least(lengths) >= 0 and most(lengths) <= total)
    if not within or (int(ends[-1]) if len(lengths) else 0) != total:
        raise FrameInvalid(Reason.COLUMN, f"lengths do not add up to {total}")
    return ends
