"""Aggregates in SQL for DuckDB: a column of an aggregating query, and the function that decodes its value. Pure.

Nulls and unlike values are left out. The sum of whole numbers is exact, of any size; with a float among them it is a
float. Decimals are added exactly, to ten thousand digits. ``min``, ``max`` and ``quantile`` follow the order of
``compile_order``, where NaN is greatest; ``count_distinct`` counts all NaN as one value.

Complete typed columns are aggregated by DuckDB alone. Over JSON it adds what it can add exactly, and returns the few
numbers that none of its types holds.
"""

import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

from holdfast.ontology.filters.jsonsql import KeyPlace, matches
from holdfast.ontology.filters.operand import Domain, Operand, bound, fill, joined
from holdfast.ontology.filters.scope import Scope, Sql
from holdfast.ontology.filters.sql import compile_where, place_of, sort_values
from holdfast.ontology.types.expressions.ast import Aggregate, AggregateTerm, AvgLen, Count, Order
from holdfast.ontology.types.readings import read


def total(values: Sequence[Any]) -> Any:
    """The sum: exact, unless there are floats among the values."""
    if any(isinstance(value, float) for value in values):
        return float(sum(value for value in values if isinstance(value, float))) + _rounded(
            sum(value for value in values if not isinstance(value, float))
        )
    if not isinstance(values[0], Decimal):
        return sum(values)
    with localcontext(prec=10_000, Emin=-(10**17), Emax=10**17):
        return sum(values, Decimal(0))


def mean(summed: Any, count: int) -> float:
    if isinstance(summed, float):
        return summed / count
    if isinstance(summed, Decimal):
        with localcontext(prec=60):
            return float(summed / count)
    try:
        return float(summed / count)
    except OverflowError:
        return _rounded(summed)


