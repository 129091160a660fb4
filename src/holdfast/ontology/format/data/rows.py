"""Objects, rows, tables, files: from one to the next and back.

    objects  --written-->  rows (identity, fields_json)  --to_table-->  Arrow  --to_parquet-->  bytes
    objects  <---read----  rows  <----------------from_table----------  Arrow  <-from_parquet-  bytes

``fields_json`` is canonical (sorted keys, compact, one form for each value), so that equal objects have equal texts and
a digest decides whether anything has changed. It is built column by column: a batch of 100,000 objects costs a fraction
of a second. Files are sorted by identity, with statistics for pruning.

Errors: ``InvalidValue`` with type, field and row for an object that does not fit; ``UnreadableRow`` for a stored row
that the class cannot hold; ``Corrupt`` for bytes that are not a file of ours.
"""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.batch import Batch, Row
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.footer import FORMS, PARTIAL
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.codecs import Unfit, texts
from holdfast.ontology.types.errors import InvalidValue, UnreadableRow
from holdfast.ontology.types.typeinfo import ENDS, UNKEYED, TypeInfo, key_text
from holdfast.ontology.types.typespec import Node, form_of, without_null

ROW_GROUP = 262_144
"""Rows of a row group: a lookup by key fetches one, and a question about some columns one range of each."""
SAMPLED = 1_000
"""Values of a column that are looked at before it is written."""


# --- objects to rows ---


def written(info: TypeInfo, objects: Iterable[Any]) -> list[Row]:
    """The rows of objects of one type, in their order."""
    parts, bodies = written_columns(info, objects)
    return assembled(parts, bodies)


def written_columns(info: TypeInfo, objects: Iterable[Any]) -> tuple[list[Sequence[str]], list[str]]:
    """The columns of the identity, and ``fields_json``."""
    values = [_values(info, one, number) for number, one in enumerate(objects)]
    columns = {name: [one[name] for one in values] for name in info.fields}
    ends = [[one[name] for one in values] for name in ENDS] if info.kind == "relation" else []
    template = "{" + ",".join(f'"{name}":%s' for name in info.payload) + "}"
    names = key_values(info, ends, columns)
    parts = [field_texts(info, name, columns[name], names) for name in info.payload]
    bodies = map(template.__mod__, zip(*parts, strict=True)) if parts else ["{}"] * len(values)
    return identities(info, ends, columns, len(values)), list(bodies)


def identities(
    info: TypeInfo, ends: Sequence[Sequence[str]], fields: Mapping[str, Sequence[Any]], count: int
) -> list[Sequence[str]]:
    """The columns of the identity, from those of the ends and of the key field."""
    parts = list(ends)
    if info.key_field is not None:
        values = fields[info.key_field]
        parts.append(values if info.key_is_text else list(map(key_text, values)))
    elif info.kind == "relation":
        parts.append([UNKEYED] * count)
    return parts


def assembled(keys: Sequence[Sequence[str]], bodies: Iterable[str]) -> list[Row]:
    columns = [column.to_pylist() if isinstance(column, pa.Array) else column for column in keys]
    return list(map(Row._make, zip(zip(*columns, strict=True), bodies, repeat(False))))


def batched(
    info: TypeInfo, keys: Sequence[Sequence[str]], bodies: Any, typed: dict[str, pa.Array] | None = None
) -> Batch:
    return Batch(
        info.type_id,
        tuple(pa.array(column, pa.string()) for column in keys),
        pa.array(bodies, pa.string()),
        typed if typed is not None else {},
    )


def _values(info: TypeInfo, one: Any, number: int) -> dict[str, Any]:
    if type(one) is not info.python:
        raise InvalidValue(
            f"number {number}: a {info.name} was expected, found a {type(one).__name__}",
            type_name=info.name,
            row=number,
        )
    values: dict[str, Any] = one.__dict__
    return values


def key_values(
    info: TypeInfo, ends: Sequence[Sequence[Any]], fields: Mapping[str, Sequence[Any]]
) -> list[Sequence[Any]]:
    """The columns that name a row in errors."""
    return [*ends, *([fields[info.key_field]] if info.key_field is not None else [])]


def field_texts(info: TypeInfo, name: str, values: list[Any], keys: Sequence[Sequence[Any]] = ()) -> list[str]:
    """The JSON of one field, for each row. ``keys`` name the rows in errors."""
    node, codec = info.nodes[name], info.codecs[name]
    try:
        return texts(node, codec, values)
    except Unfit:
        for number, value in enumerate(values):  # once more, to say which
            try:
                texts(node, codec, [value])
            except Unfit as error:
                place = f"{info.name}.{name}{''.join(error.path)}, number {number}"
                if keys:
                    place += f" (key {', '.join(map(repr, _row(keys, number)))})"
                raise InvalidValue(f"{place}: {error.reason}", type_name=info.name, field=name, row=number) from error
        raise


def _row(columns: Sequence[Sequence[Any]], number: int) -> list[Any]:
    values = [column[number] for column in columns]
    return [value.as_py() if isinstance(value, pa.Scalar) else value for value in values]


# --- rows to objects ---


