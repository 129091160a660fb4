"""Figures (aggregates) over the rows of a query, or over groups of them.

    await onto.query(Customer).agg(n=count(), oldest=Customer.age.max())
    await onto.query(Customer).group_by(Customer.tier).having(lambda group: group["n"] > 5).agg(n=count())

Groups are ordered by their keys, null last. Nulls and unlike values form one group, and figures leave them out. Values
of one domain are grouped and aggregated as they are. Numbers in JSON, of which some are whole and some are not, and
values of several types are grouped by their sort values; a group shows one of the texts of its value.

The sum of whole numbers is exact; with a float among them it is a float. Decimals are added exactly. ``min``, ``max``
and ``quantile`` follow the order of ``compile_order``, where NaN is greatest; for ``count_distinct`` all NaN are equal.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal, localcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.ontology.filters.jsonsql import WHOLES, JsonPlace, KeyPlace
from holdfast.ontology.filters.operand import Domain, Operand, Scope, Sql, fill, joined, quoted
from holdfast.ontology.filters.sql import compile_where, place_of, sort_values
from holdfast.ontology.query.cache.prune import paths
from holdfast.ontology.query.engine import Snapshot
from holdfast.ontology.query.statement import Ask, Rows, types_of
from holdfast.ontology.types.expressions.ast import Aggregate, AggregateTerm, AvgLen, Count, FieldPath, Order
from holdfast.ontology.types.expressions.fitting import reading_of
from holdfast.ontology.types.expressions.terms import FieldExpr, Figure
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.readings import Reading, read

if TYPE_CHECKING:
    from holdfast.ontology.query.query import Query


def total(values: Sequence[Any]) -> Any:
    """The sum: exact, unless there are floats among the values."""
    with localcontext(prec=100):
        return sum(values)


def mean(summed: Any, count: int) -> float:
    with localcontext(prec=100):
        return float(summed / count)


Decode = Callable[[Any], Any]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCALE = 10**18


class FigureSql(NamedTuple):
    """A column of the result, and how its values become the figure."""

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
            operand = place_of(path, scope).operand(reading)
            return _numbers(term, scope) if operand is None else _typed(term, operand)


def _same(value: Any) -> Any:
    return value


def _length(term: AvgLen, scope: Scope) -> Sql:
    place = place_of(term.path, scope)
    if place.column is not None and place.column.form == "list" and place.complete:
        return Sql(f"len({place.column.sql})")
    if isinstance(place.json, KeyPlace):
        return Sql("CAST(NULL AS BIGINT)")
    return fill("CASE WHEN {} = 'ARRAY' THEN {} END", place.json.type, place.json.length)


# --- values of one domain ---


def _typed(term: Aggregate, operand: Operand) -> FigureSql:
    value = operand.sql
    match term.function:
        case "sum" | "avg" if operand.domain == "decimal":
            # Two sums of whole numbers, because a sum of DECIMAL(38, 18) overflows beyond twenty digits.
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
    """Whole and fraction, made from text because arithmetic would round."""
    return [Decimal(found["whole"] or 0), Decimal(f"{found['part'] or 0}E-18")]


def _added(term: Aggregate, values: list[Any], found: Any) -> Any:
    if not found["n"]:
        return None
    summed = total(values)
    return summed if term.function == "sum" else mean(summed, found["n"])


def _decoded(value: Sql, domain: Domain) -> FigureSql:
    if domain != "timestamp":
        return FigureSql(value, _same)
    # As a number, because the time zone of the session must not matter.
    micros = fill("epoch_us({})", value)
    return FigureSql(micros, lambda found: None if found is None else _EPOCH + timedelta(microseconds=found))


def _share(term: Aggregate) -> Sql:
    return Sql(format(Decimal(repr(term.at or 0.0)), "f"))


# --- numbers in JSON, of which some are whole and some are not ---


def _numbers(term: Aggregate, scope: Scope) -> FigureSql:
    keys = sort_values(Order(term.path, term.reading), scope)
    named = joined(", ", [fill(f"k{number} := {{}}", key) for number, key in enumerate(keys)])
    place = _json_of(term.path, scope)
    present = fill("{} IS NOT NULL", keys[0])
    if term.function == "count_distinct":
        return FigureSql(_filtered(fill("count(DISTINCT struct_pack({}))", named), present), _same)
    if term.function in ("sum", "avg"):
        is_whole = fill(f"{{}} IN {WHOLES}", place.type)
        parts = fill(
            "struct_pack(n := {}, whole := {}, others := {})",
            _filtered(Sql("count(*)"), present),
            _filtered(fill("sum(TRY_CAST({} AS HUGEINT))", place.text), present, is_whole),
            _filtered(fill("sum({})", keys[0]), present, fill("NOT {}", is_whole)),
        )
        return FigureSql(parts, lambda found: _added(term, [found["whole"] or 0, *_given(found["others"])], found))
    ranked = fill("struct_pack({}, shown := {})", named, fill("CAST({} AS VARCHAR)", place.document_part))
    chosen = (
        fill("quantile_disc({}, {})", ranked, _share(term))
        if term.function == "quantile"
        else fill(f"{term.function}({{}})", ranked)
    )
    return FigureSql(fill("({}).shown", _filtered(chosen, present)), lambda found: _value(found, term.reading))


def _given(value: Any) -> list[Any]:
    return [] if value is None else [value]


def _json_of(path: FieldPath, scope: Scope) -> JsonPlace:
    place = place_of(path, scope).json
    if isinstance(place, KeyPlace):
        raise TypeError(f"{path}: a key has one domain")
    return place


def _filtered(aggregate: Sql, *conditions: Sql) -> Sql:
    return fill("{} FILTER (WHERE {})", aggregate, joined(" AND ", conditions))


def _value(text: str | None, reading: Reading | None) -> Any:
    """The value of a JSON text."""
    value = None if text is None else json.loads(text)
    return value if reading is None else read(value, reading)


# --- groups ---


@dataclass(frozen=True)
class Key:
    """A key of groups. ``reading`` is None if the field may have values of several types."""

    name: str
    path: FieldPath
    reading: Reading | None


class Grouping(NamedTuple):
    """A key in SQL: the values that are equal within a group, and a text or value that shows them."""

    values: list[Sql]
    shown: Sql
    decode: Callable[[Any], Any]


def touched(term: AggregateTerm) -> list[FieldPath]:
    """The fields that a figure uses."""
    if isinstance(term, Count):
        return [] if term.where is None else list(paths(term.where))
    return [term.path]


def grouping(key: Key, scope: Scope) -> Grouping:
    reading = key.reading
    operand = None if reading is None else place_of(key.path, scope).operand(reading)
    if operand is not None:
        return Grouping([operand.sql], fill("any_value({})", operand.sql), python_value)
    values = sort_values(Order(key.path, reading), scope)
    # A number can be written in several ways: always show the same one.
    text = _json_of(key.path, scope).document_part
    shown = _filtered(fill("min(CAST({} AS VARCHAR))", text), fill("{} IS NOT NULL", values[0]))
    return Grouping(values, shown, lambda found: _value(found, reading))


def python_value(found: Any) -> Any:
    """Whole numbers of more than 64 bits are decimals in Arrow."""
    if isinstance(found, Decimal):
        return int(found) if found.as_tuple().exponent == 0 else found
    return {name: python_value(one) for name, one in found.items()} if isinstance(found, dict) else found


M = TypeVar("M", bound=Mixin)
Group = dict[str, Any]
"""Keys and figures by name."""


@dataclass(frozen=True, eq=False)
class Grouped(Generic[M]):
    """A query whose rows are grouped. ``agg`` returns one dictionary for each group."""

    query: "Query[M]"
    keys: tuple[Key, ...]
    filters: tuple[Callable[[Group], bool], ...] = ()

    def having(self, *tests: Callable[[Group], bool]) -> "Grouped[M]":
        """Only groups for which all tests are true. A test is a function of the group's dictionary."""
        return replace(self, filters=(*self.filters, *tests))

    async def agg(self, **figures: Figure) -> list[Group]:
        found = await figures_of(self.query, self.keys, figures)
        return [group for group in found if all(test(group) for test in self.filters)]


