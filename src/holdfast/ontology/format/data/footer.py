"""Statistics of a data file from its Parquet footer, and sketches of the keys of a small file."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.columns import complete_forms
from holdfast.ontology.format.stats import ROWS_MAX, Bound, FileStats, Span, sketch_of
from holdfast.ontology.types import names

REDACTED = b"holdfast.redacted"
"""Metadata of a file that has lost payload: the latest commit whose redaction changed it."""
_ORDERED = {"text", "int", "float", "timestamp", "date"}
"""Forms of columns with useful bounds."""
COLUMNS_MAX = 8
TEXT_MAX = 32


def stats_of(body: bytes, *, key: str, unique: bool = True) -> FileStats:
    """The statistics of a file. ``unique`` is known to its writer."""
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            found = of_footer(file.metadata, len(body), unique=unique)
            return replace(found, sketches=_sketches(file)) if found.rows <= ROWS_MAX else found
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key}: not a Parquet file ({error})") from error


def _sketches(file: pq.ParquetFile) -> tuple[bytes, ...]:
    """Sketches of the key of an entity, or of both ends of a relation."""
    present = set(file.schema_arrow.names)
    keys = names.ENTITY_KEYS if names.ENTITY_KEYS[0] in present else names.RELATION_KEYS[:2]
    table = file.read(columns=[name for name in keys if name in present], use_threads=False)
    if table.num_columns != len(keys) or any(column.null_count for column in table.columns):
        return ()
    return tuple(sketch_of(column.to_pylist()) for column in table.columns)


def of_groups(footer: Any, columns: Collection[str]) -> list[FileStats]:
    """The statistics of each row group, for these columns."""
    every = range(footer.num_row_groups)
    return [of_footer(footer, 0, unique=False, groups=[number], some=columns) for number in every]


def last_end(footer: Any, group: int) -> int | None:
    """The last commit that ended a row of a row group; None if some rows have no end, or if it is unknown."""
    span = span_of(footer, names.UNTIL, [group])
    return span.high if span.nulls == 0 and type(span.high) is int else None


def span_of(footer: Any, name: str, groups: Sequence[int]) -> Span:
    """The span of a column of this name over these row groups."""
    return _span(footer, footer.schema.names.index(name), groups)


def of_footer(
    footer: Any,
    size: int,
    *,
    unique: bool,
    groups: Sequence[int] | None = None,
    some: Collection[str] | None = None,
) -> FileStats:
    """The statistics of all row groups or some, for the given columns or for the most useful ones."""
    groups = range(footer.num_row_groups) if groups is None else groups
    places = {footer.schema.column(number).path: number for number in range(footer.num_columns)}
    keys = names.ENTITY_KEYS if names.ENTITY_KEYS[0] in places else names.RELATION_KEYS
    spans = tuple(_span(footer, places[name], groups) if name in places else Span(None, None) for name in keys)
    metadata = footer.metadata or {}
    forms = complete_forms(metadata) or {}
    found = {
        name: _span(footer, number, groups)
        for name, number in places.items()
        if forms.get(name) in _ORDERED and (some is None or name in some)
    }
    useful = {name: span for name, span in found.items() if span.low is not None or span.high is not None or span.nulls}
    # Numbers and times come first: they prune better than texts, and are shorter.
    chosen = sorted(useful, key=lambda name: (isinstance(useful[name].low, str), name))
    if some is None:
        chosen = chosen[:COLUMNS_MAX]
    columns = {name: useful[name] for name in chosen}
    return FileStats(footer.num_rows, size, unique, spans, columns, redacted=int(metadata.get(REDACTED, b"0")))


def _span(footer: Any, number: int, groups: Sequence[int]) -> Span:
    """The span of a column over these row groups; unknown if it is unknown for a group with values."""
    lows: list[Any] = []
    highs: list[Any] = []
    nulls: int | None = 0
    for group in groups:
        column = footer.row_group(group).column(number)
        stats = column.statistics
        if stats is None:
            return Span(None, None)
        nulls = nulls + stats.null_count if nulls is not None and stats.has_null_count else None
        if stats.has_min_max:
            lows.append(stats.min)
            highs.append(stats.max)
        elif stats.num_values:
            return Span(None, None, nulls)
    if not lows:
        return Span(None, None, nulls)
    try:
        return Span(_low(min(lows)), _high(max(highs)), nulls)
    except TypeError:  # values that cannot be compared
        return Span(None, None, nulls)


def _low(value: Any) -> Bound:
    return value[:TEXT_MAX] if isinstance(value, str) else _plain(value)


def _high(value: Any) -> Bound:
    return None if isinstance(value, str) and len(value) > TEXT_MAX else _plain(value)


def _plain(value: Any) -> Bound:
    """The bound in JSON form; None for a value without a simple order."""
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else None
