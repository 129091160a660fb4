"""Rows from objects, and from Arrow tables without a Python object for each row.

Columns of plain types are cast and written as JSON by Arrow. All values of any other column go through the validator of
the field in one call. The error names the first value that does not fit, with its row.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.errors import Invalid
from holdfast.ontology.format.data.batch import LARGE, Batch, Row
from holdfast.ontology.format.data.columns import DECIMAL, TIMESTAMP, arrow_type
from holdfast.ontology.format.data.rows import (
    assembled,
    batched,
    field_texts,
    identities,
    written,
    written_columns,
)
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.typeinfo import ENDS, NOT_EMPTY, TypeInfo, end_key
from holdfast.ontology.types.typespec import DictOf, ListOf, Node, Primitive, Record, without_null

JSON_TEXT = {b"holdfast": b"json"}
"""Metadata of a column of JSON texts: a field's values as they are stored, or as the class takes them."""
_ESCAPED = np.isin(np.arange(256), [*range(0x20), *b'"\\'])
"""For each byte, whether JSON escapes it."""
_FAILURES = (pa.ArrowException, ValueError, TypeError, OverflowError, KeyError)
_ALL_DIGITS = Context(prec=76)
"""Rounds no Decimal that Arrow can hold."""


def queued(info: TypeInfo, given: Any) -> list[Row] | Batch:
    """The rows of an object, of objects, or of an Arrow table; as columns if they are many. Blocking for many.

    Takes Arrow tables, record batches, and objects that export themselves as such, such as a Polars frame.
    """
    if isinstance(given, info.python):
        return written(info, [given])
    typed: dict[str, pa.Array] = {}
    bodies: Any
    if hasattr(given, "__arrow_c_stream__"):
        keys, bodies, typed = arrow_columns(info, given)
    else:
        objects: Iterable[Any] = given
        keys, bodies = written_columns(info, objects)
    if len(bodies) >= LARGE:
        try:
            return batched(info, keys, bodies, typed)
        except (pa.ArrowException, UnicodeError):
            pass  # more than a column can hold: row by row
    return assembled(keys, bodies.to_pylist() if isinstance(bodies, pa.Array) else bodies)


def arrow_columns(info: TypeInfo, data: Any) -> tuple[list[Sequence[str]], pa.Array, dict[str, pa.Array]]:
    """The columns of the identity, ``fields_json``, and the typed columns that are already known.

    The table has a column for each field, and ``left_key`` and ``right_key`` for a relation.
    """
    table = _table(data)
    check_columns(info, table.column_names)
    count = table.num_rows
    ends, keys = _ends_and_keys(info, table)
    typed: dict[str, pa.Array] = {}
    parts: list[Any] = []
    between = "{"
    for name in info.payload:
        known = keys if name == info.key_field and isinstance(keys, list) else None
        text, column = _text(info, name, table, known)
        parts += [f'{between}"{name}":{text.quote}', text.array]
        between = f"{text.quote},"
        if column is not None:
            typed[name] = column
    if not parts or not count:
        bodies = pa.array(["{}"] * count, pa.string())
    else:
        bodies = pc.binary_join_element_wise(*parts, f"{between[:-1]}}}", "")
    return identities(info, ends, keys, count), bodies, typed


def identity_columns(info: TypeInfo, data: Any) -> list[Sequence[str]]:
    """The validated columns of the identity. Other columns are ignored."""
    table = _table(data)
    for name in (*(() if info.key_field is None else (info.key_field,)), *(ENDS if info.ends else ())):
        _check_present(info, name, table.column_names)
    ends, keys = _ends_and_keys(info, table)
    return identities(info, ends, keys, table.num_rows)


def known_texts(info: TypeInfo, name: str, table: pa.Table) -> list[tuple[int, str]]:
    """The validated JSON of one field, with the row number, of the rows that have the field."""
    numbers = pc.indices_nonzero(table.column(name).is_valid().combine_chunks())
    some = table.take(numbers)
    return list(zip(numbers.to_pylist(), field_texts(info, name, _values(info, name, some)), strict=True))


def _ends_and_keys(info: TypeInfo, table: pa.Table) -> tuple[list[list[str]], list[Any] | pa.Array | None]:
    ends = [_end(info, end, name, table) for name, end in zip(ENDS, info.ends or (), strict=False)]
    return ends, None if info.key_field is None else _key(info, info.key_field, table)


def _key(info: TypeInfo, name: str, table: pa.Table) -> list[Any] | pa.Array:
    """The validated values of the key; a plain text column is returned as it is."""
    if info.nodes[name].metadata == (NOT_EMPTY,) and name in table.column_names and not _is_json(table, name):
        column = table.column(name).combine_chunks()
        if pa.types.is_string(column.type) and not column.null_count and not pc.any(pc.equal(column, "")).as_py():
            return column
    return _values(info, name, table)


