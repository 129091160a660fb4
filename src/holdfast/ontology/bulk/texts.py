"""Rows of CSV and JSON lines: the values of each for an import, and tables of them for a load. Both mean the same.

The cell of a text field is the text. Any other is JSON, or else a text that the class may understand. An empty cell is
null, and a cell of a text field that begins with a quote is JSON too. A number of JSON in the place of a Decimal keeps
its digits.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa

from holdfast.ontology.format.data.intake import VALUE_TEXT
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.typeinfo import ENDS, TypeInfo

READ_ROWS = 8_192
"""Rows of a file that are validated together."""
_TEXTS = {"text", "timestamp", "date", "decimal", "blob"}
"""Forms of columns whose values are text in JSON."""

csv.field_size_limit(sys.maxsize)  # a text may be longer than the 128 KiB that the module allows by itself


def is_text(info: TypeInfo, name: str) -> bool:
    return name in ENDS or name not in info.payload or info.forms[name] in _TEXTS


def unfit(info: TypeInfo, number: int, reason: str) -> InvalidValue:
    return InvalidValue(f"row {number}: {reason}", type_name=info.name, row=number)


# --- values ---


def csv_values(lines: Iterable[str], info: TypeInfo) -> Iterator[dict[str, Any]]:
    names, rows = _csv_rows(lines, info)
    texts = [name in info.shown and is_text(info, name) for name in names]
    for row in rows:
        yield {name: _parsed(cell, text=text) for name, cell, text in zip(names, row, texts, strict=True)}


def _csv_rows(lines: Iterable[str], info: TypeInfo) -> tuple[list[str], Iterator[list[str]]]:
    reader = csv.reader(lines, strict=True)
    names = next(reader, [])
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidValue(f"the file has two columns {twice[0]}", type_name=info.name, field=twice[0])

    def rows() -> Iterator[list[str]]:
        for number, row in enumerate(filter(None, reader)):
            if len(row) != len(names):
                raise unfit(info, number, f"it has not as many cells as there are columns ({len(names)})")
            yield row

    return names, rows()


def _parsed(cell: str, *, text: bool) -> Any:
    if not cell:
        return None
    if text and not cell.startswith('"'):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def json_values(lines: Iterable[str], info: TypeInfo) -> Iterator[dict[str, Any]]:
    decimals = [name for name in info.payload if info.forms[name] == "decimal"]
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise unfit(info, number, f"not JSON ({error})") from error
        if not isinstance(found, dict):
            raise unfit(info, number, "not a JSON object")
        if rounded := [name for name in decimals if isinstance(found.get(name), float)]:
            exact = json.loads(line, parse_float=Decimal)
            found |= {name: str(exact[name]) for name in rounded}
        yield found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


# --- tables ---


def csv_tables(lines: Iterable[str], info: TypeInfo) -> Iterator[pa.Table]:
    """Columns of texts, and of the JSON of values."""
    names, rows = _csv_rows(lines, info)
    while some := list(islice(rows, READ_ROWS)):
        yield _table([_cells(info, name, cells) for name, cells in zip(names, zip(*some, strict=True), strict=True)])


def _cells(info: TypeInfo, name: str, cells: Iterable[str]) -> tuple[pa.Field, pa.Array]:
    if name not in info.shown:
        return _column(name, [cell or None for cell in cells])
    text = is_text(info, name)
    values = [_parsed(cell, text=text) for cell in cells]
    return _column(name, values) if text and info.forms.get(name, "text") == "text" else _value_column(name, values)


def json_tables(lines: Iterable[str], info: TypeInfo) -> Iterator[pa.Table]:
    """The JSON of fields; other columns as they are. What a line does not have is null."""
    rows = json_values(lines, info)
    others: dict[str, pa.DataType | None] = {}
    while some := list(islice(rows, READ_ROWS)):
        columns = []
        for name in dict.fromkeys([*(name for row in some for name in row), *others]):
            values = [row.get(name) for row in some]
            if name in info.shown:
                columns.append(_value_column(name, values))
                continue
            columns.append(_column(name, values, others.get(name)))
            kind = columns[-1][0].type
            others[name] = None if pa.types.is_null(kind) else kind
        yield _table(columns)


def _column(name: str, values: list[Any], kind: pa.DataType | None = pa.string()) -> tuple[pa.Field, pa.Array]:  # noqa: B008  # it is immutable
    array = pa.array(values, kind)
    return pa.field(name, array.type), array


def _value_column(name: str, values: list[Any]) -> tuple[pa.Field, pa.Array]:
    texts = [None if value is None else json.dumps(value) for value in values]
    return pa.field(name, pa.string(), metadata=VALUE_TEXT), pa.array(texts, pa.string())


def _table(columns: list[tuple[pa.Field, pa.Array]]) -> pa.Table:
    return pa.Table.from_arrays([array for _, array in columns], schema=pa.schema([own for own, _ in columns]))
