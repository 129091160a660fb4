"""Rows in files of others: Parquet, Arrow, CSV, JSON lines. Blocking, and some rows at a time, however long a file is.

What is exported can be imported again without loss. JSON lines have the fields as the store has them. Parquet and Arrow
have typed columns for whoever reads them, and ``fields_json``, which decides when they come back. A cell of CSV is the
text of a field that is a text, and JSON of any other; empty is null, and a text that is empty or begins with a quote is
written as JSON too.

Files that others made need no ``fields_json``: their columns, or names, are those of the fields, and a relation's ends
are ``left_key`` and ``right_key``. Every row goes through the class; ``InvalidValue`` names the first that fails.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.drafts import replacing
from holdfast.base.errors import Corrupt, Invalid
from holdfast.ontology.format.data.batch import Batch
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.intake import rows_of
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.format.data.rows import batched, from_table, read, written_columns
from holdfast.ontology.types.errors import InvalidValue, UnreadableRow
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.typeinfo import ENDS, UNKEYED, TypeInfo, end_key

READ_ROWS = 8_192
"""Rows of a file that are looked at together."""

csv.field_size_limit(sys.maxsize)  # a text may be longer than the 128 KiB that the module allows by itself


class FileFormat(StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


_ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".csv": "csv"}
_ENDINGS |= {".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_of(path: Path, wanted: FileFormat | None = None) -> FileFormat:
    """As it is named, or as the file is."""
    if wanted is not None:
        return wanted
    found = _ENDINGS.get(path.suffix.lower())
    if found is None:
        raise Invalid(f"{path.name} does not say which format it has", remedy="say parquet, arrow, csv or jsonl")
    return FileFormat(found)


# --- out ---


def write_file(path: Path, style: FileFormat, info: TypeInfo, rows: Batch) -> None:
    """All of it or nothing: the file appears when it is whole."""
    try:
        with replacing(path) as draft:
            _write(draft, style, info, rows)
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be written") from error


def _write(draft: Path, style: FileFormat, info: TypeInfo, rows: Batch) -> None:
    match style:
        case FileFormat.PARQUET:
            pq.write_table(table_of(info, rows), draft, compression="zstd")
        case FileFormat.ARROW:
            table = table_of(info, rows)
            with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        case FileFormat.CSV:
            with draft.open("w", encoding="utf-8", newline="") as file:
                _write_csv(file, info, rows)
        case FileFormat.JSONL:
            with draft.open("w", encoding="utf-8", newline="") as file:
                file.writelines(_line(info, row) for row in rows)


def table_of(info: TypeInfo, rows: Batch) -> pa.Table:
    keys = dict(zip(key_columns(info.type_id.kind), rows.keys, strict=True))
    typed = typed_columns({name: info.nodes[name] for name in info.payload}, rows.bodies.to_pylist())
    return pa.table({**keys, "fields_json": rows.bodies, **{name: made.array for name, made in typed.items()}})


def _values(info: TypeInfo, row: Row) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(row.fields_json)
    if info.ends is None:
        return stored
    ends: dict[str, Any] = dict(zip(ENDS, row.identity, strict=False))
    own = {} if info.key_field is None else {info.key_field: row.identity[2]}
    return ends | own | stored


def _line(info: TypeInfo, row: Row) -> str:
    return json.dumps(_values(info, row), ensure_ascii=False, separators=(",", ":")) + "\n"


def _write_csv(file: TextIO, info: TypeInfo, rows: Batch) -> None:
    writer = csv.writer(file, lineterminator="\n")
    names = info.shown
    writer.writerow(names)
    for row in rows:
        values = _values(info, row)
        writer.writerow([_cell(values.get(name), text=_is_text(info, name)) for name in names])


_TEXTS = {"text", "timestamp", "date", "decimal", "blob"}
"""What the store has as texts."""


def _is_text(info: TypeInfo, name: str) -> bool:
    return name in ENDS or name not in info.payload or info.forms[name] in _TEXTS


def _cell(value: Any, *, text: bool) -> str:
    if value is None:
        return ""
    if text and isinstance(value, str) and value and not value.startswith('"'):
        return value
    return json.dumps(value, ensure_ascii=False)


# --- in ---


def read_batches(path: Path, style: FileFormat, info: TypeInfo) -> Iterator[Batch]:
    """The rows of a file, each through its class, some at a time."""
    try:
        match style:
            case FileFormat.PARQUET:
                with pq.ParquetFile(path) as file:
                    yield from _of_tables(map(_table, file.iter_batches(READ_ROWS)), info)
            case FileFormat.ARROW:
                with pa.memory_map(str(path)) as source:
                    yield from _of_tables(_arrow_tables(source), info)
            case FileFormat.CSV:
                with path.open(encoding="utf-8-sig", newline="") as file:
                    yield from _of_values(_csv_values(file, info), info)
            case FileFormat.JSONL:
                with path.open(encoding="utf-8-sig") as file:
                    yield from _of_values(_json_values(file, info), info)
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be read") from error
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path}: not a file of this format ({error})", remedy="say which format it has") from error


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _arrow_tables(source: pa.MemoryMappedFile) -> Iterator[pa.Table]:
    file = pa.ipc.open_file(source)
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        for start in range(0, batch.num_rows, READ_ROWS):
            yield _table(batch.slice(start, READ_ROWS))


def _of_tables(tables: Iterable[pa.Table], info: TypeInfo) -> Iterator[Batch]:
    keys, first = key_columns(info.type_id.kind), 0
    for table in tables:
        with _numbered(first):
            own = {*keys, "fields_json"} <= set(table.column_names)
            yield _batch(_stored(table, info) if own else read(info, rows_of(info, table)), info)
        first += table.num_rows


def _stored(table: pa.Table, info: TypeInfo) -> list[Any]:
    """Objects from ``fields_json``, of a file that may be anybody's."""
    for name in (*key_columns(info.type_id.kind), "fields_json"):
        column = table.column(name)
        if column.null_count or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InvalidValue(f"column {name} has something else than texts", type_name=info.name, field=name)
    try:
        return read(info, from_table(table))
    except (Corrupt, UnreadableRow) as error:
        raise InvalidValue(str(error), type_name=info.name) from error


