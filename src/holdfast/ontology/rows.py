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
from holdfast.ontology import names
from holdfast.ontology.columns import typed_columns
from holdfast.ontology.declaration import Declaration
from holdfast.ontology.delta import Identity, Row
from holdfast.ontology.errors import InvalidValue, UnreadableRow
from holdfast.ontology.filters.scope import form_of
from holdfast.ontology.footer import FORMS, PARTIAL
from holdfast.ontology.keys import ENDS, UNKEYED, key_text
from holdfast.ontology.texts import texts
from holdfast.ontology.typespec import Node, without_null
from holdfast.ontology.values import Unfit

ROW_GROUP = 65_536


# --- objects to rows ---


def written(declared: Declaration, objects: Iterable[Any]) -> list[Row]:
    """The rows of objects of one type, in their order."""
    values = [_values(declared, one, number) for number, one in enumerate(objects)]
    columns = {name: [one[name] for one in values] for name in declared.fields}
    ends = [[one[name] for one in values] for name in ENDS] if declared.kind == "relation" else []
    template = "{" + ",".join(f'"{name}":%s' for name in declared.payload) + "}"
    parts = [field_texts(declared, name, columns[name]) for name in declared.payload]
    bodies = map(template.__mod__, zip(*parts, strict=True)) if parts else ["{}"] * len(values)
    return assembled(identities(declared, ends, columns, len(values)), bodies)


def identities(
    declared: Declaration, ends: Sequence[Sequence[str]], fields: Mapping[str, Sequence[Any]], count: int
) -> Iterable[Identity]:
    """From the columns of the ends, and of the key field."""
    parts = list(ends)
    if declared.key_field is not None:
        values = fields[declared.key_field]
        parts.append(values if declared.key_is_text else list(map(key_text, values)))
    elif declared.kind == "relation":
        parts.append([UNKEYED] * count)
    return zip(*parts, strict=True)


def assembled(keys: Iterable[Identity], bodies: Iterable[str]) -> list[Row]:
    return list(map(Row._make, zip(keys, bodies, repeat(False))))


def _values(declared: Declaration, one: Any, number: int) -> dict[str, Any]:
    if type(one) is not declared.python:
        raise InvalidValue(
            f"number {number}: a {declared.name} was expected, found a {type(one).__name__}",
            type_name=declared.name,
            row=number,
        )
    return one.__dict__


def field_texts(declared: Declaration, name: str, values: list[Any]) -> list[str]:
    """The JSON of one field, for each row."""
    node, codec = declared.nodes[name], declared.codecs[name]
    try:
        return texts(node, codec, values)
    except Unfit:
        for number, value in enumerate(values):  # once more, to say which
            try:
                texts(node, codec, [value])
            except Unfit as error:
                place = f"{declared.name}.{name}{''.join(error.path)}"
                raise InvalidValue(
                    f"{place}, number {number}: {error.reason}", type_name=declared.name, field=name, row=number
                ) from error
        raise


# --- rows to objects ---


def read(declared: Declaration, rows: Iterable[Row]) -> list[Any]:
    """The objects of stored rows. What a row of an older schema lacks is None or the field's default."""
    decoders = [(name, declared.codecs[name].decode) for name in declared.fields if name in declared.payload]
    made = []
    for row in rows:
        stored = _stored(declared, row)
        values: dict[str, Any] = dict(zip(ENDS, row.identity, strict=False)) if declared.kind == "relation" else {}
        for name, decode in decoders:
            try:
                values[name] = decode(stored[name]) if name in stored else _absent(declared, name)
            except Unfit as error:
                raise _unreadable(declared, row, f"{name}{''.join(error.path)}: {error.reason}") from error
        if declared.kind == "relation" and declared.key_field is not None:
            values[declared.key_field] = _instance_key(declared, row)
        one: Any = object.__new__(declared.python)
        one.__dict__.update(values)
        made.append(one)
    return made


def _stored(declared: Declaration, row: Row) -> dict[str, Any]:
    try:
        stored = json.loads(row.fields_json)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{_label(declared, row)}: fields_json is not JSON ({error})") from error
    if not isinstance(stored, dict):
        raise Corrupt(f"{_label(declared, row)}: fields_json is not an object")
    return stored


def _absent(declared: Declaration, name: str) -> Any:
    if declared.fields[name].has_default:
        return declared.default_of(name)
    if without_null(declared.nodes[name])[1]:
        return None
    raise Unfit("is not there, and has no default")