def _table(data: Any) -> pa.Table:
    try:
        return data if isinstance(data, pa.Table) else pa.table(data)
    except _FAILURES as error:
        raise Invalid(f"a {type(data).__name__} is not an Arrow table: {error}") from error


def check_columns(info: TypeInfo, given: Sequence[str]) -> None:
    """``InvalidValue`` for a column that is not a field, for one that occurs twice, and for a missing field."""
    wanted = [*info.fields, *(ENDS if info.ends is not None else ())]
    for name in given:
        if name not in wanted or given.count(name) > 1:
            close = [each for each in wanted if each.lower() == name.lower()] or difflib.get_close_matches(
                name, wanted, n=1
            )
            raise InvalidValue(
                f"{info.name} has no field {name}, but the table has such a column"
                if name not in wanted
                else f"the table has two columns {name}",
                type_name=info.name,
                field=name,
                remedy=f"did you mean {close[0]}?" if close and name not in wanted else "leave the column out",
            )
    for name in wanted:
        if not (name in info.fields and info.fields[name].has_default):
            _check_present(info, name, given)


def _check_present(info: TypeInfo, name: str, given: Sequence[str]) -> None:
    if name not in given:
        raise InvalidValue(
            f"{info.name}.{name} is missing among the columns of the table",
            type_name=info.name,
            field=name,
            remedy="add the column; fields with a default may be left out"
            if info.stored is None
            else "without its class a type has no defaults: add the column, or name the class",
        )


# --- columns of any type ---


def _text(info: TypeInfo, name: str, table: pa.Table, values: list[Any] | None) -> tuple["_PlainJson", pa.Array | None]:
    """The JSON of one field in each row, and its typed column if its type is plain. ``values`` if they are known."""
    node = info.nodes[name]
    if node.metadata == (NOT_EMPTY,):
        node = replace(node, metadata=())  # the key has been validated
    if values is None and name in table.column_names:
        column = table.column(name).combine_chunks()
        plain = None if _is_json(table, name) else _plain_json(node, column)
        if plain is not None:
            return plain, column.cast(arrow_type(node))
    texts = field_texts(info, name, _values(info, name, table) if values is None else values)
    return _PlainJson(pa.array(texts, pa.string())), None


def _values(info: TypeInfo, name: str, table: pa.Table) -> list[Any]:
    """The validated values of one field."""
    if name not in table.column_names:
        return [info.default_of(name) for _ in range(table.num_rows)]
    return info.validator.many(name, _python_values(info, name, table))


def _python_values(info: TypeInfo, name: str, table: pa.Table) -> list[Any]:
    column = table.column(name)
    if _is_json(table, name):
        return [None if each is None else _from_json(info, name, each) for each in column.to_pylist()]
    try:
        if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
            column = column.cast(pa.timestamp("us", column.type.tz))
        values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    except _FAILURES as error:
        row = next((number for number, each in enumerate(column) if not _has_python_form(each)), None)
        raise InvalidValue(
            f"{info.name}.{name}, row {row}: {error.args[0]}", type_name=info.name, field=name, row=row
        ) from error
    if column.type == DECIMAL or pa.types.is_decimal256(column.type):  # tables show every decimal with 18 places
        return [None if each is None else Decimal(f"{each.normalize(_ALL_DIGITS):f}") for each in values]
    if pa.types.is_nested(column.type) and name in info.nodes:
        return [_without_absent(info.nodes[name], each) for each in values]
    return values


def _is_json(table: pa.Table, name: str) -> bool:
    return (table.schema.field(name).metadata or {}).items() >= JSON_TEXT.items()


def _from_json(info: TypeInfo, name: str, text: str) -> Any:
    """A value from JSON as it is stored; any other value is left to the validator."""
    try:
        value = json.loads(text)
    except ValueError as error:
        message = f"{info.name}.{name}: {text[:80]!r} is not JSON ({error})"
        raise InvalidValue(message, type_name=info.name, field=name) from error
    try:
        return info.codecs[name].decode(value) if name in info.codecs else value
    except ValueError:
        return value