@contextmanager
def _numbered(first: int) -> Iterator[None]:
    """Errors count rows from the beginning of what they were given: say where in the file that is."""
    try:
        yield
    except InvalidValue as error:
        if not first:
            raise
        row = first + (error.row or 0)
        raise InvalidValue(
            f"counting from row {first}: {error}", type_name=error.type_name, field=error.field, row=row
        ) from error


def _batch(objects: Sequence[Any], info: TypeInfo) -> Batch:
    """Whatever an object was made from, it is one that the class would have made."""
    for name in info.fields:
        info.validator.many(name, [one.__dict__[name] for one in objects])
    for name, end in zip(ENDS, info.ends or (), strict=False):
        for key in dict.fromkeys(one.__dict__[name] for one in objects):
            end_key(end, key, f"{info.name}.{name}")
    keys, bodies = written_columns(info, objects)
    return batched(info, keys, bodies)


def _csv_values(lines: Iterable[str], info: TypeInfo) -> Iterator[dict[str, Any]]:
    reader = csv.DictReader(lines, strict=True)
    names = list(reader.fieldnames or ())
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidValue(f"the file has two columns {twice[0]}", type_name=info.name, field=twice[0])
    for number, record in enumerate(reader):
        if None in record or None in record.values():
            raise _unfit(info, number, f"it has not as many cells as there are columns ({len(names)})")
        yield {str(name): _parsed(cell, text=_known_text(info, name)) for name, cell in record.items()}


def _known_text(info: TypeInfo, name: Any) -> bool:
    return name in info.shown and _is_text(info, name)


def _parsed(cell: Any, *, text: bool) -> Any:
    if not isinstance(cell, str) or not cell:
        return None
    if text and not cell.startswith('"'):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _json_values(lines: Iterable[str], info: TypeInfo) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            found = json.loads(line, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise _unfit(info, number, f"not JSON ({error})") from error
        if not isinstance(found, dict):
            raise _unfit(info, number, "not a JSON object")
        yield found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _of_values(found: Iterable[dict[str, Any]], info: TypeInfo) -> Iterator[Batch]:
    numbered, first = iter(enumerate(found)), 0
    while some := [_object(values, info, number) for number, values in islice(numbered, READ_ROWS)]:
        with _numbered(first):
            yield _batch(some, info)
        first += len(some)


def _object(values: dict[str, Any], info: TypeInfo, number: int) -> Any:
    """As the store has it; or, if it is not so, as somebody would write it."""
    known = {*info.shown}
    if strange := [name for name in values if name not in known]:
        raise _unfit(info, number, f"{info.name} has no field {strange[0]}")
    payload = {name: value for name, value in values.items() if name in info.payload}
    identity: list[Any] = [""]
    if info.ends is not None:
        own = UNKEYED if info.key_field is None else values.get(info.key_field)
        identity = [*(values.get(name) or None for name in ENDS), own]
    try:
        if all(isinstance(part, str) for part in identity):
            return read(info, [Row(tuple(identity), json.dumps(payload))])[0]
    except UnreadableRow:
        pass
    try:
        return info.python(**values)
    except InvalidValue as error:
        raise _unfit(info, number, str(error)) from error


def _unfit(info: TypeInfo, number: int, reason: str) -> InvalidValue:
    return InvalidValue(f"row {number}: {reason}", type_name=info.name, row=number)
