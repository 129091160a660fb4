"""Result tables on the command line: for people, or as JSON, JSON lines or CSV."""

import base64
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.drafts import replacing
from holdfast.base.errors import Invalid
from holdfast.cli.output import Output, csv_line, json_text
from holdfast.ontology.bulk.transfer import FileFormat, format_of

BATCH = 1_000
PLACES = 18
"""Of the column of a Decimal."""


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


Row = Sequence[Any]


def chosen(out: Output, style: Format | None) -> Format:
    """The format that was given; without one JSON for ``--json``, else a table."""
    return style if style is not None else Format.JSON if out.as_json else Format.TABLE


def show(out: Output, found: pa.Table, style: Format | None) -> None:
    _print(out, found.column_names, _rows(found), found.num_rows, style)


def show_groups(out: Output, groups: Sequence[Mapping[str, Any]], style: Format | None) -> None:
    """Print rows of any values, which may differ in kind within a column."""
    names = list(groups[0]) if groups else []
    _print(out, names, ([group[name] for name in names] for group in groups), len(groups), style)


def _print(out: Output, names: Sequence[str], rows: Iterable[Row], count: int, style: Format | None) -> None:
    match chosen(out, style):
        case Format.JSON:
            out.document([_document(names, row) for row in rows])
        case Format.TABLE:
            out.table(names, (list(map(cell, row)) for row in rows))
            out.note(f"{count} {'row' if count == 1 else 'rows'}")
        case plain:
            for line in _lines(names, rows, plain):
                out.escaped(line)


def _document(names: Sequence[str], row: Row) -> dict[str, Any]:
    """A row as JSON has it."""
    return dict(zip(names, map(_plain, row), strict=True))


def _lines(names: Sequence[str], rows: Iterable[Row], style: Format, *, verbatim: bool = False) -> Iterator[str]:
    """JSON lines, or CSV, which in a file has all characters ``verbatim``."""
    if style is Format.JSONL:
        yield from (json_text(_document(names, row)) for row in rows)
        return
    yield csv_line(names, verbatim=verbatim)
    yield from (csv_line(map(_text, row), verbatim=verbatim) for row in rows)


def _rows(found: pa.Table) -> Iterator[Row]:
    for batch in found.to_batches(max_chunksize=BATCH):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


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
        return base64.b64encode(value).decode()  # as the store has it
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {key: _plain(each) for key, each in value.items()} if isinstance(value, dict) else value


def _decimal(value: Decimal) -> str:
    """Decimal columns have eighteen places: without trailing zeros."""
    if value.as_tuple().exponent != -PLACES:
        return str(value)
    return format(value, "f").rstrip("0").rstrip(".")


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def cell(value: Any) -> Any:
    """For people."""
    plain = _plain(value)
    if isinstance(plain, dict | list):
        return json.dumps(plain, ensure_ascii=False)
    return repr(plain) if isinstance(plain, float) else plain


FILES = {Format.CSV: FileFormat.CSV, Format.JSONL: FileFormat.JSONL}


# --- into files ---


def file_format(path: Path, style: Format | None) -> FileFormat:
    """Before anything is read."""
    remedy = "name it .parquet, .arrow, .csv or .jsonl, or add --format csv or jsonl"
    if style is not None and style not in FILES:
        raise Invalid(f"a file is not written as {style}", remedy=remedy)
    try:
        return format_of(path, None if style is None else FILES[style])
    except Invalid as error:
        raise Invalid(str(error), remedy=remedy) from error


def save(out: Output, path: Path, file: FileFormat, table: pa.Table) -> None:
    with _draft(path) as draft:
        style = next((each for each, known in FILES.items() if known is file), None)
        if style is not None:
            with draft.open("w", encoding="utf-8", newline="") as opened:
                found = _lines(table.column_names, _rows(table), style, verbatim=True)
                opened.writelines(f"{line}\n" for line in found)
        elif file is FileFormat.PARQUET:
            pq.write_table(table, draft, compression="zstd")
        else:
            with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
    out.record({"rows": table.num_rows, "file": str(path)})


@contextmanager
def _draft(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path`` that replaces it when the block ends without an error."""
    try:
        with replacing(path) as draft:
            yield draft
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be written") from error
