"""Objects, rows, tables and files, and the conversions between them.

    objects  --written-->  rows (identity, fields_json)  --to_table-->  Arrow  --to_parquet-->  bytes
    objects  <---read----  rows  <----------------from_table----------  Arrow  <-from_parquet-  bytes

``fields_json`` is canonical (sorted keys, compact, one form for each value), so equal objects have equal texts, and a
digest decides whether anything has changed. It is made column by column, which takes a fraction of a second for 100,000
objects. Files are sorted by identity, with statistics for pruning.

Errors: ``InvalidValue`` with type, field and row for an object that does not fit; ``UnreadableRow`` for a stored row
that the class cannot hold; ``Corrupt`` for bytes that are not a data file.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic_core import ValidationError

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.batch import Batch, Row
from holdfast.ontology.format.data.columns import forms_metadata, typed_columns
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.codecs import place_text, problem
from holdfast.ontology.types.errors import InvalidValue, UnreadableRow
from holdfast.ontology.types.typeinfo import ENDS, UNKEYED, TypeInfo, key_text
from holdfast.ontology.types.typespec import without_null

ROW_GROUP = 262_144
"""Rows of a row group. A lookup by key fetches one row group, and a query of some columns one range of each."""
SAMPLED = 1_000
"""Values of a column that are sampled to choose its encoding."""


# --- objects to rows ---


def written(info: TypeInfo, objects: Iterable[Any]) -> list[Row]:
    """The rows of objects of one type, in their order."""
    return assembled(*written_columns(info, objects))


def written_columns(info: TypeInfo, objects: Iterable[Any]) -> tuple[list[Sequence[str]], list[str]]:
    """The columns of the identity, and ``fields_json``."""
    values = [_values(info, one, number) for number, one in enumerate(objects)]
    ends = [[one[name] for one in values] for name in ENDS] if info.kind == "relation" else []
    keys = None if info.key_field is None else [one[info.key_field] for one in values]
    template = "{" + ",".join(f'"{name}":%s' for name in info.payload) + "}"
    parts = [field_texts(info, name, [one[name] for one in values]) for name in info.payload]
    bodies = map(template.__mod__, zip(*parts, strict=True)) if parts else ["{}"] * len(values)
    return identities(info, ends, keys, len(values)), list(bodies)


def identities(
    info: TypeInfo, ends: Sequence[Sequence[str]], keys: Sequence[Any] | None, count: int
) -> list[Sequence[str]]:
    """The columns of the identity, from those of the ends and of the key field."""
    if keys is not None:
        return [*ends, keys if info.key_is_text else list(map(key_text, keys))]
    return [*ends, [UNKEYED] * count] if info.kind == "relation" else list(ends)


def assembled(keys: Sequence[Sequence[str]], bodies: Iterable[str]) -> list[Row]:
    columns = [column.to_pylist() if isinstance(column, pa.Array) else column for column in keys]
    return list(map(Row._make, zip(zip(*columns, strict=True), bodies, repeat(False))))


def batched(
    info: TypeInfo, keys: Sequence[Sequence[str]], bodies: Any, typed: dict[str, pa.Array] | None = None
) -> Batch:
    arrays = tuple(pa.array(column, pa.string()) for column in keys)
    return Batch(info.type_id, arrays, pa.array(bodies, pa.string()), typed or {})


def _values(info: TypeInfo, one: Any, number: int) -> dict[str, Any]:
    if type(one) is not info.python:
        raise InvalidValue(
            f"number {number}: a {info.name} was expected, found a {type(one).__name__}",
            type_name=info.name,
            row=number,
        )
    values: dict[str, Any] = one.__dict__
    return values


def field_texts(info: TypeInfo, name: str, values: list[Any]) -> list[str]:
    """The JSON of one field, for each row."""
    codec = info.codecs[name]
    try:
        return codec.texts(values)
    except (ValueError, RecursionError):
        for number, value in enumerate(values):  # find the value that does not fit
            try:
                codec.texts([value])
            except (ValueError, RecursionError) as error:
                path, reason = problem(error)
                message = f"{place_text((info.name, name, *path[1:]))}, number {number}: {reason}"
                raise InvalidValue(message, type_name=info.name, field=name, row=number) from error
        raise


# --- rows to objects ---


def read(info: TypeInfo, rows: Iterable[Row]) -> list[Any]:
    """The objects of stored rows. Fields that a row of an older schema lacks are None or have their default."""
    return [_erased(info, row) if is_erased(row.fields_json) else _object(info, row) for row in rows]


def _object(info: TypeInfo, row: Row) -> Any:
    values = _stored(info, row)
    if len(values) < len(info.payload):  # a row of an older schema
        values |= {name: _absent(info, row, name) for name in info.payload if name not in values}
    if info.kind == "relation":
        values = {**dict(zip(ENDS, row.identity, strict=False)), **values}
        if info.key_field is not None:
            values[info.key_field] = _instance_key(info, row)
    return _made(info, values)


def _made(info: TypeInfo, values: dict[str, Any]) -> Any:
    one: Any = object.__new__(info.python)
    one.__dict__.update(values)
    return one


def _erased(info: TypeInfo, row: Row) -> Any:
    """An object with nothing but its identity."""
    values: dict[str, Any] = dict(zip(ENDS, row.identity, strict=False)) if info.kind == "relation" else {}
    values |= dict.fromkeys(info.fields)
    if info.key_field is not None:
        try:
            values[info.key_field] = info.validator.one(info.key_field, row.identity[-1])
        except InvalidValue as error:
            raise _unreadable(info, row, str(error)) from error
    return _made(info, values)


def _stored(info: TypeInfo, row: Row) -> dict[str, Any]:
    """The values of the fields that the row has."""
    try:
        try:
            found: dict[str, Any] = info.reader.validate_json(row.fields_json)
        except ValidationError as error:
            if error.errors()[0]["type"] != "json_invalid":
                raise
            # Python takes some JSON that pydantic does not: objects nested more than 200 times, lone surrogates.
            found = info.reader.validate_python(json.loads(row.fields_json))
    except ValidationError as error:
        path, reason = problem(error)
        if not path:
            raise Corrupt(f"{_label(info, row)}: fields_json is not an object") from error
        raise _unreadable(info, row, f"{place_text(path)}: {reason}") from error
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{_label(info, row)}: fields_json is not JSON ({error})") from error
    return found


def _absent(info: TypeInfo, row: Row, name: str) -> Any:
    if info.fields[name].has_default:
        return info.default_of(name)
    if without_null(info.nodes[name])[1]:
        return None
    raise _unreadable(info, row, f"{name}: it is missing, and has no default")


def _instance_key(info: TypeInfo, row: Row) -> Any:
    """The instance key, which is not in ``fields_json``."""
    try:
        return info.validator.one(info.key_field or "", row.identity[2])
    except InvalidValue as error:
        raise _unreadable(info, row, str(error)) from error


def _label(info: TypeInfo, row: Row) -> str:
    return f"{info.name} {'/'.join(part for part in row.identity if part)!r}"


def _unreadable(info: TypeInfo, row: Row, reason: str) -> UnreadableRow:
    return UnreadableRow(f"{_label(info, row)}: {reason}")


# --- rows to tables ---


def to_table(info: TypeInfo, rows: Sequence[Row], commit_id: int, schema_version_id: int) -> pa.Table:
    """A table of rows, sorted by identity: system columns, then typed columns by name, then ``fields_json``.

    ``fields_json`` is most of a file, and most queries do not read it. As the last column it leaves the others adjacent
    in each row group. ``_retracted`` exists only if a row is retracted.
    """
    count, keys = len(rows), names.key_columns(info.kind)
    columns, bodies, known = _columns(rows, len(keys))
    found: dict[str, Any] = {
        "commit_id": _constant(commit_id, pa.int64(), count),
        f"{info.kind}_type": _constant(info.name, pa.string(), count),
    }
    found.update(zip(keys, columns, strict=True))
    found["schema_version_id"] = _constant(schema_version_id, pa.int64(), count)
    if not isinstance(rows, Batch) and any(row.retracted for row in rows):
        found[names.RETRACTED] = pa.array([row.retracted for row in rows], pa.bool_())
    unknown = {name: node for name, node in info.columns.items() if name not in known}
    texts = bodies.to_pylist() if unknown and isinstance(bodies, pa.Array) else bodies
    typed = typed_columns(unknown, texts) if unknown else {}
    found.update((name, known[name] if name in known else typed[name].array) for name in info.payload)
    found["fields_json"] = pa.array(bodies, pa.string())
    partial = [name for name, made in typed.items() if made.partial]
    table = pa.table(found).replace_schema_metadata(forms_metadata(info.columns, partial))
    if isinstance(rows, Batch) and rows.ascending:
        return table
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys]))


def _columns(rows: Sequence[Row], width: int) -> tuple[Sequence[pa.Array], Any, Mapping[str, pa.Array]]:
    """The columns of the identity, ``fields_json``, and typed columns that are already known."""
    if isinstance(rows, Batch):
        return rows.keys, rows.bodies, rows.typed
    keys = [pa.array([row.identity[number] for row in rows], pa.string()) for number in range(width)]
    return keys, [row.fields_json for row in rows], {}


def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def from_table(table: pa.Table) -> list[Row]:
    """The rows of a table, ours or a plain writer's. Without the column ``_retracted`` no row is retracted."""
    identities = zip(*(table.column(name).to_pylist() for name in stored_keys(table)), strict=True)
    bodies = table.column("fields_json").to_pylist()
    kept = names.RETRACTED in table.column_names
    gone = table.column(names.RETRACTED).to_pylist() if kept else [False] * len(bodies)
    return list(map(Row._make, zip(identities, bodies, map(bool, gone), strict=True)))


