"""Typed columns: the Arrow type of a field, and the columns of many rows from their ``fields_json``. Pure.

A column repeats what ``fields_json`` says in a form that engines can prune and compare by; ``fields_json`` decides. A
value that the column's type cannot hold (a whole number beyond 64 bits, a Decimal of more digits, a value of an older
schema) is null there. A file names its complete columns, and queries use no others. A value in a column is the one that
queries read from ``fields_json`` (``types/readings.py``), so they may ask either.

    str, UUID, enums of strings  string          datetime   timestamp(us, UTC)
    int, enums of numbers        int64           date       date32
    float                        double          Decimal    decimal128(38, 18)
    bool                         bool            bytes      binary
    lists of these               list<...>       the rest   string, as canonical JSON

Arrow parses columns of flat types without a Python object per value. Python parses the others, and all columns of small
batches.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.base.errors import Corrupt
from holdfast.ontology.types import readings
from holdfast.ontology.types.codecs import to_json
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.typespec import Choice, Form, ListOf, Node, Primitive, form_of, without_null

TIMESTAMP = pa.timestamp("us", tz="UTC")
DECIMAL = pa.decimal128(38, 18)
JSON = pa.string()

_TYPES: dict[type, pa.DataType] = {
    str: pa.string(),
    UUID: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    datetime: TIMESTAMP,
    date: pa.date32(),
    Decimal: DECIMAL,
    bytes: pa.binary(),
}
_CASTABLE = {
    TIMESTAMP: f"^(?:{readings.DATETIME_UTC})$",
    pa.date32(): f"^(?:{readings.DATE})$",
    DECIMAL: r"^[+-]?[0-9]{1,20}(?:\.[0-9]{1,18})?$",
}
"""Texts that Arrow casts to what we read from them. It takes others as well, and makes other numbers of some that the
column cannot hold: 1E+30 becomes 18960114910927365649.47.
"""
_SCANNED_ROWS = 256
"""Below this number of rows Python parses them, which is faster than starting a scan."""
_LARGEST_SCAN = 1 << 30
"""Bytes of JSON that are parsed in one call."""
FORMS = b"holdfast.forms"
"""Metadata of a file: the forms of its complete typed columns, as a JSON object. Texts and JSON are both strings."""
_PARTIAL = b"holdfast.partial"
"""Older versions named incomplete columns among the forms, and listed them here."""


class Column(NamedTuple):
    array: pa.Array
    partial: bool = False
    """It lacks values that ``fields_json`` has."""


def arrow_type(node: Node) -> pa.DataType:
    found = _typed(without_null(node)[0])
    return JSON if found is None else found


def forms_metadata(nodes: Mapping[str, Node], partial: Collection[str]) -> dict[bytes, bytes]:
    """The metadata of a file with these typed columns, of which some are partial."""
    return {FORMS: json.dumps({name: form_of(node) for name, node in nodes.items() if name not in partial}).encode()}


def complete_forms(metadata: Mapping[bytes, bytes] | None) -> dict[str, Form] | None:
    """The forms of a file's complete typed columns; None for a file of a plain writer, which does not say."""
    if metadata is None or FORMS not in metadata:
        return None
    partial = json.loads(metadata.get(_PARTIAL, b"[]"))
    return {name: form for name, form in json.loads(metadata[FORMS]).items() if name not in partial}


def typed_columns(nodes: Mapping[str, Node], bodies: Sequence[str]) -> dict[str, Column]:
    """The columns of these fields, from the ``fields_json`` of each row."""
    if not bodies:
        return {name: Column(pa.nulls(0, arrow_type(node))) for name, node in nodes.items()}
    found = _scanned(nodes, bodies) if len(bodies) >= _SCANNED_ROWS else {}
    if len(found) < len(nodes):
        try:
            parsed = json.loads(f"[{','.join(bodies)}]")
        except ValueError as error:
            raise Corrupt(f"fields_json of a row is not JSON ({error})") from error
        for name, node in nodes.items():
            if name not in found:
                found[name] = column(node, [fields.get(name) for fields in parsed])
    return {name: found[name] for name in nodes}


