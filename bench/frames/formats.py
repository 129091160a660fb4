"""The same samples in each format. Each begins with columns in memory, sorted by series, and ends with such columns.

The others get what suits them: names and labels as dictionaries, the same order, one thread. They check what their
readers check; ours checks every rule of a batch.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ingest.frame import Batch, decode, encode
from holdfast.ingest.frame.arrow import samples_of, series_of

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
    samples, series = samples_of(batch), series_of(batch)
    number = samples.column("series")
    labels = pa.array([json.dumps(dict(pairs)) for pairs in series.column("labels").to_pylist()])
    wide = {
        "kind": series.column("kind").dictionary_encode().take(number),
        "name": series.column("name").dictionary_encode().take(number),
        "labels": labels.dictionary_encode().take(number),
        "time": samples.column("time"),
        "value": samples.column("value"),
        "seq": samples.column("seq"),
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
