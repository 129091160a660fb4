"""The same samples in each format. Each begins with columns in memory, sorted by series, and ends with such columns.

The others get what suits them: names and labels as dictionaries, the same order, one thread. They check what their
readers check; ours checks every rule of a batch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.telemetry.frame import Batch, decode, encode
from holdfast.telemetry.records import Kind

LEVEL = 3
"""Of zstd, for all of them."""


@dataclass(frozen=True)
class Format:
    name: str
    prepare: Callable[[Batch], Any]
    """What encoding begins with. Not measured."""
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def table_of(batch: Batch) -> pa.Table:
    """One flat table with everything that a frame of samples holds besides its identity."""
    samples, series = batch.samples, batch.samples.series
    number = pa.array(samples.series_id.astype(np.int32))
    kinds = pa.array([Kind(kind).name.lower() for kind in series.kind.tolist()])
    names = pa.array([batch.texts[name] for name in series.name.tolist()])
    sets = batch.labels()
    labels = pa.array([json.dumps(sets[row]) for row in series.labels.tolist()])
    wide = {
        "kind": kinds.dictionary_encode().take(number),
        "name": names.dictionary_encode().take(number),
        "labels": labels.dictionary_encode().take(number),
        "time": pa.array(samples.time_ns).cast(pa.timestamp("ns", "UTC")),
        "value": pa.array(samples.value),
        "seq": pa.array(samples.seq),
    }
    return pa.table(wide)


def to_parquet(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=LEVEL, **options)
    return bytes(sink.getvalue())


def to_tuned_parquet(table: pa.Table) -> bytes:
    encodings = {"time": "DELTA_BINARY_PACKED", "seq": "DELTA_BINARY_PACKED", "value": "BYTE_STREAM_SPLIT"}
    return to_parquet(table, use_dictionary=["kind", "name", "labels"], column_encoding=encodings)


def from_parquet(data: bytes) -> pa.Table:
    return pq.read_table(pa.BufferReader(data), use_threads=False)


def to_ipc(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", compression_level=LEVEL), use_threads=False)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def from_ipc(data: bytes) -> pa.Table:
    return pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()


OURS = Format("frame", lambda batch: batch, lambda batch: encode(batch, level=LEVEL), decode)
OTHERS = (
    Format("parquet", table_of, to_parquet, from_parquet),
    Format("parquet, encodings chosen by hand", table_of, to_tuned_parquet, from_parquet),
    Format("arrow ipc", table_of, to_ipc, from_ipc),
)