def _instance_key(declared: Declaration, row: Row) -> Any:
    """From its column: it is not among the fields of ``fields_json``."""
    try:
        return declared.validator.one(declared.key_field or "", row.identity[2])
    except InvalidValue as error:
        raise _unreadable(declared, row, str(error)) from error


def _label(declared: Declaration, row: Row) -> str:
    return f"{declared.name} {'/'.join(part for part in row.identity if part)!r}"


def _unreadable(declared: Declaration, row: Row, reason: str) -> UnreadableRow:
    return UnreadableRow(f"{_label(declared, row)}: {reason}")


# --- rows to tables ---


def key_columns(kind: str) -> tuple[str, ...]:
    return names.ENTITY_KEYS if kind == "entity" else names.RELATION_KEYS


def to_table(declared: Declaration, rows: Sequence[Row], commit_id: int, schema_version_id: int) -> pa.Table:
    """The columns of the specification in its order, then the typed ones by name; sorted by identity.

    ``_retracted`` is there only if a row is.
    """
    count, keys = len(rows), key_columns(declared.kind)
    bodies = [row.fields_json for row in rows]
    found: dict[str, Any] = {
        "commit_id": _constant(commit_id, pa.int64(), count),
        f"{declared.kind}_type": _constant(declared.name, pa.string(), count),
    }
    for number, name in enumerate(keys):
        found[name] = pa.array([row.identity[number] for row in rows], pa.string())
    found["schema_version_id"] = _constant(schema_version_id, pa.int64(), count)
    found["fields_json"] = pa.array(bodies, pa.string())
    nodes = {name: declared.nodes[name] for name in declared.payload}
    typed = typed_columns(nodes, bodies)
    found.update((name, made.array) for name, made in typed.items())
    if any(row.retracted for row in rows):
        found[names.RETRACTED] = pa.array([row.retracted for row in rows], pa.bool_())
    partial = [name for name, made in typed.items() if made.partial]
    table = pa.table(found).replace_schema_metadata(marks(nodes, partial))
    return table.take(pc.sort_indices(table, sort_keys=[(name, "ascending") for name in keys]))


def marks(nodes: Mapping[str, Node], partial: Collection[str]) -> dict[bytes, bytes]:
    """What a file says of its typed columns: what each holds, and which lack values."""
    found = {FORMS: json.dumps({name: form_of(node) for name, node in nodes.items()}).encode()}
    if partial:
        found[PARTIAL] = json.dumps(sorted(partial)).encode()
    return found


def _constant(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def partial_columns(schema: pa.Schema) -> frozenset[str]:
    """The typed columns of a file whose nulls prove nothing."""
    return frozenset(json.loads((schema.metadata or {}).get(PARTIAL, b"[]")))


def column_forms(schema: pa.Schema) -> dict[str, str]:
    """What the typed columns of a file hold, as far as it says so itself."""
    return dict(json.loads((schema.metadata or {}).get(FORMS, b"{}")))


def from_table(table: pa.Table) -> list[Row]:
    """The rows of a table, of whoever wrote it."""
    present = set(table.column_names)
    keys = key_columns("entity" if names.ENTITY_KEYS[0] in present else "relation")
    identities = zip(*(table.column(name).to_pylist() for name in keys), strict=True)
    bodies = table.column("fields_json").to_pylist()
    gone = table.column(names.RETRACTED).to_pylist() if names.RETRACTED in present else [False] * len(bodies)
    return list(map(Row._make, zip(identities, bodies, map(bool, gone), strict=True)))


# --- tables to files ---


def to_parquet(table: pa.Table) -> bytes:
    plain = [name for name in table.column_names if name != "fields_json"]
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        use_dictionary=plain,  # the JSON of rows hardly repeats, and nobody compares it
        write_statistics=plain,
        store_schema=False,  # Parquet's own types say it all
    ) as writer:
        writer.write_table(table, row_group_size=ROW_GROUP)
        if table.schema.metadata:
            writer.add_key_value_metadata(table.schema.metadata)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types


def from_parquet(body: bytes, *, key: str, columns: Sequence[str] | None = None) -> pa.Table:
    """The table in a file. Of ``columns`` those that it has: files of older schemas and of plain writers have fewer."""
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            wanted = None if columns is None else [name for name in columns if name in file.schema_arrow.names]
            return file.read(columns=wanted, use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key}: not a Parquet file ({error})") from error
