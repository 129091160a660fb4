"""The values that rows are grouped by, in SQL for DuckDB. Pure.

A complete typed column is grouped as it is. Elsewhere values are grouped by what orders them, which tells apart exactly
what is not equal, whatever its size; and a group is shown as one of its values is written. Null and what is unlike are
one group.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

from holdfast.ontology.filters.ast import AggregateTerm, Count, FieldPath, Order
from holdfast.ontology.filters.jsonsql import KeyPlace
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.ordersql import sort_values
from holdfast.ontology.filters.reading import Reading, read
from holdfast.ontology.filters.scope import Scope, Sql
from holdfast.ontology.filters.sql import place_of
from holdfast.ontology.prune import paths


@dataclass(frozen=True)
class Key:
    """What rows are grouped by; ``reading`` is None where it may be anything."""

    name: str
    path: FieldPath
    reading: Reading | None


class Grouping(NamedTuple):
    """A key in SQL: what is equal within a group, and what shows it."""

    values: list[Sql]
    shown: Sql
    decode: Callable[[Any], Any]


def touched(term: AggregateTerm) -> list[FieldPath]:
    """The fields that a figure is about."""
    if isinstance(term, Count):
        return [] if term.where is None else list(paths(term.where))
    return [term.path]


def grouping(key: Key, scope: Scope) -> Grouping:
    place, reading = place_of(key.path, scope), key.reading
    typed = place.typed(reading) if reading is not None and place.complete else None
    if typed is not None:
        return Grouping([typed.sql], typed.sql, python_value)
    values = sort_values(Order(key.path, reading), scope)
    stored = place.json
    text = fill("to_json({})", Sql(stored.column)) if isinstance(stored, KeyPlace) else stored.document_part
    # Of several ways to write one number always the same one.
    shown = fill("min(CAST({} AS VARCHAR)) FILTER (WHERE {} IS NOT NULL)", text, values[0])
    return Grouping(values, shown, lambda found: None if found is None else _value(found, reading))


def _value(text: str, reading: Reading | None) -> Any:
    value = json.loads(text)
    if reading is None:
        return value
    return read(int(value) if reading == "number" and isinstance(value, str) else value, reading)


def python_value(found: Any) -> Any:
    """Whole numbers of more than 64 bits come as decimals from Arrow."""
    if isinstance(found, Decimal):
        return int(found) if found.as_tuple().exponent == 0 else found
    return {name: python_value(one) for name, one in found.items()} if isinstance(found, dict) else found
