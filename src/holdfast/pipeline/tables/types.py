"""Entities and relations as tables: the state of now or of then, or every row that was ever written.

    Customer             the state at the head, or at a moment (``as_of``); rows (``history``, ``since``, ``between``)
    Customer__history    every row, with ``retracted``; Customer__as_of_12: the state after commit 12

The same names, columns and rows as ``holdfast sql`` has.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Moment, When, Window, window
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.query import partitions
from holdfast.ontology.types.expressions.ast import And, Comparison, FieldPath, In, IsNotNull, Predicate, Text
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.refs import Place
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.typespec import Form
from holdfast.pipeline.tables.conditions import Condition
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.nested import field_of, native_type, parsed
from holdfast.pipeline.tables.table import Wanted

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
        stored = partitions.schema_of(self.shape, history=self.window.history)
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
        return IsNotNull(path) if form != "key" else None
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
