"""Encodes and decodes rows of one window and one metric as Parquet, compressed with zstd.

The schema is part of the format (``docs/formats.md``). Rows are sorted by agent, labels, kind, boot and time. The same
rows give the same bytes with the same version of Arrow. Times of windows are timestamps in microseconds, which every
reader of Parquet supports; times of samples are nanoseconds since 1970 as whole numbers, which no reader rounds.

Errors: ``Corrupt`` for bytes that are not such a chunk, ``Incompatible`` for a chunk of another schema.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import Flags, Floats, Ints, Lists, lengths_of, offsets_of, starts_of_groups
from holdfast.telemetry.rollup.manifest import derive_again
from holdfast.telemetry.rollup.points import COUNTER, HISTOGRAM, SeriesKey
from holdfast.telemetry.rollup.rows import Rows

SCHEMA_NAME = "holdfast.rollup.v2"
LABELS = pa.map_(pa.string(), pa.string())
_TEXTS = ("metric", "agent", "kind", "boot", "labels.key_value.key", "labels.key_value.value", "batches.list.element")
_TIMES = ("window_start", "first_time_ns", "last_time_ns")
_SOUGHT = ("metric", "agent", "kind", "window_start", "name", "text")
"""Columns with statistics, by which readers skip row groups."""
ROW_GROUP = 1 << 16
"""Rows; small enough that a reader of one agent skips the others."""

SCHEMA = pa.schema(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("agent", pa.string(), nullable=False),
        pa.field("labels", LABELS, nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("boot", pa.string()),
        pa.field("window_start", pa.timestamp("us", "UTC"), nullable=False),
        pa.field("count", pa.int64(), nullable=False),
        pa.field("nans", pa.int64(), nullable=False),
        pa.field("sum", pa.float64(), nullable=False),
        pa.field("min", pa.float64()),
        pa.field("max", pa.float64()),
        pa.field("first", pa.float64()),
        pa.field("first_time_ns", pa.int64()),
        pa.field("last", pa.float64()),
        pa.field("last_time_ns", pa.int64()),
        pa.field("increase", pa.float64()),
        pa.field("resets", pa.int64()),
        pa.field("sketch_keys", pa.list_(pa.int32())),
        pa.field("sketch_counts", pa.list_(pa.int64())),
        pa.field("bounds", pa.list_(pa.float64())),
        pa.field("bucket_counts", pa.list_(pa.int64())),
    ]
)


def by_metric(rows: Rows) -> Iterator[tuple[str, Rows]]:
    """The rows of each metric, with its series alone. Series are in order, so those of a metric are neighbours."""
    begin = 0
    for name, series in groupby(rows.series, key=lambda key: key.name):
        own = list(series)
        end = begin + len(own)
        low, high = np.searchsorted(rows.series_id, [begin, end]).tolist()
        if high > low:
            some = rows.take(slice(low, high))
            yield name, replace(some, series=own, series_id=some.series_id - begin)
        begin = end


def table_of(rows: Rows) -> pa.Table:
    """The rows as a table of the schema, of any number of metrics."""
    of = pa.array(rows.series_id)
    has = rows.count > 0
    sampled = rows.buckets is None
    valued = has if sampled else np.zeros(len(rows), np.bool_)
    counters = np.fromiter((key.kind == COUNTER for key in rows.series), np.bool_, len(rows.series))[rows.series_id]
    timed = has if sampled else np.ones(len(rows), np.bool_)
    columns = [
        pa.array([key.name for key in rows.series], pa.string()).take(of),
        pa.array([key.agent for key in rows.series], pa.string()).take(of),
        label_maps([key.labels for key in rows.series]).take(of),
        pa.array([key.kind for key in rows.series], pa.string()).take(of),
        pa.array([key.boot for key in rows.series], pa.string()).take(of),
        pa.array(rows.start_ns // 1000).cast(pa.timestamp("us", "UTC")),
        pa.array(rows.count),
        pa.array(rows.nans),
        pa.array(rows.sum),
        _maybe(rows.min, valued),
        _maybe(rows.max, valued),
        _maybe(rows.first, timed),
        _maybe(rows.first_ns, timed),
        _maybe(rows.last, valued),
        _maybe(rows.last_ns, timed),
        _maybe(rows.increase, valued & counters),
        _maybe(rows.resets, valued & counters),
        *_sketch_columns(rows),
        *_bucket_columns(rows),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def encode(rows: Rows) -> bytes:
    """Of one metric."""
    metadata = {"holdfast.schema": SCHEMA_NAME, "holdfast.window": layout.window_name(rows.window_ns)}
    return to_parquet(table_of(rows).replace_schema_metadata(metadata))


def read(body: bytes, *, key: str) -> tuple[pa.Table, dict[str, str]]:
    """A chunk as a table, and its metadata."""
    return from_parquet(body, SCHEMA, SCHEMA_NAME, key=key)


def decode(body: bytes, *, key: str) -> Rows:
    """The rows in a chunk, all of gauges and counters or all of histograms."""
    table, metadata = read(body, key=key)
    try:
        return rows_of(table, layout.window_of(metadata["holdfast.window"]))
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise Corrupt(f"{key}: not a chunk of rows ({error})") from error


def rows_of(table: pa.Table, window_ns: int) -> Rows:
    """Rows from a table whose rows are in order, series by series."""
    table = table.combine_chunks()
    series, series_id = _series(table)

    def ints(name: str) -> Ints:
        found: Ints = pc.fill_null(table.column(name), 0).to_numpy().astype(np.int64)
        return found

    def floats(name: str) -> Floats:
        found: Floats = pc.fill_null(table.column(name), np.nan).to_numpy()
        return found

    start_ns = table.column("window_start").cast(pa.int64()).to_numpy() * 1000
    histograms = bool(series) and all(key.kind == HISTOGRAM for key in series)
    return Rows(
        series, window_ns, series_id, start_ns, ints("count"), ints("nans"), floats("sum"), floats("min"),
        floats("max"), floats("first"), floats("last"), ints("first_time_ns"), ints("last_time_ns"),
        floats("increase"), ints("resets"), sketches_of(table), buckets_of(table) if histograms else None,
    )  # fmt: skip


def label_maps(sets: Sequence[tuple[tuple[str, str], ...]]) -> pa.MapArray:
    offsets = np.zeros(len(sets) + 1, np.int32)
    np.cumsum([len(each) for each in sets], out=offsets[1:], dtype=np.int32)
    names = pa.array([name for each in sets for name, _ in each], pa.string())
    values = pa.array([value for each in sets for _, value in each], pa.string())
    return pa.MapArray.from_arrays(pa.array(offsets), names, values)


def to_parquet(table: pa.Table) -> bytes:
    names = set(table.column_names)
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        # Numbers as they are: dictionaries of them cost twice the time and save nothing after zstd.
        use_dictionary=[name for name in _TEXTS if name.split(".", maxsplit=1)[0] in names],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in _TIMES if name in names},
        write_statistics=[name for name in _SOUGHT if name in names],
        write_page_checksum=True,
        store_schema=False,  # Parquet's own says all; Arrow's beside it is a third of a small chunk
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        writer.add_key_value_metadata(metadata)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def from_parquet(body: bytes, schema: pa.Schema, name: str, *, key: str) -> tuple[pa.Table, dict[str, str]]:
    """The table in an object, if it has the schema of this name; and its metadata."""
    try:
        table = pq.read_table(pa.BufferReader(body), page_checksum_verification=True)
        metadata = {one.decode(): other.decode() for one, other in (table.schema.metadata or {}).items()}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key}: not Parquet ({str(error).splitlines()[0]})") from error
    if metadata.get("holdfast.schema") != name:
        raise Incompatible(
            f"{key}: schema {metadata.get('holdfast.schema')!r} is not {name!r}", remedy=derive_again(key)
        )
    try:
        return table.select(schema.names).cast(schema), metadata
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise Corrupt(f"{key}: its columns are not those of {name} ({str(error).splitlines()[0]})") from error


def _maybe(column: Ints | Floats, there: Flags) -> pa.Array:
    return pa.array(column, mask=~there)


def _sketch_columns(rows: Rows) -> tuple[pa.Array, pa.Array]:
    """A row without a sketch has NULL."""
    lists = rows.sketch
    offsets = pa.array(lists.offsets.astype(np.int32), mask=np.append(lists.lengths == 0, [False]))
    keys = pa.array(lists.keys.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, keys), pa.ListArray.from_arrays(offsets, pa.array(lists.counts))


def _bucket_columns(rows: Rows) -> tuple[pa.Array, pa.Array]:
    found = rows.buckets
    if found is None:
        return pa.nulls(len(rows), pa.list_(pa.float64())), pa.nulls(len(rows), pa.list_(pa.int64()))
    bounds = pa.array([each.tolist() for each in found.layouts], pa.list_(pa.float64())).take(pa.array(found.layout))
    tables = []
    for table in found.tables:
        offsets = np.arange(len(table) + 1, dtype=np.int32) * table.shape[1]
        tables.append(pa.ListArray.from_arrays(pa.array(offsets), pa.array(table.reshape(-1))))
    begins = offsets_of(np.array([len(table) for table in found.tables]))
    return bounds, pa.concat_arrays(tables).take(pa.array(begins[found.layout] + found.row))


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def sketches_of(table: pa.Table) -> Lists:
    keys, counts = _flat(table.column("sketch_keys")), _flat(table.column("sketch_counts"))
    flat_keys, flat_counts = (pc.list_flatten(each).to_numpy().astype(np.int64) for each in (keys, counts))
    if len(flat_keys) != len(flat_counts):
        raise ValueError("sketches have other numbers of keys than of counts")
    lengths = pc.fill_null(pc.list_value_length(keys), 0).to_numpy().astype(np.int64)
    return Lists(offsets_of(lengths), flat_keys, flat_counts)


def buckets_of(table: pa.Table) -> Buckets:
    bounds, counts = _flat(table.column("bounds")), _flat(table.column("bucket_counts"))
    lengths = bounds.value_lengths().to_numpy().astype(np.int64)
    layouts: list[Floats] = []
    tables: list[Ints] = []
    layout, row = np.zeros(len(lengths), np.int64), np.zeros(len(lengths), np.int64)
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        flat = pc.list_flatten(bounds.take(pa.array(places))).to_numpy().reshape(len(places), length)
        found, numbers = np.unique(flat, axis=0, return_inverse=True) if length else (flat[:1], np.zeros(len(places)))
        for number, each in enumerate(found):
            chosen = places[numbers.reshape(-1) == number]
            layout[chosen], row[chosen] = len(layouts), np.arange(len(chosen))
            layouts.append(each.astype(np.float64))
            own = pc.list_flatten(counts.take(pa.array(chosen))).to_numpy().astype(np.int64)
            tables.append(own.reshape(len(chosen), length + 1))
    return Buckets(tuple(layouts), layout, row, tuple(tables))


def _series(table: pa.Table) -> tuple[list[SeriesKey], Ints]:
    """The series, and the number of each row's. Only one row of each run of rows of a series becomes objects."""
    count = table.num_rows
    if not count:
        return [], np.zeros(0, np.int64)
    columns = [codes(table.column(name)) for name in ("metric", "agent", "kind", "boot")]
    starts = starts_of_groups(*columns, *_label_codes(_flat(table.column("labels"))))
    rows = table.select(["metric", "agent", "labels", "kind", "boot"]).take(pa.array(starts)).to_pylist()
    keys = [
        SeriesKey(row["metric"], row["agent"], tuple(sorted(row["labels"])), row["kind"], row["boot"]) for row in rows
    ]
    numbers: dict[SeriesKey, int] = {}
    of = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    return list(numbers), np.repeat(of, lengths_of(starts, count))


def codes(column: pa.ChunkedArray) -> Ints:
    """Numbers that are equal where the texts are."""
    found: Ints = _flat(column).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def _label_codes(labels: pa.MapArray) -> list[Ints]:
    """Columns that differ wherever the labels of neighbours differ."""
    lengths = np.diff(labels.offsets.to_numpy()).astype(np.int64)
    if not len(labels.items):
        return [lengths]
    texts = [_slice(labels, part).dictionary_encode().indices.to_numpy() for part in ("keys", "items")]
    columns = [lengths]
    ends = lengths.cumsum()
    for place in range(int(lengths.max())):
        has = lengths > place
        for text in texts:
            column = np.full(len(lengths), -1, np.int64)
            column[has] = text[(ends - lengths)[has] + place]
            columns.append(column)
    return columns


def _slice(labels: pa.MapArray, part: str) -> pa.Array:
    begin, end = labels.offsets[0].as_py(), labels.offsets[-1].as_py()
    found: pa.Array = getattr(labels, part)[begin:end]
    return found
