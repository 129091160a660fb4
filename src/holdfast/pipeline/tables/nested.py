"""Maps, structs and lists of them as columns of Arrow's own types, from the JSON that queries give for such fields.

A field of one shape (a dictionary, a record, a list of these) has a type of its own. Times and decimals inside it stay
the texts that are stored: records may hold times without a zone, and Arrow would pad decimals. Where values may have
several shapes (a union, any JSON, a record that contains itself) the column stays JSON text, and is marked as such, so
that a frame that was read can be written back (``JSON_TEXT``).
"""

import json
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.columns import arrow_type, column
from holdfast.ontology.format.data.intake import JSON_TEXT
from holdfast.ontology.types.typespec import DictOf, ListOf, Node, Primitive, Record, form_of, without_null


def field_of(name: str, node: Node) -> pa.Field:
    """The column of a field, in tables."""
    if form_of(node) != "json":
        return pa.field(name, arrow_type(node))
    kind = native_type(node)
    return pa.field(name, pa.string(), metadata=JSON_TEXT) if kind is None else pa.field(name, kind)


def native_type(node: Node) -> pa.DataType | None:
    """None where only JSON text can hold what the field may hold."""
    plain, _ = without_null(node)
    match plain:
        case DictOf(value=value):
            inner = native_type(value)
            return None if inner is None else pa.map_(pa.string(), inner)
        case ListOf(item=item):
            inner = native_type(item)
            return None if inner is None else pa.list_(inner)
        case Record(fields=fields):
            kinds = {name: native_type(field) for name, field in fields.items()}
            known = [(name, kind) for name, kind in kinds.items() if kind is not None]
            return pa.struct(known) if known and len(known) == len(kinds) else None
    if isinstance(plain, Primitive) and plain.python in (datetime, Decimal):
        return pa.string()
    return None if form_of(plain) == "json" else arrow_type(plain)


def parsed(name: str, node: Node, texts: pa.Array) -> pa.Array:
    """A column of JSON texts as a column of ``native_type``. ``Corrupt`` for a value that it cannot hold."""
    values = [None if text is None else json.loads(text) for text in texts.to_pylist()]
    return _array(name, node, values)


def _array(name: str, node: Node, values: Sequence[Any]) -> pa.Array:
    plain, _ = without_null(node)
    kind = native_type(plain)
    if kind is None:
        raise Corrupt(f"field {name} has no type of its own")
    missing = pa.array([value is None for value in values], pa.bool_())
    match plain:
        case DictOf(value=value):
            items = [each or {} for each in values]
            keys = pa.array([key for each in items for key in each], pa.string())
            inner = _array(name, value, [one for each in items for one in each.values()])
            return pa.MapArray.from_arrays(_offsets(values), keys, inner, type=kind)
        case ListOf(item=item):
            inner = _array(name, item, [one for each in values for one in each or ()])
            return pa.ListArray.from_arrays(_offsets(values), inner, type=kind)
        case Record(fields=fields):
            columns = [
                _array(f"{name}.{field}", inner, [None if each is None else each.get(field) for each in values])
                for field, inner in fields.items()
            ]
            return pa.StructArray.from_arrays(columns, fields=list(kind), mask=missing)
    if kind == pa.string():
        return pa.array(values, kind)
    made = column(plain, list(values))
    if made.partial:
        raise Corrupt(
            f"field {name} has a value that {kind} cannot hold", remedy="leave the column out (option columns)"
        )
    return made.array


def _offsets(values: Sequence[Any]) -> pa.Array:
    """Where each value's items begin; null where there is no value."""
    ends = list(accumulate((len(each or ()) for each in values), initial=0))
    starts = [None if value is None else start for value, start in zip(values, ends, strict=False)]
    return pa.array([*starts, ends[-1]], pa.int32())