def group_key(term: Any, python: type) -> Key:
    if not isinstance(term, FieldExpr):
        raise Invalid(f"{term!r} is not a field to group by", remedy="write a field, as in Customer.tier")
    if term.owner is not python:
        raise Invalid(f"the query is about {python.__name__}, and {term} is a field of {term.owner.__name__}")
    reading = reading_of(term._node, str(term), "grouped by")
    path = term._path
    name = ".".join((*(() if path.end == "own" else (path.end,)), path.field, *path.steps))
    return Key(name, path, reading)


async def figures_of(query: "Query[Any]", keys: tuple[Key, ...], figures: Mapping[str, Figure]) -> list[Group]:
    """The figures of each group, or of all rows if there are no keys."""
    for name, each in figures.items():
        if not isinstance(each, Figure):
            raise Invalid(f"{name} is not a figure", remedy="write count(), or Customer.age.sum()")
        if each.root is not None and each.root is not query.info.python:
            raise Invalid(f"{name} is a figure of {each.root.__name__}, not of {query.info.python.__name__}")
    engine, terms = query.engine, {name: each.term for name, each in figures.items()}
    _check(query.ask, keys, terms)
    fields = tuple(path for each in terms.values() for path in touched(each))
    asked = replace(query.ask, touching=(*fields, *(key.path for key in keys)))

    async def question(snapshot: Snapshot) -> tuple[dict[str, Decode], pa.Table]:
        sql, values, decoders = _statement(await snapshot.rows(asked), keys, terms)
        found = await engine.table(sql)
        return decoders, found.select(range(values, found.num_columns))

    decoders, found = await engine.ask(question, partial(types_of, asked))
    return [{name: decoders[name](python_value(one)) for name, one in row.items()} for row in found.to_pylist()]