def _rounded(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


Decode = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCALE = 10**18


class FigureSql(NamedTuple):
    """A column, and the figure from what it answers."""

    sql: Sql
    decode: Decode


def compile_figure(term: AggregateTerm, scope: Scope) -> FigureSql:
    match term:
        case Count(where=where):
            if where is None:
                return FigureSql(Sql("count(*)"), _same)
            return FigureSql(fill("count(*) FILTER (WHERE {})", compile_where(where, scope)), _same)
        case AvgLen(path=path):
            return FigureSql(fill("avg({})", _length(term, scope)), _same)
        case Aggregate(path=path, reading=reading):
            place = place_of(path, scope)
            typed = place.typed(reading) if place.complete else None
            return _json(term, scope) if typed is None else _typed(term, typed)


def _same(value: Any) -> Any:
    return value


def _length(term: AvgLen, scope: Scope) -> Sql:
    place = place_of(term.path, scope)
    if place.column is not None and place.column.form == "list" and place.complete:
        return Sql(f"len({place.column.sql})")
    if isinstance(place.json, KeyPlace):
        return Sql("CAST(NULL AS BIGINT)")
    return fill("CASE WHEN {} = 'ARRAY' THEN {} END", place.json.type, place.json.length)


# --- typed columns ---


def _typed(term: Aggregate, operand: Operand) -> FigureSql:
    value = operand.sql
    match term.function:
        case "sum" | "avg" if operand.domain == "decimal":
            # Two sums of whole numbers, since one of DECIMAL(38, 18) would overflow beyond twenty digits.
            whole = fill("CAST(trunc({}) AS HUGEINT)", value)
            part = fill(f"CAST(({{}} - trunc({{}})) * {_SCALE} AS HUGEINT)", value, value)
            parts = fill("struct_pack(n := count({}), whole := sum({}), part := sum({}))", value, whole, part)
            return FigureSql(parts, lambda found: _added(term, _decimals(found), found))
        case "sum":
            return FigureSql(fill("sum({})", value), _same)
        case "avg":
            parts = fill("struct_pack(n := count({}), whole := sum({}))", value, value)
            return FigureSql(parts, lambda found: mean(found["whole"], found["n"]) if found["n"] else None)
        case "count_distinct":
            return FigureSql(fill("count(DISTINCT {})", value), _same)
        case "quantile":
            return _decoded(fill("quantile_disc({}, {})", value, _share(term)), operand.domain)
    return _decoded(fill(f"{term.function}({{}})", value), operand.domain)


def _decimals(found: Any) -> list[Decimal]:
    """Written out, since arithmetic would round."""
    return [Decimal(found["whole"] or 0), Decimal(f"{found['part'] or 0}E-18")]


def _added(term: Aggregate, values: list[Any], found: Any) -> Any:
    if not found["n"]:
        return None
    summed = total(values)
    return summed if term.function == "sum" else mean(summed, found["n"])


def _decoded(value: Sql, domain: Domain) -> FigureSql:
    if domain != "timestamp":
        return FigureSql(value, _same)
    # As a number, since the zone of a session has no part in it.
    micros = fill("epoch_us({})", value)
    return FigureSql(micros, lambda found: None if found is None else _EPOCH + timedelta(microseconds=found))


def _share(term: Aggregate) -> Sql:
    return Sql(format(Decimal(repr(term.at or 0.0)), "f"))


# --- JSON ---


def _json(term: Aggregate, scope: Scope) -> FigureSql:
    keys = sort_values(Order(term.path, term.reading), scope)
    named = joined(", ", [fill(f"k{number} := {{}}", key) for number, key in enumerate(keys)])
    there = fill("FILTER (WHERE {} IS NOT NULL)", keys[0])
    if term.function == "count_distinct":
        return FigureSql(fill("count(DISTINCT struct_pack({})) {}", named, there), _same)
    place = place_of(term.path, scope).json
    text = fill("to_json({})", Sql(place.column)) if isinstance(place, KeyPlace) else place.document_part
    if term.function in ("sum", "avg"):
        return _summed(term, text, there)
    ranked = fill("struct_pack({}, shown := CAST({} AS VARCHAR))", named, text)
    chosen = (
        fill("quantile_disc({}, {}) {}", ranked, _share(term), there)
        if term.function == "quantile"
        else fill(f"{term.function}({{}}) {{}}", ranked, there)
    )
    return FigureSql(fill("({}).shown", chosen), lambda found: None if found is None else _read(found, term))


def _read(text: str, term: Aggregate) -> Any:
    value = json.loads(text)
    return read(int(value) if term.reading == "number" and isinstance(value, str) else value, term.reading)


def _summed(term: Aggregate, text: Sql, there: Sql) -> FigureSql:
    """Whole numbers of 64 bits are added up by the engine, all others one by one: there are few of them, or none."""
    shown = fill("CAST({} AS VARCHAR)", text)
    small = matches(shown, r"-?[0-9]{1,18}")
    condition = Sql(there.text.removesuffix(")"), there.params)
    if term.reading == "float":
        return _floats(term, shown, condition)
    parts = fill(
        "struct_pack(n := count(*) {}), whole := sum(TRY_CAST({} AS HUGEINT)) {} AND {}), "
        "others := list({}) {} AND NOT {}))",
        condition,
        shown,
        condition,
        small,
        shown,
        condition,
        small,
    )

    def decode(found: Any) -> Any:
        whole = read(found["whole"] or 0, term.reading)
        return _added(term, [whole, *(_read(other, term) for other in found["others"] or [])], found)

    return FigureSql(parts, decode)


def _floats(term: Aggregate, shown: Sql, condition: Sql) -> FigureSql:
    value = fill("TRY_CAST(trim({}, {}) AS DOUBLE)", shown, bound('"', "VARCHAR"))
    parts = fill("struct_pack(n := count(*) {}), whole := sum({}) {}))", condition, value, condition)
    return FigureSql(parts, lambda found: _added(term, [found["whole"]], found))
