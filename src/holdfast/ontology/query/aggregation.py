"""Aggregates over the rows of a query, or over groups of them.

    await onto.query(Customer).agg(n=count(), oldest=Customer.age.max())
    await onto.query(Customer).group_by(Customer.tier).having(lambda group: group["n"] > 5).agg(n=count())

Groups come ordered by their keys, null last. Moments, conditions and the ends of relations apply as to all queries.

A complete typed column is grouped as it is. Elsewhere values are grouped by what orders them, which differs exactly
where values are not equal, whatever their size; and a group is shown as one of its values is written. Null and unlike
values are one group.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.base.errors import Invalid
from holdfast.ontology.filters.aggregates import Decode, compile_figure
from holdfast.ontology.filters.jsonsql import KeyPlace
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.scope import Scope, Sql, quoted
from holdfast.ontology.filters.sql import place_of, sort_values
from holdfast.ontology.query.cache.prune import paths
from holdfast.ontology.query.engine import Engine, Snapshot
from holdfast.ontology.query.statement import Ask, Rows, types_of
from holdfast.ontology.types.expressions.ast import AggregateTerm, Count, FieldPath, Order
from holdfast.ontology.types.expressions.fitting import reading_of
from holdfast.ontology.types.expressions.terms import Figure, RowTerm
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.readings import Reading, read

if TYPE_CHECKING:
    from holdfast.ontology.query.query import Query


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


M = TypeVar("M", bound=Mixin)
Group = dict[str, Any]
"""Keys and figures by name."""


@dataclass(frozen=True, eq=False, repr=False)
class Grouped(Generic[M]):
    """Rows in groups; ``agg`` gives one dictionary for each."""

    query: "Query[M]"
    keys: tuple[Key, ...]
    filters: tuple[Callable[[Group], bool], ...] = ()

    def __repr__(self) -> str:
        return f"<Groups by {', '.join(key.name for key in self.keys)} of {self.query!r}>"

    def having(self, *tests: Callable[[Group], bool]) -> "Grouped[M]":
        """Only groups that pass all tests: functions of the group's dictionary."""
        return replace(self, filters=(*self.filters, *tests))

    async def agg(self, **figures: Figure) -> list[Group]:
        found = await figures_of(self.query, self.keys, figures)
        return [group for group in found if all(test(group) for test in self.filters)]


def group_key(term: Any, python: type) -> Key:
    if not isinstance(term, RowTerm):
        raise Invalid(f"{term!r} is not a field to group by", remedy="write a field, as in Customer.tier")
    if term._root is not python:
        raise Invalid(f"the query is about {python.__name__}, and {term} is a field of {term._root.__name__}")
    reading = reading_of(term._node, str(term), "grouped by")
    path = term._path
    name = ".".join((*(() if path.end == "own" else (path.end,)), path.field, *path.steps))
    return Key(name, path, reading)


async def figures_of(query: "Query[Any]", keys: tuple[Key, ...], figures: Mapping[str, Figure]) -> list[Group]:
    for name, each in figures.items():
        if not isinstance(each, Figure):
            raise Invalid(f"{name} is not a figure", remedy="write count(), or Customer.age.sum()")
        if each.root is not None and each.root is not query.info.python:
            raise Invalid(f"{name} is a figure of {each.root.__name__}, not of {query.info.python.__name__}")
    return await worked_out(query.engine, query.ask, keys, {name: each.term for name, each in figures.items()})


async def worked_out(
    engine: Engine, ask: Ask, keys: tuple[Key, ...], figures: Mapping[str, AggregateTerm]
) -> list[Group]:
    """The figures of each group, or of all rows where there are no keys."""
    _check(ask, keys, figures)
    fields = tuple(path for each in figures.values() for path in touched(each))
    asked = replace(ask, touching=(*fields, *(key.path for key in keys)))

    async def question(snapshot: Snapshot) -> tuple[dict[str, Decode], pa.Table]:
        sql, values, decoders = _statement(await snapshot.rows(asked), keys, figures)
        found = await engine.table(sql)
        return decoders, found.select(range(values, found.num_columns))

    decoders, found = await engine.ask(question, partial(types_of, asked))
    return [{name: decoders[name](python_value(one)) for name, one in row.items()} for row in found.to_pylist()]


def _statement(
    rows: Rows, keys: tuple[Key, ...], figures: Mapping[str, AggregateTerm]
) -> tuple[Sql, int, dict[str, Decode]]:
    """The statement, how many columns come before those that are shown, and how these are read."""
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
        raise Invalid("there is nothing to work out", remedy="name a figure, as in agg(n=count())")
    if ask.limit is not None or ask.offset:
        raise Invalid("figures are over all rows", remedy="leave out limit and offset")
    names = [*(key.name for key in keys), *figures]
    if len({name.lower() for name in names}) != len(names):
        raise Invalid(f"two columns have one name: {', '.join(names)}", remedy="give the figure another name")
