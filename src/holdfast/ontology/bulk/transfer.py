"""Export of a type to a file, and import of a file into a type in one commit.

Files are Parquet, Arrow, CSV or JSON lines. What is exported can be imported again without loss. JSON lines have the
fields as they are stored. Parquet and Arrow have typed columns for other readers, and ``fields_json``, which decides
on import. A cell of CSV is the text of a text field and JSON of any other; an empty cell is null, and a text that is
empty or begins with a quote is written as JSON too. Files of other programs need no ``fields_json``: their columns or
names are those of the fields, and a relation's ends are ``left_key`` and ``right_key``. Every row is validated by the
class; ``InvalidValue`` names the first that fails.

An import is a load (``bulk.load``) whose rows are in memory. An imported object that exists with other fields is a
conflict: ``error`` refuses the whole import, ``skip`` keeps what exists, ``replace`` overwrites it. With ``absent`` any
object that exists refuses the import, with ``if_head`` any other head than this one.

Both hold the rows in memory, as columns. Larger types are moved with Spark (``pipeline.load`` and its tables).
"""

import csv
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.codec import Document
from holdfast.base.drafts import replacing
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import Store
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.load import CheckedRows, Loader, Request
from holdfast.ontology.bulk.stage import checked_rows, row_table
from holdfast.ontology.bulk.texts import READ_ROWS, csv_tables, is_text, json_tables
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import KnownHead
from holdfast.ontology.chain.history import Moment, When, commit_at
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.format.data.batch import Batch, Row
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.rows import from_table, read, written_columns
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.engine import Engine, Snapshot
from holdfast.ontology.query.statement import Ask
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.errors import InvalidValue, UnreadableRow
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.typeinfo import ENDS, TypeInfo, end_key, of_schema


