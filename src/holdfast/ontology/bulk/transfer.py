"""Export of a type to a file, and import of a file into a type in one commit.

Files are Parquet, Arrow, CSV or JSON lines. What is exported can be imported again without loss. JSON lines have the
fields as they are stored. Parquet and Arrow have typed columns for other readers, and ``fields_json``, which decides
on import. A cell of CSV is the text of a text field and JSON of any other; an empty cell is null, and a text that is
empty or begins with a quote is written as JSON too. Files of other programs need no ``fields_json``: their columns or
names are those of the fields, and a relation's ends are ``left_key`` and ``right_key``. Every row is checked by the
class; ``InvalidValue`` names the first that fails.

An imported object that exists with other fields is a conflict: ``error`` refuses the whole import, ``skip`` keeps what
exists, ``replace`` overwrites it. With ``absent`` any object that exists refuses the import. The commit is made on the
head on which this was decided; after a lost race it is decided again. With ``if_head`` only that head will do.

Both hold the rows in memory, as columns. Larger types are moved with Spark (``pipeline.load`` and its tables).
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.drafts import replacing
from holdfast.base.errors import Conflict, Corrupt, Invalid
from holdfast.objects.store import Store
from holdfast.ontology.bulk.decide import Policy
from holdfast.ontology.bulk.texts import READ_ROWS, csv_values, is_text, json_values, unfit
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Moment, commit_at
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of, retry_overtaken
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.chain.state import TypeState, see_file
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.format.data.batch import Batch, Identity, Row
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.intake import arrow_columns, either_form
from holdfast.ontology.format.data.rows import batched, from_table, read, written_columns
from holdfast.ontology.format.data.stored_rows import stored_batches
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import InvalidValue, UnreadableRow
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import ENDS, UNKEYED, TypeInfo, end_key, of_schema


class FileFormat(StrEnum):
    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


_ENDINGS = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".csv": "csv"}
_ENDINGS |= {".jsonl": "jsonl", ".ndjson": "jsonl"}


def format_of(path: Path, wanted: FileFormat | None = None) -> FileFormat:
    """The given format, or that of the file's extension."""
    if wanted is not None:
        return wanted
    found = _ENDINGS.get(path.suffix.lower())
    if found is None:
        raise Invalid(f"{path.name} does not say which format it has", remedy="say parquet, arrow, csv or jsonl")
    return FileFormat(found)


# --- out ---


def write_file(path: Path, style: FileFormat, info: TypeInfo, rows: Batch) -> None:
    """Write atomically: the file appears when it is complete."""
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
        writer.writerow([_cell(values.get(name), text=is_text(info, name)) for name in names])


def _cell(value: Any, *, text: bool) -> str:
    if value is None:
        return ""
    if text and isinstance(value, str) and value and not value.startswith('"'):
        return value
    return json.dumps(value, ensure_ascii=False)


# --- in ---


def read_batches(path: Path, style: FileFormat, info: TypeInfo) -> Iterator[Batch]:
    """The rows of a file, validated by the class, in batches."""
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
                    yield from _of_values(csv_values(file, info), info)
            case FileFormat.JSONL:
                with path.open(encoding="utf-8-sig") as file:
                    yield from _of_values(json_values(file, info), info)
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
            if own:
                yield _batch(_stored(table, info), info)
            else:
                keys_of_rows, bodies, _ = arrow_columns(info, table)
                yield batched(info, keys_of_rows, bodies)
        first += table.num_rows


def _stored(table: pa.Table, info: TypeInfo) -> list[Any]:
    """Objects from ``fields_json``, of a file that any program may have written."""
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
    """Errors count rows within a batch: add the batch's position in the file."""
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


def _of_values(found: Iterable[dict[str, Any]], info: TypeInfo) -> Iterator[Batch]:
    numbered, first = iter(enumerate(found)), 0
    while some := [_object(values, info, number) for number, values in islice(numbered, READ_ROWS)]:
        with _numbered(first):
            yield _batch(some, info)
        first += len(some)


