"""Entities and relations as tables: the state of now or of then, or every row that was ever written.

    Customer             the state at the head, or at a moment (``as_of``); rows (``history``, ``since``, ``between``)
    Customer__history    every row, with ``retracted``; Customer__as_of_12: the state after commit 12

The same names, columns and rows as ``holdfast sql`` has, with maps, structs and lists of them in Arrow's own types.

A field of one shape (a dictionary, a record, a list of these) has a type of its own. Times and decimals inside it stay
the texts that are stored: records may hold times without a zone, and Arrow would pad decimals. Where values may have
several shapes (a union, any JSON, a record that contains itself) the column stays JSON text, and is marked as such, so
that a frame that was read can be written back (``JSON_TEXT``).
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from itertools import accumulate
from typing import Any

import pyarrow as pa

from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Moment, When, Window, window
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.columns import arrow_type, column
from holdfast.ontology.format.data.intake import JSON_TEXT
from holdfast.ontology.query import partitions
from holdfast.ontology.query.columns import schema_of
from holdfast.ontology.types.expressions.ast import And, Comparison, FieldPath, In, IsNull, Not, Predicate, Text
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.refs import Place
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.typespec import DictOf, Form, ListOf, Node, Primitive, Record, form_of, without_null
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.table import Condition, Wanted

OPTIONS = ("as_of", "history", "since", "between")
_READINGS: Mapping[Form, tuple[Reading, tuple[type, ...]]] = {
    "text": ("text", (str,)),
    "int": ("number", (int,)),
    "decimal": ("decimal", (Decimal,)),
    "timestamp": ("datetime", (datetime,)),
    "date": ("date", (date,)),
    "bool": ("bool", (bool,)),
    "key": ("text", (str,)),
}
"""Forms whose values Spark and we compare alike. Floats are not among them: to Spark NaN equals NaN."""


@dataclass(frozen=True)
class TypeTable:
    """Picklable; pinned at one head."""

    name: str
    shape: TypeInfo
    place: Place | None
    window: Window

    @property
    def schema(self) -> pa.Schema:
        stored = schema_of(self.shape, history=self.window.history)
        return pa.schema([shown_field(self.shape, each) for each in stored])

    async def plan(self, store: Store, wanted: Wanted) -> list[partitions.Part]:
        chain = Chain(store)
        ledger = await chain.ledger(self.place)
        found = [_term(each, self.shape) for each in wanted.conditions.terms]
        predicate = And(tuple(each for each in found if each is not None))
        return await partitions.divide(
            store,
            chain,
            ledger,
            self.shape,
            self._within(wanted),
            predicate=predicate,
            columns=wanted.columns,
            count=wanted.partitions,
        )

    def _within(self, wanted: Wanted) -> Window:
        """Of a history, only the commits that are asked for."""
        if not self.window.history:
            return self.window
        low, high = wanted.conditions.whole("commit_id")
        lower = self.window.lower if low is None else max(self.window.lower, low - 1)
        upper = self.window.upper if high is None else min(self.window.upper, high)
        return replace(self.window, lower=lower, upper=upper)

    async def read(self, store: Store, part: partitions.Part, wanted: Wanted) -> AsyncIterator[pa.RecordBatch]:
        async for batch in partitions.read(store, part):
            columns = [natively(self.shape, *each) for each in zip(wanted.columns, batch.columns, strict=True)]
            schema = pa.schema([shown_field(self.shape, field) for field in batch.schema])
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def shown_field(shape: TypeInfo, stored: pa.Field) -> pa.Field:
    """The column of a field as tables show it, where queries have JSON."""
    return field_of(stored.name, shape.nodes[stored.name]) if stored.name in shape.payload else stored


def natively(shape: TypeInfo, name: str, column: pa.Array) -> pa.Array:
    """A column of a field that queries give as JSON texts, in its own type."""
    if name not in shape.payload or shape.forms[name] != "json" or native_type(shape.nodes[name]) is None:
        return column
    return parsed(name, shape.nodes[name], column)


def when_of(given: Given, name: str) -> When:
    """Which moments are asked for."""
    history, as_of, between = given.flag("history"), given.text("as_of"), given.texts("between")
    since = given.text("since")
    if sum((as_of is not None, bool(between), since is not None)) > 1:
        raise Invalid("as_of, since and between exclude each other", remedy="give one of them")
    if as_of is not None:
        if history:
            raise Invalid("as_of is about a state, and history about rows", remedy="use between, such as 1,12")
        return When(last=moment_of(as_of))
    if between:
        if len(between) != 2:
            raise Invalid(f"option between: {given.text('between')!r} are not two moments", remedy="write it like 3,9")
        return When("history", first=moment_of(between[0]), last=moment_of(between[1]))
    if since is not None:
        return When("history", after=moment_of(since))
    return When("history") if history or name.lower().endswith("__history") else When()


def moment_of(text: str) -> Moment:
    """A commit's number, a time, or a tag."""
    return int(text) if text.isdecimal() else text


async def window_of(store: Store, when: When, ledger: Ledger) -> Window:
    return await window(when, Chain(store), ledger)


def _term(condition: Condition, shape: TypeInfo) -> Predicate | None:
    """The condition in the language of queries; None if it does not mean the same there."""
    name = condition.column
    keys = () if shape.ends is None else ("left_key", "right_key", shape.key_field)
    if name in keys:
        form: Form = "key"
    elif name in shape.forms:
        form = shape.forms[name]
    else:
        return None
    path = FieldPath("own", name)
    if condition.operator == "not null":
        return Not(IsNull(path)) if form != "key" else None
    reading, kinds = _READINGS.get(form, (None, ()))
    if reading is None:
        return None
    values = condition.value if condition.operator == "in" else (condition.value,)
    if not all(_fits(value, kinds) for value in values):
        return None
    match condition.operator:
        case "in":
            return In(path, tuple(values), reading)
        case "startswith":
            return Text(path, "startswith", condition.value) if form == "text" else None
        case "=":
            return Comparison(path, "==", condition.value, reading)
        case "<" | "<=" | ">" | ">=" if form not in ("key", "bool"):
            return Comparison(path, condition.operator, condition.value, reading)
    return None


def _fits(value: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, datetime):
        return datetime in kinds and value.tzinfo is not None
    return isinstance(value, kinds)


# --- maps, structs, lists of them ---


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
