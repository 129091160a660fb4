"""Encodes and decodes rows of one window and one metric as Parquet, compressed with zstd.

The schema is part of the format: ``docs/formats.md`` has it. Rows stand by agent, labels, kind, boot and
time. The same rows give the same bytes with the same version of Arrow. Times of windows are timestamps in microseconds,
which every reader of Parquet knows; times of samples are nanoseconds since 1970 as whole numbers, which none rounds.

Errors: ``Corrupt`` for bytes that are no such chunk, ``Incompatible`` for one of a schema that is not known here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.buckets import Buckets
from holdfast.telemetry.rollup.columns import Flags, Floats, Ints, Lists, lengths_of, starts_of_groups
from holdfast.telemetry.rollup.points import COUNTER, HISTOGRAM, SeriesKey
from holdfast.telemetry.rollup.rollup import Rows

SCHEMA_NAME = "holdfast.rollup.v2"
OLDER_SCHEMA_NAME = "holdfast.rollup.v1"
"""Without ``boot``: all boots of a series are in one row. Such chunks are read where their batches have expired."""
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
    """The rows of each metric, with its series alone, which stand together because series are in order."""
    offsets = rows.sketch.offsets
    begin = 0
    while begin < len(rows.series):
        name = rows.series[begin].name
        end = begin
        while end < len(rows.series) and rows.series[end].name == name:
            end += 1
        low, high = np.searchsorted(rows.series_id, [begin, end]).tolist()
        if high > low:
            yield name, rows.cut(low, high, rows.series[begin:end], begin, offsets)
        begin = end


def table_of(rows: Rows) -> pa.Table:
    """The rows as a table of the schema, of any number of metrics."""
    of = pa.array(rows.series_id)
    has = rows.count > 0
    sampled = rows.buckets is None
    known = has if sampled else np.zeros(len(rows), np.bool_)
    first = has if sampled else ~np.isnan(rows.first)
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
        _maybe(rows.min, known),
        _maybe(rows.max, known),
        _maybe(rows.first, first),
        _maybe(rows.first_ns, timed),
        _maybe(rows.last, known),
        _maybe(rows.last_ns, timed),
        _maybe(rows.increase, known & counters),
        _maybe(rows.resets, known & counters),
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
    return from_parquet(body, SCHEMA, SCHEMA_NAME, OLDER_SCHEMA_NAME, key=key)


def decode(body: bytes, *, key: str) -> Rows:
    """The rows in a chunk, all of gauges and counters or all of histograms."""
    table, metadata = read(body, key=key)
    try:
        return rows_of(table, layout.window_of(metadata["holdfast.window"]))
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise Corrupt(f"{key}: not a chunk of rows ({error})") from error


def rows_of(table: pa.Table, window_ns: int) -> Rows:
    """Rows from a table whose rows stand in order, series by series."""
    table = table.combine_chunks()
    series, series_id = _series(table)
    start_ns = table.column("window_start").cast(pa.int64()).to_numpy() * 1000
    histograms = bool(series) and all(key.kind == HISTOGRAM for key in series)
    return replace(
        samples_of(table),
        series=series,
        window_ns=window_ns,
        series_id=series_id,
        start_ns=start_ns,
        buckets=buckets_of(table) if histograms else None,
    )


def samples_of(table: pa.Table) -> Rows:
    """The columns of figures, without series and times of windows."""

    def ints(name: str) -> Ints:
        found: Ints = pc.fill_null(table.column(name), 0).to_numpy().astype(np.int64)
        return found

    def floats(name: str) -> Floats:
        found: Floats = pc.fill_null(table.column(name), np.nan).to_numpy()
        return found

    none = np.zeros(table.num_rows, np.int64)
    sketches = _lists(table.column("sketch_keys"), table.column("sketch_counts"))
    return Rows(
        [], 0, none, none, ints("count"), ints("nans"), floats("sum"), floats("min"), floats("max"), floats("first"),
        floats("last"), ints("first_time_ns"), ints("last_time_ns"), floats("increase"), ints("resets"), sketches,
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


def from_parquet(body: bytes, schema: pa.Schema, *names: str, key: str) -> tuple[pa.Table, dict[str, str]]:
    """The table in an object, if it has one of these schemas; and its metadata. The first name is the current schema;
    columns that an older one does not have are null."""
    try:
        table = pq.read_table(pa.BufferReader(body), page_checksum_verification=True)
        metadata = {one.decode(): other.decode() for one, other in (table.schema.metadata or {}).items()}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise Corrupt(f"{key}: not Parquet ({str(error).splitlines()[0]})") from error
    if metadata.get("holdfast.schema") not in names:
        raise Incompatible(
            f"{key}: schema {metadata.get('holdfast.schema')!r} is not {names[0]!r}",
            remedy="upgrade holdfast on this machine, or find out who wrote this object",
        )
    missing = [each for each in schema.names if each not in table.column_names]
    if missing and metadata["holdfast.schema"] == names[0]:
        raise Corrupt(f"{key}: column {', '.join(missing)} is missing")
    for each in missing:
        table = table.append_column(schema.field(each), pa.nulls(table.num_rows, schema.field(each).type))
    try:
        return table.select(schema.names).cast(schema), metadata
    except (pa.ArrowException, ValueError) as error:
        raise Corrupt(f"{key}: its columns are not those of {names[0]} ({str(error).splitlines()[0]})") from error


def _maybe(column: Ints | Floats, there: Flags) -> pa.Array:
    return pa.array(column, mask=~there)


def _sketch_columns(rows: Rows) -> tuple[pa.Array, pa.Array]:
    lists = rows.sketch
    offsets = pa.array(_offsets(lists.lengths), mask=np.append(lists.lengths == 0, [False]))
    keys = pa.array(lists.keys.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, keys), pa.ListArray.from_arrays(offsets, pa.array(lists.counts))


def _offsets(lengths: Ints) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    offsets = np.zeros(len(lengths) + 1, np.int32)
    lengths.cumsum(out=offsets[1:], dtype=np.int32)
    return offsets


def _bucket_columns(rows: Rows) -> tuple[pa.Array, pa.Array]:
    found = rows.buckets
    if found is None:
        return pa.nulls(len(rows), pa.list_(pa.float64())), pa.nulls(len(rows), pa.list_(pa.int64()))
    bounds = pa.array([each.tolist() for each in found.layouts], pa.list_(pa.float64())).take(pa.array(found.layout))
    parts, base = [], np.zeros(len(found.tables), np.int64)
    total = 0
    for number, table in enumerate(found.tables):
        width = table.shape[1]
        parts.append(pa.ListArray.from_arrays(
            pa.array(np.arange(len(table) + 1, dtype=np.int32) * width), pa.array(table.reshape(-1))
        ))  # fmt: skip
        base[number], total = total, total + len(table)
    if not parts:
        return bounds, pa.nulls(len(rows), pa.list_(pa.int64()))
    counts = pa.concat_arrays(parts).take(pa.array(base[found.layout] + found.row))
    return bounds, counts


def _flat(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _lists(keys: pa.ChunkedArray, counts: pa.ChunkedArray) -> Lists:
    lengths: Ints = pc.fill_null(pc.list_value_length(keys), 0).to_numpy().astype(np.int64)
    flat, times = pc.list_flatten(_flat(keys)), pc.list_flatten(_flat(counts))
    if len(flat) != len(times):
        raise ValueError("a sketch has more keys than counts, or fewer")
    return Lists(lengths, flat.to_numpy().astype(np.int64), times.to_numpy().astype(np.int64))


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
    """Series by where the rows of one end: names, agents and kinds by their dictionaries, labels as text."""
    count = table.num_rows
    if not count:
        return [], np.zeros(0, np.int64)
    codes = [_codes(table.column(name)) for name in ("metric", "agent", "kind", "boot")]
    starts = starts_of_groups(*codes, *_label_codes(_flat(table.column("labels"))))
    rows = table.select(["metric", "agent", "labels", "kind", "boot"]).take(pa.array(starts)).to_pylist()
    keys = [
        SeriesKey(row["metric"], row["agent"], tuple(sorted(row["labels"])), row["kind"], row["boot"] or "")
        for row in rows
    ]
    known: dict[SeriesKey, int] = {}
    numbers = np.array([known.setdefault(key, len(known)) for key in keys])
    return list(known), np.repeat(numbers, lengths_of(starts, count))


def _codes(column: pa.ChunkedArray) -> Ints:
    found: Ints = pc.fill_null(_flat(column), "").dictionary_encode().indices.to_numpy().astype(np.int64)
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