def stored_keys(table: pa.Table) -> tuple[str, ...]:
    """The columns of the identity in a table of either kind."""
    return names.key_columns("entity" if names.ENTITY_KEYS[0] in table.column_names else "relation")


# --- tables to files ---


def encode(info: TypeInfo, written: Sequence[Row], commit_id: int, schema_version_id: int) -> bytes:
    """The rows of a commit as Parquet. Blocking."""
    return to_parquet(to_table(info, written, commit_id, schema_version_id))


def to_parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with writer_for(sink, table) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        if table.schema.metadata:
            writer.add_key_value_metadata(table.schema.metadata)
    return bytes(sink.getvalue().to_pybytes())


def writer_for(sink: Any, table: pa.Table, **options: Any) -> pq.ParquetWriter:
    """A writer for tables like this one."""
    plain = [name for name in table.column_names if name != "fields_json"]
    return pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=[name for name in plain if repeats(table.column(name))],
        write_statistics=plain,
        store_schema=False,  # Parquet's own types are sufficient
        **options,
    )


def repeats(column: pa.ChunkedArray) -> bool:
    """Whether values repeat, so that dictionary encoding pays. For keys it takes twice the time and size."""
    if len(column) < SAMPLED:
        return True
    sample = column.take(pa.array(range(0, len(column), len(column) // SAMPLED)))
    try:
        return bool(pc.count_distinct(sample).as_py() <= len(sample) // 2)
    except pa.ArrowNotImplementedError:  # lists cannot be counted
        return True


def from_parquet(body: bytes, *, key: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file, with those of ``columns`` that exist: older files and those of plain writers have fewer."""
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            wanted = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            return file.read(columns=wanted, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key}: not a Parquet file ({error})") from error