def _statement(
    rows: Rows, keys: tuple[Key, ...], figures: Mapping[str, AggregateTerm]
) -> tuple[Sql, int, dict[str, Decode]]:
    """The statement, the number of columns before those of the result, and how these are decoded."""
    groups = {key.name: grouping(key, rows.scope) for key in keys}
    compiled = {name: compile_figure(each, rows.scope) for name, each in figures.items()}
    values = [each for one in groups.values() for each in one.values]
    named = [fill(f"{{}} AS {quoted(name)}", one.shown) for name, one in groups.items()]
    named += [fill(f"{{}} AS {quoted(name)}", each.sql) for name, each in compiled.items()]
    shown = joined(", ", [*values, *named])
    sql = fill("SELECT {} {}", shown, rows.source(shown.text))
    if values:
        numbers = range(1, len(values) + 1)
        order = ", ".join(f"{number} ASC NULLS LAST" for number in numbers)
        sql = Sql(f"{sql.text} GROUP BY {', '.join(map(str, numbers))} ORDER BY {order}", sql.params)
    decoders = {name: one.decode for name, one in groups.items()} | {name: e.decode for name, e in compiled.items()}
    return sql, len(values), decoders


def _check(ask: Ask, keys: tuple[Key, ...], figures: Mapping[str, AggregateTerm]) -> None:
    if not figures and not keys:
        raise Invalid("no figure is given", remedy="name a figure, as in agg(n=count())")
    if ask.limit is not None or ask.offset:
        raise Invalid("figures are over all rows", remedy="leave out limit and offset")
    names = [*(key.name for key in keys), *figures]
    if len({name.lower() for name in names}) != len(names):
        raise Invalid(f"two columns have one name: {', '.join(names)}", remedy="give the figure another name")