def _object(values: dict[str, Any], info: TypeInfo, number: int) -> Any:
    """From a row as the store has it, otherwise from the values as a caller of the class writes them."""
    known = {*info.shown}
    if strange := [name for name in values if name not in known]:
        raise unfit(info, number, f"{info.name} has no field {strange[0]}")
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
        return info.python(**{name: either_form(info, name, value) for name, value in values.items()})
    except InvalidValue as error:
        raise unfit(info, number, str(error)) from error


# --- export and import ---


M = TypeVar("M", bound=Mixin)

TRIES = 8
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Exported:
    rows: int
    commit_id: int
    path: Path


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


async def export_file(
    store: Store, name: str, path: Path, *, style: FileFormat | None = None, as_of: Moment | None = None
) -> Exported:
    """Export a type, now or as of a moment. The file is written after everything was read."""
    return await retry_overtaken(lambda: _export(store, name, path, style, as_of))


async def _export(store: Store, name: str, path: Path, style: FileFormat | None, as_of: Moment | None) -> Exported:
    chosen = format_of(path, style)
    chain = Chain(store)
    now = await chain.ledger((await read_head(store)).place)
    upper = now.commit_id if as_of is None else await commit_at(as_of, chain, now)
    then = await chain.ledger(await chain.at(now.place, upper) if upper else None)
    type_id = find_type(then, name)
    fence = await fence_of(store, chain, now)

    async def read(found: Resolved) -> Batch:
        return await _latest(store, found, upper, fence)

    if now.purged(type_id, upper):
        rows = _columns(type_id, [])
    else:
        rows = await with_files(store, chain, then, type_id, read, fence)
    stored = await catalog.schema_at(chain, then, type_id)
    shape = of_schema(type_id, stored.schema if stored is not None else await blocking(_guessed, rows))
    await blocking(write_file, path, chosen, shape, rows)
    return Exported(len(rows), upper, path)


async def _latest(store: Store, found: Resolved, newest: int, fence: RedactionFence) -> Batch:
    """The live rows of a type's files, by identity."""
    keys, oldest = key_columns(found.type_id.kind), max(found.generation, 1)
    tables = list[pa.Table]()
    for ref in found.files():
        body = await see_file(store, ref, fence)
        tables += await blocking(list, stored_batches(body, ref.path, READ_ROWS))
    return await blocking(_live, found.type_id, tables, keys, oldest, newest)


def _live(type_id: TypeId, tables: Sequence[pa.Table], keys: Sequence[str], oldest: int, newest: int) -> Batch:
    """The latest row of each identity that is not retracted, ordered by identity."""
    texts = [(name, pa.string()) for name in (*keys, "fields_json")]
    schema = pa.schema([*texts, ("commit_id", pa.int64()), (names.RETRACTED, pa.bool_())])
    parts = list[pa.Table]()
    for each in tables:
        lacks = names.RETRACTED not in each.column_names
        table = each.append_column(names.RETRACTED, pa.repeat(False, each.num_rows)) if lacks else each
        commits = table.column("commit_id")
        wanted = pc.and_(pc.greater_equal(commits, oldest), pc.less_equal(commits, newest))
        parts.append(table.select(schema.names).filter(wanted).cast(schema))
    whole = pa.concat_tables(parts) if parts else schema.empty_table()
    ordered = whole.take(pc.sort_indices(whole, sort_keys=[(name, "ascending") for name in (*keys, "commit_id")]))
    batch = _columns(type_id, [ordered])
    if not len(batch):
        return batch
    joined = batch.joined
    last = pc.fill_null(pc.not_equal(joined, pa.concat_arrays([joined.slice(1), pa.nulls(1, pa.string())])), True)
    live = pc.and_(last, pc.invert(pc.fill_null(ordered.column(names.RETRACTED).combine_chunks(), False)))
    return batch.where(live.to_numpy(zero_copy_only=False))


