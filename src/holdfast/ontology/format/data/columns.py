"""Typed columns: the Arrow type of a field, and the columns of many rows from their ``fields_json``. Pure.

A column repeats what ``fields_json`` says in a form that engines can prune and compare by; ``fields_json`` decides. A
value that the column's type cannot hold (a whole number beyond 64 bits, a Decimal of more digits, a value of an older
schema) is null there, and the column is then ``partial``: its nulls prove nothing. A value that is there is the one
that queries read from ``fields_json`` (``types/readings.py``), so they may ask either.

    str, UUID, enums of strings  string          datetime   timestamp(us, UTC)
    int, enums of numbers        int64           date       date32
    float                        double          Decimal    decimal128(38, 18)
    bool                         bool            bytes      binary
    lists of these               list<...>       the rest   string, as canonical JSON

Rows of flat types are parsed by Arrow, without a Python object for any of them; whatever it does not take goes value by
value.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.base.errors import Corrupt
from holdfast.ontology.types import readings
from holdfast.ontology.types.codecs import to_json
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.typespec import Choice, ListOf, Node, Primitive, without_null

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
_JSON_TYPES: dict[pa.DataType, type] = {pa.string(): str, pa.int64(): int, pa.float64(): float, pa.bool_(): bool}
_FAILURES = (pa.ArrowException, TypeError, ValueError, OverflowError, InvalidOperation)
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


class Column(NamedTuple):
    array: pa.Array
    partial: bool = False


def arrow_type(node: Node) -> pa.DataType:
    found = _typed(without_null(node)[0])
    return JSON if found is None else found


def typed_columns(nodes: Mapping[str, Node], bodies: Sequence[str]) -> dict[str, Column]:
    """The columns of these fields, from the ``fields_json`` of each row."""
    if not nodes or not bodies:
        return {name: Column(pa.nulls(len(bodies), arrow_type(node))) for name, node in nodes.items()}
    scanned = _scanned(nodes, bodies) if len(bodies) >= _SCANNED_ROWS else None
    if scanned is not None:
        return {name: Column(array) for name, array in scanned.items()}
    try:
        parsed = json.loads(f"[{','.join(bodies)}]")
    except ValueError as error:
        raise Corrupt(f"fields_json of a row is not JSON ({error})") from error
    return {name: column(node, [fields.get(name) for fields in parsed]) for name, node in nodes.items()}


def column(node: Node, values: list[Any]) -> Column:
    """The typed column of a field, from its JSON values; None where there is nothing."""
    plain = without_null(node)[0]
    kind = _typed(plain)
    if kind is None:
        return Column(pa.array([None if value is None else to_json(value) for value in values], JSON))
    written = _as_written(plain, kind)
    if written is not None and _uniform(values, written):
        try:
            return Column(_cast(pa.array(values, written), kind))
        except (pa.ArrowException, OverflowError):
            pass  # one of them is out of range, or written otherwise: value by value
    read = _reader(plain)
    if written is None:
        try:
            return Column(pa.array([None if value is None else read(value) for value in values], kind))
        except _FAILURES:
            pass  # as above
    kept = [_fitting(value, kind, read) for value in values]
    lost = any(one is None and value is not None for one, value in zip(kept, values, strict=True))
    return Column(pa.array(kept, kind), lost)


def _uniform(values: Iterable[Any], written: pa.DataType) -> bool:
    """Whether all values are of the one JSON type that is written so; Arrow itself would take true for 1."""
    kinds = set(map(type, values)) - {type(None)}
    if isinstance(written, pa.ListType):
        return kinds <= {list} and _uniform(chain.from_iterable(filter(None, values)), written.value_type)
    return kinds <= {_JSON_TYPES[written]}


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


# --- by Arrow ---


def _scanned(nodes: Mapping[str, Node], bodies: Sequence[str]) -> dict[str, pa.Array] | None:
    """All columns at once; None if one of them, or one of their values, is not for Arrow."""
    kinds = {name: arrow_type(node) for name, node in nodes.items()}
    written = {name: _as_written(nodes[name], kind) for name, kind in kinds.items()}
    if None in written.values():
        return None
    data = "\n".join(bodies).encode()
    if len(data) > _LARGEST_SCAN:
        return None
    try:
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=pa.schema(written), unexpected_field_behavior="ignore"),
        ).combine_chunks()
        if table.num_rows != len(bodies):  # JSON over several lines
            return None
        return {name: _cast(table.column(name).combine_chunks(), kind) for name, kind in kinds.items()}
    except pa.ArrowException:
        return None


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """To the type of the column; ``ArrowInvalid`` if there is a text that is not written as it should be."""
    leaves = array
    while isinstance(leaves.type, pa.ListType):
        leaves = leaves.flatten()
    pattern = _CASTABLE.get(_leaf(kind))
    if pattern is not None and pc.all(pc.match_substring_regex(leaves, pattern), min_count=0).as_py() is False:
        raise pa.ArrowInvalid(f"a text that is not a {_leaf(kind)}")
    return array.cast(kind)


def _as_written(node: Node, kind: pa.DataType) -> pa.DataType | None:
    """What the JSON of a column is, before it is cast to ``kind``; None if a cast is not enough."""
    if pa.types.is_binary(kind) or _typed(without_null(node)[0]) is None:
        return None
    if isinstance(kind, pa.ListType):
        plain = without_null(node)[0]
        inner = _as_written(plain.item, kind.value_type) if isinstance(plain, ListOf) else None
        return None if inner is None else pa.list_(inner)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return pa.string()
    return kind


# --- value by value ---


def _fitting(value: Any, kind: pa.DataType, read: Callable[[Any], Any]) -> Any:
    """The value as Arrow takes it, or None."""
    if value is None:
        return None
    try:
        made = read(value)
        if isinstance(made, Decimal) and not made:
            made = Decimal(0)  # Arrow refuses zeros with large exponents
        held = pa.array([made], kind)
        # Decimals of too many digits are not always refused: some come out as other numbers.
        return made if _leaf(kind) != DECIMAL or held[0].as_py() == made else None
    except _FAILURES:
        return None


def _leaf(kind: pa.DataType) -> pa.DataType:
    while isinstance(kind, pa.ListType):
        kind = kind.value_type
    return kind


def _reader(node: Node) -> Callable[[Any], Any]:
    """A function from a JSON value to the value for Arrow, which raises if the value does not fit the node."""
    match node:
        case Primitive(python=python):
            return _READERS.get(python, _text)
        case Choice():
            return _READERS.get(node.stored, _text)
        case ListOf(item=item):
            read = _reader(without_null(item)[0])
            return lambda value: [None if each is None else read(each) for each in _exactly(list)(value)]
    raise TypeError(f"{node!r} has no column type")


def _exactly(kind: type) -> Callable[[Any], Any]:
    """Arrow would take true for 1, and a text for a list."""

    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError(f"{value!r} is not a {kind.__name__}")
        return value

    return read


def _read(kind: Reading) -> Callable[[Any], Any]:
    """The value as a query reads it."""

    def read(value: Any) -> Any:
        made = readings.read(value, kind)
        if made is None:
            raise TypeError(f"{value!r} is not a {kind}")
        return made

    return read


_text = _exactly(str)
_READERS: dict[type, Callable[[Any], Any]] = {
    int: _exactly(int),
    float: _read("float"),
    bool: _exactly(bool),
    datetime: _read("datetime"),
    date: _read("date"),
    Decimal: _read("decimal"),
    bytes: _read("bytes"),
}
