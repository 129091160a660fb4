"""Orderings in SQL for DuckDB: the counterpart of ``evaluate.ordered``. Pure.

A complete typed column is ordered as it is. Numbers in JSON need two expressions: the nearest double, and where doubles
no longer tell whole numbers apart (from 2**53 on) a text that does.
"""

from holdfast.ontology.filters import reading as forms
from holdfast.ontology.filters.ast import Order
from holdfast.ontology.filters.jsonsql import NUMBERS, SPECIAL, JsonPlace, KeyPlace, key_of, let, matches
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.reading import Reading
from holdfast.ontology.filters.scope import Scope, Sql
from holdfast.ontology.filters.sql import place_of

_EXACT = 2**53
"""Up to here every whole number is a double."""


def compile_order(order: Order, scope: Scope) -> Sql:
    """One or more terms for ORDER BY, with commas in between."""
    direction = f"{'DESC' if order.descending else 'ASC'} NULLS {order.nulls.upper()}"
    return joined(", ", [fill(f"{{}} {direction}", value) for value in sort_values(order, scope)])


def sort_values(order: Order, scope: Scope) -> list[Sql]:
    """What to sort by; NULL for null and for what is unlike."""
    place = place_of(order.path, scope)
    if order.reading is not None and place.complete and (typed := place.typed(order.reading)) is not None:
        return [typed.sql]
    if isinstance(place.json, KeyPlace):
        return [place.json.test(order.reading or "text", lambda operand: operand.sql)]
    return _any(place.json) if order.reading is None else _of(place.json, order.reading)


def _of(place: JsonPlace, reading: Reading) -> list[Sql]:
    if reading in ("number", "real"):
        return _numbers(place, special=reading == "real")
    return [place.test(reading, lambda operand: operand.sql)]


def _any(place: JsonPlace) -> list[Sql]:
    """Booleans, numbers, texts."""
    rank = fill(
        f"CASE WHEN {{}} = 'BOOLEAN' THEN 0 WHEN {{}} IN {NUMBERS} THEN 1 WHEN {{}} = 'VARCHAR' THEN 2 END",
        place.type,
        place.type,
        place.type,
    )
    return [rank, *_of(place, "bool"), *_of(place, "number"), *_of(place, "text")]


def _numbers(place: JsonPlace, *, special: bool) -> list[Sql]:
    taken = fill(f"{{}} IN {NUMBERS}", place.type)
    if special:
        taken = fill(f"({{}} OR ({{}} = 'VARCHAR' AND {{}} IN {SPECIAL}))", taken, place.type, place.text)
    text = fill("CASE WHEN {} THEN {} END", taken, place.text)
    return [fill("TRY_CAST({} AS DOUBLE)", text), let(text, "found", _tie)]


def _tie(text: Sql) -> Sql:
    """Tells numbers apart whose doubles are equal; the infinities lie beyond all others."""
    double = fill("TRY_CAST({} AS DOUBLE)", text)
    return fill(
        f"CASE WHEN isnan({{}}) OR abs({{}}) < {_EXACT} THEN NULL WHEN {{}} THEN {{}} "
        "WHEN isinf({}) THEN CASE WHEN {} > 0 THEN '3' ELSE '' END ELSE {} END",
        double,
        double,
        matches(text, forms.WHOLE),
        key_of(text),
        double,
        double,
        key_of(fill("CAST(TRY_CAST({} AS BIGNUM) AS VARCHAR)", double)),
    )
