"""Rows of a query: as a table for people, or as JSON, JSON lines or CSV; on standard output or in a file."""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.drafts import replacing
from holdfast.base.errors import Invalid
from holdfast.cli.options import Format
from holdfast.cli.output import Output, counted, csv_line, json_text
from holdfast.ontology.bulk.transfer import FileFormat, format_of

BATCH_ROWS = 1_000
DECIMAL_PLACES = 18
"""Of a column of decimals."""
TEXT_FILES = {Format.CSV: FileFormat.CSV, Format.JSONL: FileFormat.JSONL}

Row = Sequence[Any]


def format_for(out: Output, style: Format | None) -> Format:
    """The format of ``--format``; without one JSON for ``--json``, else a table."""
    return style if style is not None else Format.JSON if out.as_json else Format.TABLE


def show_table(out: Output, found: pa.Table, style: Format | None) -> None:
    _show(out, found.column_names, list(_rows(found)), style)


def show_rows(out: Output, rows: Sequence[Mapping[str, Any]], style: Format | None) -> None:
    """Print rows with the same names and any values."""
    _show(out, list(rows[0]) if rows else [], [list(row.values()) for row in rows], style)


def _show(out: Output, names: Sequence[str], rows: Sequence[Row], style: Format | None) -> None:
    match format_for(out, style):
        case Format.JSON:
            out.document([_document(names, row) for row in rows])
        case Format.TABLE:
            if names:
                out.grid(names, (list(map(_cell, row)) for row in rows))
            out.note(counted(len(rows), "row"))
        case plain:
            for line in _lines(names, rows, plain):
                out.escaped(line)


def _lines(names: Sequence[str], rows: Iterable[Row], style: Format, *, verbatim: bool = False) -> Iterator[str]:
    """JSON lines, or CSV, which in a file has all characters ``verbatim``."""
    if style is Format.JSONL:
        yield from (json_text(_document(names, row)) for row in rows)
        return
    yield csv_line(names, verbatim=verbatim)
    yield from (csv_line(map(_text, row), verbatim=verbatim) for row in rows)


def _rows(found: pa.Table) -> Iterator[Row]:
    for batch in found.to_batches(max_chunksize=BATCH_ROWS):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _document(names: Sequence[str], row: Row) -> dict[str, Any]:
    return dict(zip(names, map(json_value, row), strict=True))


def json_value(value: Any) -> Any:
    """The JSON form of a value of a query."""
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return int(value) if value.as_tuple().exponent == 0 else _decimal(value)  # sums of whole numbers are whole
        case bytes():
            return base64.b64encode(value).decode()  # as in the store
        case list():
            return [json_value(each) for each in value]
        case dict():
            return {key: json_value(each) for key, each in value.items()}
    return value


def _decimal(value: Decimal) -> str:
    """Without the trailing zeros that the places of its column add."""
    if value.as_tuple().exponent != -DECIMAL_PLACES:
        return str(value)
    return format(value, "f").rstrip("0").rstrip(".")


def _text(value: Any) -> str:
    """A cell of CSV."""
    plain = json_value(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _cell(value: Any) -> Any:
    """A cell of a table."""
    plain = json_value(value)
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    return repr(plain) if isinstance(plain, float) else plain


def file_format(path: Path, style: Format | None) -> FileFormat:
    """The format of a file, by ``--format`` or its extension; called before anything is read."""
    remedy = "name it .parquet, .arrow, .csv or .jsonl, or add --format csv or jsonl"
    if style is not None and style not in TEXT_FILES:
        raise Invalid(f"a file is not written as {style}", remedy=remedy)
    try:
        return format_of(path, None if style is None else TEXT_FILES[style])
    except Invalid as error:
        raise Invalid(str(error), remedy=remedy) from error


def save(out: Output, path: Path, file: FileFormat, table: pa.Table) -> None:
    """Write a file that appears when it is complete."""
    try:
        with replacing(path) as draft:
            _write(draft, file, table)
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be written") from error
    out.record({"rows": table.num_rows, "file": str(path)})


def _write(path: Path, file: FileFormat, table: pa.Table) -> None:
    match file:
        case FileFormat.PARQUET:
            pq.write_table(table, path, compression="zstd")
        case FileFormat.ARROW:
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        case text:
            style = Format(text.value)
            with path.open("w", encoding="utf-8", newline="") as opened:
                lines = _lines(table.column_names, _rows(table), style, verbatim=True)
                opened.writelines(f"{line}\n" for line in lines)
