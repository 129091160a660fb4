"""Questions without classes: by the names of types and fields, from text. For the command line.

A question of this kind has the power of a query: the same conditions, moments and tables answer it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import NotFound
from holdfast.ontology.engine import Engine, Moment
from holdfast.ontology.filters.ast import TRUE, End, FieldPath, Order
from holdfast.ontology.filters.ends import declared_node
from holdfast.ontology.filters.errors import InvalidQuery, unknown
from holdfast.ontology.filters.parse import parse
from holdfast.ontology.filters.scope import quoted
from holdfast.ontology.filters.types import node_at, reading_of
from holdfast.ontology.results import typed_table
from holdfast.ontology.shape import Shape, column_names
from holdfast.ontology.sqltables import SqlTables
from holdfast.ontology.statement import ENDS, Ask, Rows, rows_of
from holdfast.ontology.times import LATEST, When
from holdfast.ontology.typespec import Node


@dataclass(frozen=True)
class Described:
    """A type as the parser wants it."""

    name: str
    nodes: Mapping[str, Node]
    ends: "tuple[Described, Described] | None" = None


@dataclass(frozen=True)
class Wording:
    """A question in words."""

    type_name: str
    where: str | None = None
    order_by: Sequence[str] = ()
    columns: Sequence[str] = ()
    limit: int | None = None
    offset: int = 0
    when: When = LATEST


async def understood(tables: SqlTables, wording: Wording) -> tuple[Ask, tuple[str, ...]]:
    """The question, and the columns of its answer."""
    known = await tables.tables(wording.when)
    shape = known.get(wording.type_name)
    if shape is None:
        raise NotFound(
            f"there is no type {wording.type_name}", remedy=f"the types are: {', '.join(known) or 'none yet'}"
        )
    by_type = {each.type_id: each for each in known.values()}
    sides = [by_type[each] for each in shape.ends or () if each in by_type]
    complete = len(sides) == len(ENDS)
    ends = (_described(sides[0]), _described(sides[1])) if complete else None
    described = Described(shape.type_id.name, shape.nodes, ends)
    names = column_names(shape)
    for name in wording.columns:
        if name not in names:
            raise unknown(shape.type_id.name, name, names)
    ask = Ask(
        shape,
        dict(zip(ENDS, sides, strict=True)) if complete else {},
        where=parse(wording.where, described) if wording.where else TRUE,
        order=tuple(_order(term, described) for term in wording.order_by),
        limit=wording.limit,
        offset=wording.offset,
        when=wording.when,
    )
    return ask, tuple(wording.columns) or names


def _described(shape: Shape) -> Described:
    return Described(shape.type_id.name, shape.nodes)


def _order(term: str, described: Described) -> Order:
    """``age``, ``age desc``, ``left.name asc``, ``profile.city desc``."""
    path, _, direction = term.strip().partition(" ")
    if direction.strip().lower() not in ("", "asc", "desc"):
        raise InvalidQuery(f"{term!r} is not an order", remedy='write a field, and desc if need be, as in "age desc"')
    first, *steps = path.split(".")
    end: End = next((each for each in ENDS if each == first and steps and described.ends is not None), "own")
    name, rest = (first, steps) if end == "own" else (steps[0], steps[1:])
    node = node_at(declared_node(described, end, name, described.name), tuple(rest), name)
    reading = reading_of(node, path, "ordered")
    return Order(FieldPath(end, name, tuple(rest)), reading, descending=direction.strip().lower() == "desc")


async def arrow_of(engine: Engine, ask: Ask, wanted: Sequence[str]) -> pa.Table:
    """One column per field; in history also ``commit_id`` and ``retracted``."""
    shape = ask.shape

    async def question(moment: Moment) -> tuple[Rows, pa.Table]:
        rows = await rows_of(ask, moment)
        typed = [name for name in wanted if name in shape.payload and name not in rows.table.lacking]
        columns = [*rows.keys, "r.commit_id", "r._retracted", *(f"r.{quoted(name)}" for name in typed)]
        if len(typed) < len([name for name in wanted if name in shape.payload]):
            columns.append("r.fields_json")
        sql = rows.select(columns)
        return rows, await engine.warm.duck.table(sql.text, list(sql.params))

    rows, found = await engine.ask(question)
    return await blocking(typed_table, shape, found, wanted, history=rows.window.history)
