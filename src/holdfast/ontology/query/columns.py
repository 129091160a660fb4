"""A type's rows as users see them in a table: in SQL, in Spark, and as Arrow.

Columns are the keys of a relation's ends, the fields, and ``commit_id``; in history also ``retracted``. A field of no
simple type is JSON. A field that a file has no complete typed column of is read from ``fields_json``; a value that its
column cannot hold fails the statement, and ``naming_misfits`` says which one.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.ontology.filters.jsonsql import decimal_of, json_path
from holdfast.ontology.filters.operand import Sql, quoted, text_literal
from holdfast.ontology.format.data.columns import DECIMAL, arrow_type
from holdfast.ontology.query.cache.loaded import duck_type
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.readings import WHOLE
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import SqlFailed

_NOT_HELD = re.compile(r"holdfast-not-held:(?P<place>.*?)\|(?P<kind>[^|]*)\|(?P<value>.*)", re.DOTALL)
"""In DuckDB's message for a value that a column cannot hold."""


def schema_of(shape: TypeInfo, *, history: bool) -> pa.Schema:
    fields: list[tuple[str, pa.DataType]] = []
    if shape.ends is not None:
        fields += [("left_key", pa.string()), ("right_key", pa.string())]
    for name in shape.nodes:
        plain = name in shape.payload and shape.forms[name] != "json"
        fields.append((name, arrow_type(shape.nodes[name]) if plain else pa.string()))
    if not shape.nodes:
        fields += [("entity_key" if shape.ends is None else "instance_key", pa.string()), ("fields_json", pa.string())]
    fields.append(("commit_id", pa.int64()))
    if history:
        fields.append(("retracted", pa.bool_()))
    return pa.schema(fields)


def columns_of(table: Table, *, as_json: bool = False) -> Iterator[tuple[str, str]]:
    """The name and the SQL of each column, if the alias of the table is ``r``.

    With ``as_json`` fields of no simple type have DuckDB's type JSON, which takes longer.
    """
    shape = table.shape
    if shape.ends is not None:
        yield "left_key", "r.left_key"
        yield "right_key", "r.right_key"
    for name in shape.nodes:
        if name not in shape.payload:
            yield name, f"r.instance_key AS {quoted(name)}"
        else:
            yield name, _column(table, name, as_json=as_json)
    if not shape.nodes:
        key = "entity_key" if shape.ends is None else "instance_key"
        yield key, f"r.{key}"
        yield "fields_json", "r.fields_json"
    yield "commit_id", "r.commit_id"
    if table.window.history:
        yield "retracted", "r._retracted AS retracted"


def in_schema(found: pa.Table | pa.RecordBatch, schema: pa.Schema) -> pa.Table | pa.RecordBatch:
    """The result of a statement over these columns, in exactly these types."""
    columns = []
    for number, field in enumerate(schema):
        column = found.column(number)
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.cast(column.type.storage_type)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return type(found).from_arrays(columns, schema=schema)


@contextmanager
def naming_misfits() -> Iterator[None]:
    """``Invalid`` if a statement over these columns has failed because of a value that its column cannot hold."""
    try:
        yield
    except SqlFailed as error:
        found = _NOT_HELD.search(str(error))
        if found is None:
            raise
        raise Invalid(
            f"{found['place']}: {found['kind']} cannot hold {found['value']}",
            remedy="leave the column out, read the object with get(), or write it again with a value that fits",
        ) from error


def _column(table: Table, name: str, *, as_json: bool) -> str:
    shape = table.shape
    path = text_literal(json_path([name]))
    if shape.forms[name] == "json":
        if name not in table.lacking:
            return f"CAST(r.{quoted(name)} AS JSON) AS {quoted(name)}" if as_json else f"r.{quoted(name)}"
        # JSON has a null of its own, for which IS NULL is false.
        return f"nullif(json_extract(r.fields_json, {path}), CAST('null' AS JSON)) AS {quoted(name)}"
    if name not in table.lacking:
        return f"r.{quoted(name)}"
    column = arrow_type(shape.nodes[name])
    kind = duck_type(column)
    text = f"json_extract_string(r.fields_json, {path})"
    value = f"coalesce(r.{quoted(name)}, TRY({_read_as(text, column)}))"
    message = text_literal(f"holdfast-not-held:{shape.name}.{name}|{kind}|")
    return (
        f"CASE WHEN {value} IS NULL AND {text} IS NOT NULL THEN error({message} || {text}) ELSE {value} END "
        f"AS {quoted(name)}"
    )


def _read_as(text: str, kind: pa.DataType) -> str:
    """The text of a JSON value as a value of a column. Bytes are base64 in JSON, also in lists. NULL for a number that
    the cast would round.
    """
    if kind == pa.int64():
        return f"CASE WHEN regexp_full_match({text}, '{WHOLE}') THEN TRY_CAST({text} AS BIGINT) END"
    if kind == DECIMAL:
        return decimal_of(Sql(text)).text
    if "BLOB" not in str(duck_type(kind)):
        return f"TRY_CAST({text} AS {duck_type(kind)})"
    texts = str(duck_type(kind)).replace("BLOB", "VARCHAR")
    return _decoded(f"TRY_CAST({text} AS {texts})", kind, 0)


def _decoded(value: str, kind: pa.DataType, depth: int) -> str:
    if not isinstance(kind, pa.ListType):
        return f"from_base64({value})"
    item = f"item{depth}"
    return f"list_transform({value}, lambda {item}: {_decoded(item, kind.value_type, depth + 1)})"