def _without_absent(node: Node, value: Any) -> Any:
    """A struct has all its fields. A key that may be absent and may not be null is left out if it is null there."""
    plain, _ = without_null(node)
    if value is None:
        return None
    match plain:
        case Record(fields=fields, optional=optional) if isinstance(value, dict):
            absent = {key for key in optional if value.get(key) is None and not without_null(fields[key])[1]}
            kept = {key: each for key, each in value.items() if key not in absent}
            return {key: _without_absent(fields[key], each) if key in fields else each for key, each in kept.items()}
        case DictOf(value=inner) if isinstance(value, dict):
            return {key: _without_absent(inner, each) for key, each in value.items()}
        case ListOf(item=item) if isinstance(value, list):
            return [_without_absent(item, each) for each in value]
    return value


def _has_python_form(value: pa.Scalar) -> bool:
    try:
        kind = value.type
        whole = value.cast(pa.timestamp("us", kind.tz)) if pa.types.is_timestamp(kind) else value
        whole.as_py(maps_as_pydicts="strict")
    except _FAILURES:
        return False
    return True


def _end(info: TypeInfo, end: TypeInfo, name: str, table: pa.Table) -> list[str]:
    """The keys of one end. Equal keys are validated once."""
    where = f"{info.name}.{name}"
    known: dict[Any, str] = {}
    keys: list[str] = []
    for row, value in enumerate(_python_values(info, name, table)):
        plain = type(value) in (str, int)
        key = known.get(value) if plain else None
        if key is None:
            try:
                key = end_key(end, value, where)
            except InvalidValue as error:
                raise InvalidValue(f"{error}, row {row}", type_name=info.name, field=name, row=row) from error
        if plain:
            known[value] = key
        keys.append(key)
    return keys


# --- columns of plain types ---


class _PlainJson(NamedTuple):
    """The JSON of a field's values, without quotes around them."""

    array: pa.Array
    quote: str = ""


def _plain_json(node: Node, array: pa.Array) -> _PlainJson | None:
    """The JSON of a column of a plain type; None if its values must be validated one by one."""
    plain, optional = without_null(node)
    write = _WRITERS.get(plain.python) if isinstance(plain, Primitive) else None
    if write is None or node.metadata or plain.metadata or (array.null_count and not optional):
        return None
    try:
        written = write(array)
    except pa.ArrowException:
        return None
    if written is None or not written.array.null_count:
        return written
    text = pc.binary_join_element_wise(written.quote, written.array, written.quote, "")
    return _PlainJson(pc.fill_null(text, "null"))


def _strings(array: pa.Array) -> _PlainJson | None:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
        return None
    array = array.cast(pa.string())
    return None if _has_escapes(array) else _PlainJson(array, '"')


def _has_escapes(array: pa.Array) -> bool:
    """Whether a text has a character that JSON escapes: a quote, a backslash, a control character."""
    _, places, data = array.buffers()
    if data is None or not len(array):
        return False
    ends = np.frombuffer(places, np.int32)
    held = np.frombuffer(data, np.uint8)[ends[array.offset] : ends[array.offset + len(array)]]
    return bool((_ESCAPED[held]).any())


def _integers(array: pa.Array) -> _PlainJson | None:
    return _PlainJson(array.cast(pa.int64()).cast(pa.string())) if pa.types.is_integer(array.type) else None


def _booleans(array: pa.Array) -> _PlainJson | None:
    return _PlainJson(pc.if_else(array, "true", "false")) if pa.types.is_boolean(array.type) else None


def _timestamps(array: pa.Array) -> _PlainJson | None:
    """A time without a zone is taken as UTC."""
    if not pa.types.is_timestamp(array.type):
        return None
    moments = array.cast(TIMESTAMP)
    if not _between(moments, _FIRST_MOMENT, _LAST_MOMENT):
        return None
    text = moments.cast(pa.timestamp("us")).cast(pa.string())
    return _PlainJson(pc.binary_join_element_wise(pc.replace_substring(text, " ", "T"), "+00:00", ""), '"')


def _dates(array: pa.Array) -> _PlainJson | None:
    if not pa.types.is_date(array.type):
        return None
    days = array.cast(pa.date32())
    if not _between(days, date.min, date.max):
        return None
    return _PlainJson(days.cast(pa.string()), '"')


def _between(array: pa.Array, first: date, last: date) -> bool:
    """Whether Python can hold the values, too."""
    # Scalars are made late: Arrow imports pandas, if it is installed, to convert the first Python value.
    low, high = pa.scalar(first, array.type), pa.scalar(last, array.type)
    return pc.all(pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))).as_py() is not False


_FIRST_MOMENT = datetime(1, 1, 1, tzinfo=UTC)
_LAST_MOMENT = datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)


_WRITERS: dict[type, Callable[[pa.Array], _PlainJson | None]] = {
    str: _strings,
    int: _integers,
    bool: _booleans,
    datetime: _timestamps,
    date: _dates,
}