def read(info: TypeInfo, rows: Iterable[Row]) -> list[Any]:
    """The objects of stored rows. What a row of an older schema lacks is None or the field's default."""
    decoders = [(name, info.codecs[name].decode) for name in info.fields if name in info.payload]
    made = []
    for row in rows:
        if is_erased(row.fields_json):
            made.append(_erased(info, row))
            continue
        stored = _stored(info, row)
        values: dict[str, Any] = dict(zip(ENDS, row.identity, strict=False)) if info.kind == "relation" else {}
        for name, decode in decoders:
            try:
                values[name] = decode(stored[name]) if name in stored else _absent(info, name)
            except Unfit as error:
                raise _unreadable(info, row, f"{name}{''.join(error.path)}: {error.reason}") from error
        if info.kind == "relation" and info.key_field is not None:
            values[info.key_field] = _instance_key(info, row)
        one: Any = object.__new__(info.python)
        one.__dict__.update(values)
        made.append(one)
    return made


def _erased(info: TypeInfo, row: Row) -> Any:
    """An object of which only the identity is left."""
    values: dict[str, Any] = dict(zip(ENDS, row.identity, strict=False)) if info.kind == "relation" else {}
    values |= dict.fromkeys(info.fields)
    if info.key_field is not None:
        try:
            values[info.key_field] = info.validator.one(info.key_field, row.identity[-1])
        except InvalidValue as error:
            raise _unreadable(info, row, str(error)) from error
    one: Any = object.__new__(info.python)
    one.__dict__.update(values)
    return one


def _stored(info: TypeInfo, row: Row) -> dict[str, Any]:
    try:
        stored = json.loads(row.fields_json)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{_label(info, row)}: fields_json is not JSON ({error})") from error
    if not isinstance(stored, dict):
        raise Corrupt(f"{_label(info, row)}: fields_json is not an object")
    return stored


def _absent(info: TypeInfo, name: str) -> Any:
    if info.fields[name].has_default:
        return info.default_of(name)
    if without_null(info.nodes[name])[1]:
        return None
    raise Unfit("is not there, and has no default")


def _instance_key(info: TypeInfo, row: Row) -> Any:
    """From its column: it is not among the fields of ``fields_json``."""
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
    """The columns that most questions read come first, then the typed ones by name, then ``fields_json``; sorted by
    identity.

    ``fields_json`` is most of a file, and most questions read none of it: as the last column it leaves the others next
    to each other in each row group. ``_retracted`` is there only if a row is.
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
    table = pa.table(found).replace_schema_metadata(marks(info.columns, partial))
    if isinstance(rows, Batch) and rows.ascending:
        return table
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys]))


def marks(nodes: Mapping[str, Node], partial: Collection[str]) -> dict[bytes, bytes]:
    """The metadata about typed columns: their forms, and which of them lack values."""
    found = {FORMS: json.dumps({name: form_of(node) for name, node in nodes.items()}).encode()}
    if partial:
        found[PARTIAL] = json.dumps(sorted(partial)).encode()
    return found


def _columns(rows: Sequence[Row], width: int) -> tuple[Sequence[pa.Array], Any, Mapping[str, pa.Array]]:
    """The columns of the identity, ``fields_json``, and typed columns that are there already."""
    if isinstance(rows, Batch):
        return rows.keys, rows.bodies, rows.typed
    keys = [pa.array([row.identity[number] for row in rows], pa.string()) for number in range(width)]
    return keys, [row.fields_json for row in rows], {}


def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def partial_columns(schema: pa.Schema) -> frozenset[str]:
    """The typed columns of a file whose nulls prove nothing."""
    return frozenset(json.loads((schema.metadata or {}).get(PARTIAL, b"[]")))


def column_forms(schema: pa.Schema) -> dict[str, str]:
    """What the typed columns of a file hold, as far as it says so itself."""
    return dict(json.loads((schema.metadata or {}).get(FORMS, b"{}")))


def from_table(table: pa.Table) -> list[Row]:
    """The rows of a table, ours or a plain writer's. Without the column ``_retracted`` no row is a retraction."""
    identities = zip(*(table.column(name).to_pylist() for name in stored_keys(table)), strict=True)
    bodies = table.column("fields_json").to_pylist()
    kept = names.RETRACTED in table.column_names
    gone = table.column(names.RETRACTED).to_pylist() if kept else [False] * len(bodies)
    return list(map(Row._make, zip(identities, bodies, map(bool, gone), strict=True)))


def stored_keys(table: pa.Table) -> tuple[str, ...]:
    """The columns of the identity, whichever kind the table is of."""
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
    """For tables like this one."""
    plain = [name for name in table.column_names if name != "fields_json"]
    return pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=[name for name in plain if repeats(table.column(name))],
        write_statistics=plain,
        store_schema=False,  # Parquet's own types say it all
        **options,
    )


def repeats(column: pa.ChunkedArray) -> bool:
    """Whether dictionary encoding pays for this column. It does not for keys, for example: twice the time and size."""
    if len(column) < SAMPLED:
        return True
    sample = column.take(pa.array(range(0, len(column), len(column) // SAMPLED)))
    try:
        return bool(pc.count_distinct(sample).as_py() <= len(sample) // 2)
    except pa.ArrowNotImplementedError:  # lists cannot be counted
        return True


def from_parquet(body: bytes, *, key: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file. Of ``columns`` those that it has: files of older schemas and of plain writers have fewer."""
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            wanted = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            return file.read(columns=wanted, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key}: not a Parquet file ({error})") from error
