"""A batch's columns as Arrow, for engines: samples, and the series that they refer to, without a loop over samples."""

import numpy as np
import pyarrow as pa

from holdfast.ingest.frame.batch import Batch, Samples
from holdfast.ingest.records import Kind

SAMPLES = pa.schema(
    [
        pa.field("series", pa.int32(), nullable=False),
        pa.field("time", pa.timestamp("ns", "UTC"), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
        pa.field("seq", pa.int64(), nullable=False),
    ]
)
SERIES = pa.schema(
    [
        pa.field("series", pa.int32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
    ]
)


def samples_of(batch: Batch) -> pa.RecordBatch:
    """Gauges and counters, series by series. ``series`` is the row of ``series_of`` with the same number."""
    found = batch.samples
    times = pa.array(found.time_ns).cast(pa.timestamp("ns", "UTC"))
    columns = [pa.array(found.series_id.astype(np.int32)), times, pa.array(found.value), pa.array(found.seq)]
    return pa.RecordBatch.from_arrays(columns, schema=SAMPLES)


def series_of(batch: Batch, samples: Samples | None = None) -> pa.RecordBatch:
    """The series of the batch's samples, or of its histograms if ``samples`` are theirs."""
    series = (batch.samples if samples is None else samples).series
    texts = pa.array(batch.texts, pa.string())
    kinds = pa.array([kind.name.lower() for kind in Kind])
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.arange(len(series), dtype=np.int32)),
            kinds.take(pa.array(series.kind)),
            texts.take(pa.array(series.name)),
            _label_sets(batch, texts).take(pa.array(series.labels)),
        ],
        schema=SERIES,
    )


def _label_sets(batch: Batch, texts: pa.StringArray) -> pa.MapArray:
    sets = batch.label_sets
    offsets = np.zeros(len(sets.lengths) + 1, np.int32)
    sets.lengths.cumsum(out=offsets[1:], dtype=np.int32)
    names, values = texts.take(pa.array(sets.names)), texts.take(pa.array(sets.values))
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)
