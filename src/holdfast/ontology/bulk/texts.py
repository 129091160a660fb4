"""Tables from CSV and JSON lines, for imports and loads.

The cell of a text field is the text. Any other cell is JSON, or else a text that the class may understand. An empty
cell is null, and a cell of a text field that begins with a quote is JSON too. A JSON number for a Decimal keeps its
digits. A field that some of the JSON lines lack has its default there, or else null.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa

from holdfast.ontology.format.data.intake import JSON_TEXT
from holdfast.ontology.format.data.rows import field_texts
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.typeinfo import ENDS, TypeInfo

READ_ROWS = 8_192
"""Rows of a table."""
_TEXTS = {"text", "timestamp", "date", "decimal", "blob"}
"""Forms of columns whose values are text in JSON."""

csv.field_size_limit(sys.maxsize)  # the module's own limit is 128 KiB


def is_text(info: TypeInfo, name: str) -> bool:
    return name in ENDS or name not in info.payload or info.forms[name] in _TEXTS


def csv_tables(lines: Iterable[str], info: TypeInfo) -> Iterator[pa.Table]:
    reader = csv.reader(lines, strict=True)
    names = next(reader, [])
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidValue(f"the file has two columns {repeated[0]}", type_name=info.name, field=repeated[0])
    rows = _numbered_rows(reader, len(names), info)
    while some := list(islice(rows, READ_ROWS)):
        cells = zip(names, zip(*some, strict=True), strict=True)
        yield _table([_cell_column(info, name, column) for name, column in cells])


def _numbered_rows(reader: Iterable[list[str]], width: int, info: TypeInfo) -> Iterator[list[str]]:
    for number, row in enumerate(filter(None, reader)):
        if len(row) != width:
            raise _unfit(info, number, f"it has not as many cells as there are columns ({width})")
        yield row


def _cell_column(info: TypeInfo, name: str, cells: Sequence[str]) -> tuple[pa.Field, pa.Array]:
    if name not in info.shown:
        return _column(name, [cell or None for cell in cells])
    text = is_text(info, name)
    values = [_parsed(cell, text=text) for cell in cells]
    if text and info.forms.get(name, "text") == "text":
        return _column(name, values)
    return _json_column(name, [None if value is None else json.dumps(value) for value in values])


def _parsed(cell: str, *, text: bool) -> Any:
    if not cell:
        return None
    if text and not cell.startswith('"'):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def json_tables(lines: Iterable[str], info: TypeInfo) -> Iterator[pa.Table]:
    rows = _documents(lines, info)
    others: dict[str, pa.DataType | None] = {}
    """Columns that are not fields, and their types in the tables so far."""
    while some := list(islice(rows, READ_ROWS)):
        columns = []
        for name in dict.fromkeys([*(name for row in some for name in row), *others]):
            if name in info.shown:
                columns.append(_json_column(name, [_json_text(info, name, row) for row in some]))
                continue
            columns.append(_column(name, [row.get(name) for row in some], others.get(name)))
            kind = columns[-1][0].type
            others[name] = None if pa.types.is_null(kind) else kind
        yield _table(columns)


def _json_text(info: TypeInfo, name: str, row: dict[str, Any]) -> str | None:
    if name not in row and name in info.fields and info.fields[name].has_default:
        return field_texts(info, name, [info.default_of(name)])[0]
    value = row.get(name)
    return None if value is None else json.dumps(value)


def _documents(lines: Iterable[str], info: TypeInfo) -> Iterator[dict[str, Any]]:
    decimals = [name for name in info.payload if info.forms[name] == "decimal"]
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found = json.loads(line, object_pairs_hook=_distinct)
        except (ValueError, RecursionError) as error:
            raise _unfit(info, number, f"not JSON ({error})") from error
        if not isinstance(found, dict):
            raise _unfit(info, number, "not a JSON object")
        if rounded := [name for name in decimals if isinstance(found.get(name), float)]:
            exact = json.loads(line, parse_float=Decimal)
            found |= {name: str(exact[name]) for name in rounded}
        yield found


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _unfit(info: TypeInfo, number: int, reason: str) -> InvalidValue:
    return InvalidValue(f"row {number}: {reason}", type_name=info.name, row=number)


def _column(name: str, values: list[Any], kind: pa.DataType | None = pa.string()) -> tuple[pa.Field, pa.Array]:  # noqa: B008  # it is immutable
    array = pa.array(values, kind)
    return pa.field(name, array.type), array


def _json_column(name: str, texts: list[str | None]) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, pa.string(), metadata=JSON_TEXT), pa.array(texts, pa.string())


def _table(columns: list[tuple[pa.Field, pa.Array]]) -> pa.Table:
    return pa.Table.from_arrays([array for _, array in columns], schema=pa.schema([own for own, _ in columns]))
