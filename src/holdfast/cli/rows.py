"""Result tables on the command line: for people, or as JSON, JSON lines or CSV."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pyarrow as pa

from holdfast.cli.output import Output

BATCH = 1_000
PLACES = 18
"""Of the column of a Decimal."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


def show(
    out: Output, found: pa.Table, style: Format | None, *, read: Mapping[str, Callable[[str], Any]] | None = None
) -> None:
    """``--json`` means JSON where nothing else is asked for. ``read`` says what a column's text means."""
    chosen = style if style is not None else Format.JSON if out.as_json else Format.TABLE
    names = found.column_names
    match chosen:
        case Format.JSON:
            out.document([_named(names, row, read or {}) for row in _rows(found, _plain)])
        case Format.JSONL:
            for row in _rows(found, _plain):
                out.document(_named(names, row, read or {}))
        case Format.CSV:
            out.raw(_csv_line(names))
            for row in _rows(found, _text):
                out.raw(_csv_line(row))
        case Format.TABLE:
            out.table(names, _rows(found, _cell))
            out.note(f"{found.num_rows} {'row' if found.num_rows == 1 else 'rows'}")


def show_groups(out: Output, groups: Sequence[Mapping[str, Any]], style: Format | None) -> None:
    """Groups and their figures: values of any kind, also of several in one column."""
    chosen = style if style is not None else Format.JSON if out.as_json else Format.TABLE
    names = list(groups[0]) if groups else []
    match chosen:
        case Format.JSON:
            out.document([{name: _plain(value) for name, value in group.items()} for group in groups])
        case Format.JSONL:
            for group in groups:
                out.document({name: _plain(value) for name, value in group.items()})
        case Format.CSV:
            out.raw(_csv_line(names))
            for group in groups:
                out.raw(_csv_line([_text(group[name]) for name in names]))
        case Format.TABLE:
            out.table(names, ([_cell(group[name]) for name in names] for group in groups))
            out.note(f"{len(groups)} {'row' if len(groups) == 1 else 'rows'}")


def _named(names: Sequence[str], row: Sequence[Any], read: Mapping[str, Callable[[str], Any]]) -> dict[str, Any]:
    values = dict(zip(names, row, strict=True))
    return {name: read[name](one) if name in read and one is not None else one for name, one in values.items()}


def _rows(found: pa.Table, convert: Any) -> Iterator[list[Any]]:
    for batch in found.to_batches(max_chunksize=BATCH):
        columns = [column.to_pylist() for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield [convert(value) for value in row]


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return int(value) if exponent == 0 else _decimal(value)  # sums of whole numbers are whole
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def _decimal(value: Decimal) -> str:
    """Columns of fields have eighteen places, and who wrote 19.90 does not want to see them all."""
    if value.as_tuple().exponent != -PLACES:
        return str(value)
    return format(value, "f").rstrip("0").rstrip(".")


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _cell(value: Any) -> Any:
    plain = _plain(value)
    return repr(plain) if isinstance(plain, float) else plain


def _csv_line(row: list[str]) -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator="").writerow(row)
    return sink.getvalue()
