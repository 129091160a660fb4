"""The values that rows are grouped by, in SQL for DuckDB. Pure.

A value counts if it is what its field says: from its typed column, or from ``fields_json`` where a file has none. Whole
numbers inside JSON that is not declared as such count as floats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from holdfast.ontology.filters.ast import AggregateTerm, Count, End, FieldPath, Reading
from holdfast.ontology.filters.jsonsql import JsonPlace, KeyPlace
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.scope import Scope, Sql, form_of
from holdfast.ontology.filters.sql import place_of
from holdfast.ontology.filters.types import node_at
from holdfast.ontology.prune import paths
from holdfast.ontology.shape import Shape

_NUMBERS = ("'UBIGINT'", "'BIGINT'", "'HUGEINT'", "'UHUGEINT'", "'DOUBLE'")
_TYPES: dict[Reading, str] = {
    "text": "VARCHAR",
    "number": "DOUBLE",
    "real": "DOUBLE",
    "float": "DOUBLE",
    "decimal": "DECIMAL(38, 18)",
    "bool": "BOOLEAN",
    "datetime": "TIMESTAMPTZ",
    "date": "DATE",
    "bytes": "BLOB",
}
Shapes = Mapping[End, Shape]
"""By end: own, left, right."""


@dataclass(frozen=True)
class Key:
    """What rows are grouped by."""

    name: str
    path: FieldPath
    reading: Reading


def touched(term: AggregateTerm) -> list[FieldPath]:
    """The fields that a figure is about."""
    if isinstance(term, Count):
        return [] if term.where is None else list(paths(term.where))
    return [term.path]


def value(path: FieldPath, reading: Reading, scope: Scope, shapes: Shapes) -> Sql:
    """The value at a path, of one SQL type; NULL for what is null or unlike."""
    place = place_of(path, scope)
    if isinstance(place.json, KeyPlace):
        return place.json.test(reading, lambda operand: operand.sql)
    typed = place.typed(reading)
    if typed is not None and place.complete:
        return typed.sql
    kind = "HUGEINT" if reading == "number" and _whole(path, shapes) else _TYPES[reading]
    stored = _stored(place.json, reading, kind)
    return stored if typed is None else fill(f"coalesce(CAST({{}} AS {kind}), {{}})", typed.sql, stored)


def _stored(json: JsonPlace, reading: Reading, kind: str) -> Sql:
    if reading in ("number", "real"):
        taken = fill(f"{{}} IN ({', '.join(_NUMBERS)})", json.type)
        return fill(f"CASE WHEN {{}} THEN TRY_CAST({{}} AS {kind}) END", taken, json.text)
    if reading == "decimal":
        return fill(f"TRY_CAST({{}} AS {kind})", json.text)
    return fill(f"CAST({{}} AS {kind})", json.test(reading, lambda operand: operand.sql))


def _whole(path: FieldPath, shapes: Shapes) -> bool:
    node = node_at(shapes[path.end].nodes[path.field], path.steps, path.field)
    return form_of(node) == "int"


def python_value(found: Any) -> Any:
    """Whole numbers of more than 64 bits come as decimals from Arrow."""
    if isinstance(found, Decimal):
        return int(found) if found.as_tuple().exponent == 0 else found
    return {name: python_value(one) for name, one in found.items()} if isinstance(found, dict) else found