def _columns(type_id: TypeId, tables: Sequence[pa.Table]) -> Batch:
    found = [
        pa.concat_arrays([pa.array([], pa.string()), *(table.column(name).combine_chunks() for table in tables)])
        for name in (*key_columns(type_id.kind), "fields_json")
    ]
    return Batch(type_id, tuple(found[:-1]), found[-1])


def _guessed(rows: Batch) -> dict[str, Any]:
    """The fields of a type that only plain writers have registered, as found in its rows."""
    found = dict.fromkeys(name for row in rows for name in json.loads(row.fields_json))
    return {"fields": {name: {"type": "typing.Any"} for name in found}}


class Session(Protocol):
    """What an import needs of its session."""

    def type_info(self, python: type[Mixin], /) -> TypeInfo: ...
    async def known(self, of: type[Mixin], /) -> tuple[int, TypeState]: ...
    def ensure(self, given: Any, of: type[Mixin], /) -> int: ...
    async def commit(self, metadata: Mapping[str, Any] | None, /, *, if_head: int | None) -> Commit | None: ...
    def discard(self) -> int: ...


async def import_file(
    onto: Session,
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
    info = onto.type_info(of)
    rows = await blocking(_read, path, format_of(path, style), info)
    if not rows.distinct:
        raise Conflict(f"{path.name}: {await blocking(_twice, rows)!r} is in it twice", remedy="keep one of them")
    for _ in range(TRIES):
        head, state = await onto.known(of)
        decided = await blocking(_decide, state, rows, on_conflict, absent=absent)
        expected = if_head if if_head is not None else head
        if not decided.chosen and if_head is None:
            return Imported(len(rows), decided.same, decided.skipped, 0, 0, None)
        if decided.chosen:
            onto.ensure(decided.chosen, of)
        try:
            commit = await onto.commit(metadata, if_head=expected)
        except Conflict:
            onto.discard()
            if if_head is not None:
                raise
            continue
        except BaseException:
            onto.discard()
            raise
        return Imported(len(rows), decided.same, decided.skipped, decided.replaced, decided.added, commit)
    raise Conflict(f"{path.name}: others keep committing", remedy="import when there is less going on")


def _read(path: Path, style: FileFormat, info: TypeInfo) -> Batch:
    batches = list(read_batches(path, style, info))
    width = len(key_columns(info.kind))
    parts = [[each.keys[number] for each in batches] for number in range(width)] + [[each.bodies for each in batches]]
    found = [pa.concat_arrays([pa.array([], pa.string()), *part]) for part in parts]
    return Batch(info.type_id, tuple(found[:-1]), found[-1])


def _twice(rows: Batch) -> str:
    """The first duplicate identity."""
    seen: set[Identity] = set()
    for row in rows:
        if row.identity in seen:
            return "/".join(filter(None, row.identity))
        seen.add(row.identity)
    return ""


@dataclass(frozen=True, slots=True)
class _Decided:
    chosen: Batch
    same: int
    skipped: int
    replaced: int
    added: int


def _decide(state: TypeState, rows: Batch, policy: Policy, *, absent: bool) -> _Decided:
    """Which rows to write, given the current state."""
    compared = state.compared(rows)
    there, changed = compared.there(), compared.changed()
    differ = there & changed
    refused = there if absent else differ if policy is Policy.ERROR else np.zeros(len(rows), np.bool_)
    if refused.any():
        some = rows.where(refused)
        listed = ", ".join(repr("/".join(filter(None, row.identity))) for row in some[:SHOWN])
        what = "are there already" if absent else "are there already, with other fields"
        raise Conflict(
            f"{state.type_id.name}: {len(some)} objects {what}: {listed}",
            remedy="leave them out, or say what to do with them: skip or replace",
        )
    skipped = int(differ.sum()) if policy is Policy.SKIP else 0
    chosen = rows.where(~differ) if skipped else rows
    count = int(there.sum())
    return _Decided(chosen, count - int(differ.sum()), skipped, int(differ.sum()) - skipped, len(rows) - count)