class FileFormat(StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".csv": "csv"}
_SUFFIXES |= {".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_of(path: Path, wanted: FileFormat | None = None) -> FileFormat:
    """The given format, or that of the file's suffix."""
    if wanted is not None:
        return wanted
    found = _SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise Invalid(f"{path.name} does not say which format it has", remedy="say parquet, arrow, csv or jsonl")
    return FileFormat(found)


# --- export ---


@dataclass(frozen=True, slots=True)
class Exported:
    rows: int
    commit_id: int
    path: Path


async def export_file(
    store: Store, name: str, path: Path, *, style: FileFormat | None = None, as_of: Moment | None = None
) -> Exported:
    """Export a type, now or as of a moment. The file is written after everything was read."""
    chosen = format_of(path, style)
    warm = Warm(store)
    engine = Engine(store, KnownHead(store), warm)

    async def question(snapshot: Snapshot) -> tuple[int, Batch, Document | None]:
        chain, now = engine.chain, snapshot.ledger
        upper = now.commit_id if as_of is None else await commit_at(as_of, chain, now)
        then = await chain.ledger(await chain.at(now.place, upper) if upper else None)
        type_id = find_type(then, name)
        rows = await snapshot.rows(Ask(of_schema(type_id, {}), {}, when=When(last=upper)))
        found = (await engine.table(rows.select([*rows.keys, "r.fields_json"]))).combine_chunks()
        *keys, bodies = (column.combine_chunks() for column in found.columns)
        stored = await catalog.schema_at(chain, then, type_id)
        return upper, Batch(type_id, tuple(keys), bodies), None if stored is None else stored.schema

    try:
        upper, batch, schema = await engine.ask(question)
    finally:
        await warm.close()
    info = of_schema(batch.type_id, schema if schema is not None else await blocking(_guessed_schema, batch))
    await blocking(_write_file, path, chosen, info, batch)
    return Exported(len(batch), upper, path)


def _guessed_schema(rows: Batch) -> dict[str, Any]:
    """The fields of a type that has no schema, as found in its rows."""
    found = dict.fromkeys(name for row in rows for name in json.loads(row.fields_json))
    return {"fields": {name: {"type": "typing.Any"} for name in found}}


def _write_file(path: Path, style: FileFormat, info: TypeInfo, rows: Batch) -> None:
    """Write atomically: the file appears when it is complete."""
    try:
        with replacing(path) as draft:
            _write(draft, style, info, rows)
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be written") from error


def _write(draft: Path, style: FileFormat, info: TypeInfo, rows: Batch) -> None:
    match style:
        case FileFormat.PARQUET:
            pq.write_table(_table_of(info, rows), draft, compression="zstd")
        case FileFormat.ARROW:
            table = _table_of(info, rows)
            with pa.OSFile(str(draft), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
        case FileFormat.CSV:
            with draft.open("w", encoding="utf-8", newline="") as file:
                _write_csv(file, info, rows)
        case FileFormat.JSONL:
            with draft.open("w", encoding="utf-8", newline="") as file:
                file.writelines(_line(info, row) for row in rows)


def _table_of(info: TypeInfo, rows: Batch) -> pa.Table:
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
    writer.writerow(info.shown)
    for row in rows:
        values = _values(info, row)
        writer.writerow([_cell(values.get(name), text=is_text(info, name)) for name in info.shown])


def _cell(value: Any, *, text: bool) -> str:
    if value is None:
        return ""
    if text and isinstance(value, str) and value and not value.startswith('"'):
        return value
    return json.dumps(value, ensure_ascii=False)


# --- import ---


@dataclass(frozen=True, slots=True)
class Imported:
    rows: int
    """In the file."""
    same: int
    """Objects that had the same fields already."""
    skipped: int
    replaced: int
    added: int
    commit: Commit | None


async def import_file(
    onto: Ontology,
    of: type[Mixin],
    path: Path,
    *,
    style: FileFormat | None = None,
    on_conflict: Policy = Policy.ERROR,
    absent: bool = False,
    if_head: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Imported:
    """Import a file as one commit. The session must have nothing else queued."""
    if onto.pending:
        raise Invalid(f"{onto.pending} intents are queued", remedy="commit() or discard() them, then import")
    info = onto.type_info(of)
    rows = await blocking(_read_file, path, format_of(path, style), info)
    request = Request(rules=Rules(on_conflict, absent), if_head=if_head, metadata=metadata or {})
    done = await Loader(onto, onto.ambient, info).land(request, rows)
    tally = done.tally
    return Imported(tally.rows, tally.same, tally.skipped, tally.replaced, tally.added, done.commit)


def _read_file(path: Path, style: FileFormat, info: TypeInfo) -> CheckedRows:
    partial: set[str] = set()
    try:
        found = list(_checked_tables(path, style, info, partial))
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror or error}", remedy="name a file that can be read") from error
    except (pa.ArrowException, UnicodeDecodeError, csv.Error) as error:
        raise Invalid(f"{path}: not a file of this format ({error})", remedy="say which format it has") from error
    no_rows = row_table(info, [[] for _ in key_columns(info.kind)], pa.array([], pa.string()), {}, partial)
    return CheckedRows(pa.concat_tables([no_rows, *found]), frozenset(partial))


def _checked_tables(path: Path, style: FileFormat, info: TypeInfo, partial: set[str]) -> Iterator[pa.Table]:
    first = 0
    for table in _tables(path, style, info):
        with _counting_from(first):
            exported = {*key_columns(info.kind), "fields_json"} <= set(table.column_names)
            yield _exported_rows(info, table, partial) if exported else checked_rows(info, table, partial)
        first += table.num_rows


def _tables(path: Path, style: FileFormat, info: TypeInfo) -> Iterator[pa.Table]:
    """The rows of a file as they are, some at a time."""
    match style:
        case FileFormat.PARQUET:
            with pq.ParquetFile(path) as file:
                yield from (pa.Table.from_batches([batch]) for batch in file.iter_batches(READ_ROWS))
        case FileFormat.ARROW:
            with pa.memory_map(str(path)) as source:
                file = pa.ipc.open_file(source)
                for batch in map(file.get_batch, range(file.num_record_batches)):
                    for start in range(0, batch.num_rows, READ_ROWS):
                        yield pa.Table.from_batches([batch.slice(start, READ_ROWS)])
        case FileFormat.CSV:
            with path.open(encoding="utf-8-sig", newline="") as text:
                yield from csv_tables(text, info)
        case FileFormat.JSONL:
            with path.open(encoding="utf-8-sig") as text:
                yield from json_tables(text, info)


@contextmanager
def _counting_from(first: int) -> Iterator[None]:
    """Errors count rows within a table: add the position of the table in the file."""
    try:
        yield
    except InvalidValue as error:
        if not first:
            raise
        row = first + (error.row or 0)
        raise InvalidValue(
            f"counting from row {first}: {error}", type_name=error.type_name, field=error.field, row=row
        ) from error


def _exported_rows(info: TypeInfo, table: pa.Table, partial: set[str]) -> pa.Table:
    """Rows from ``fields_json``, validated like objects: any program may have written them."""
    for name in (*key_columns(info.kind), "fields_json"):
        column = table.column(name)
        if column.null_count or not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise InvalidValue(f"column {name} has something else than texts", type_name=info.name, field=name)
    try:
        objects = read(info, from_table(table))
    except (Corrupt, UnreadableRow) as error:
        raise InvalidValue(str(error), type_name=info.name) from error
    for name in info.fields:
        info.validator.many(name, [one.__dict__[name] for one in objects])
    for name, end in zip(ENDS, info.ends or (), strict=False):
        for key in dict.fromkeys(one.__dict__[name] for one in objects):
            end_key(end, key, f"{info.name}.{name}")
    keys, bodies = written_columns(info, objects)
    return row_table(info, keys, pa.array(bodies, pa.string()), {}, partial)