def column(node: Node, values: list[Any]) -> Column:
    """The typed column of a field, from its JSON values; None where there is nothing."""
    plain = without_null(node)[0]
    kind = _typed(plain)
    if kind is None:
        return Column(pa.array([None if value is None else to_json(value) for value in values], JSON))
    read = _reader(plain)
    try:
        return Column(pa.array([None if value is None else read(value) for value in values], kind))
    except (pa.ArrowException, ValueError, OverflowError):
        kept = [_fitting(value, kind, read) for value in values]
    lost = any(one is None and value is not None for one, value in zip(kept, values, strict=True))
    return Column(pa.array(kept, kind), lost)


def _typed(node: Node) -> pa.DataType | None:
    """The Arrow type; None if only JSON fits."""
    match node:
        case Primitive(python=python):
            return _TYPES.get(python)
        case Choice():
            return _TYPES[node.stored]
        case ListOf(item=item):
            inner = _typed(without_null(item)[0])
            return None if inner is None else pa.list_(inner)
    return None


# --- parsed by Arrow ---


def _scanned(nodes: Mapping[str, Node], bodies: Sequence[str]) -> dict[str, Column]:
    """The columns of types that Arrow can read from JSON; none if it does not take one of their values."""
    kinds = {name: arrow_type(node) for name, node in nodes.items() if _typed(without_null(node)[0]) is not None}
    written = {name: kind for name, each in kinds.items() if (kind := _as_written(each)) is not None}
    data = "\n".join(bodies).encode()
    if not written or len(data) > _LARGEST_SCAN:
        return {}
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=pa.schema(written), unexpected_field_behavior="ignore"),
        ).combine_chunks()
        if table.num_rows != len(bodies):  # JSON over several lines
            return {}
        return {name: Column(_cast(table.column(name).combine_chunks(), kinds[name])) for name in written}
    except pa.ArrowException:
        return {}


def _as_written(kind: pa.DataType) -> pa.DataType | None:
    """The type of a column's JSON, before it is cast to ``kind``; None if a cast is not enough."""
    if pa.types.is_binary(kind):
        return None
    if isinstance(kind, pa.ListType):
        inner = _as_written(kind.value_type)
        return None if inner is None else pa.list_(inner)
    return pa.string() if kind in _CASTABLE else kind


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """To the type of the column; ``ArrowInvalid`` if there is a text that is not written as it should be."""
    leaves, leaf = array, kind
    while isinstance(leaf, pa.ListType):
        leaves, leaf = leaves.flatten(), leaf.value_type
    pattern = _CASTABLE.get(leaf)
    if pattern is not None and pc.all(pc.match_substring_regex(leaves, pattern), min_count=0).as_py() is False:
        raise pa.ArrowInvalid(f"a text that is not a {leaf}")
    return array.cast(kind)


# --- parsed by Python ---


def _fitting(value: Any, kind: pa.DataType, read: Callable[[Any], Any]) -> Any:
    """The value as Arrow takes it; None if it does not fit."""
    try:
        made = None if value is None else read(value)
        pa.array([made], kind)
    except (pa.ArrowException, ValueError, OverflowError):
        return None
    return made


def _reader(node: Node) -> Callable[[Any], Any]:
    """A function from a JSON value to the value for Arrow, which raises ``ValueError`` if it does not fit the node."""
    match node:
        case Primitive(python=python):
            return _READERS[python]
        case Choice():
            return _READERS[node.stored]
        case ListOf(item=item):
            read = _reader(without_null(item)[0])
            return lambda value: [None if each is None else read(each) for each in _exactly(list)(value)]
    raise TypeError(f"{node!r} has no column type")


def _exactly(kind: type) -> Callable[[Any], Any]:
    """Arrow would take true for 1, and a text for a list."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise ValueError(f"{value!r} is not a {kind.__name__}")
        return value

    return read


def _read(kind: Reading) -> Callable[[Any], Any]:
    """The value as a query reads it."""

    def read(value: Any) -> Any:
        made = readings.read(value, kind)
        if made is None:
            raise ValueError(f"{value!r} is not a {kind}")
        return made

    return read


def _decimal(value: Any) -> Decimal:
    made: Decimal = _read("decimal")(value)
    return made or Decimal(0)  # Arrow refuses zeros with large exponents


_READERS: dict[type, Callable[[Any], Any]] = {
    str: _exactly(str),
    UUID: _exactly(str),
    int: _exactly(int),
    float: _read("float"),
    bool: _exactly(bool),
    datetime: _read("datetime"),
    date: _read("date"),
    Decimal: _decimal,
    bytes: _read("bytes"),
}
