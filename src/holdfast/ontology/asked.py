"""Questions without classes: by the names of types and fields, from text. For the command line.

A question of this kind has the power of a query: the same conditions, moments and tables answer it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from typing import Any

import pyarrow as pa

from holdfast.base.errors import NotFound
from holdfast.ontology import phrases
from holdfast.ontology.differences import changed_rows
from holdfast.ontology.engine import Engine
from holdfast.ontology.engine import Moment as Pinned
from holdfast.ontology.filters.ast import TRUE
from holdfast.ontology.filters.errors import InvalidQuery, unknown
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.parse import parse
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.groups import worked_out
from holdfast.ontology.ledger import fate
from holdfast.ontology.paths import STEPS, Ways, check_depth
from holdfast.ontology.phrases import Described
from holdfast.ontology.refs import TypeId
from holdfast.ontology.results import typed_table
from holdfast.ontology.shape import Shape, column_names
from holdfast.ontology.sqltables import SqlTables
from holdfast.ontology.statement import ENDS, Ask, Origin, Rows, rows_of, types_of
from holdfast.ontology.times import LATEST, Moment, When

Shown = tuple[Sql, Callable[[pa.Table], pa.Table]]
"""A statement, and what is made of its result."""


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
    via: Sequence[str] = ()
    group_by: Sequence[str] = ()
    figures: Sequence[str] = ()
    having: Sequence[str] = ()


async def understood(tables: SqlTables, wording: Wording) -> tuple[Ask, tuple[str, ...]]:
    """The question, and the columns of its answer."""
    ask, described = _ask(wording, await _known(tables, wording, wording.when))
    names = column_names(ask.shape)
    for name in wording.columns:
        if name not in names:
            raise unknown(ask.shape.type_id.name, name, names)
    order = tuple(phrases.order(term, described) for term in wording.order_by)
    asked = replace(ask, order=order, limit=wording.limit, offset=wording.offset)
    return asked, tuple(wording.columns) or names


async def _known(tables: SqlTables, wording: Wording, when: When) -> dict[str, Shape]:
    """The types that there are, or were at the moment that is asked about."""
    known = await tables.tables(when)
    if wording.type_name not in known and (gone := fate(await tables.engine.pinned(), wording.type_name)) is not None:
        raise gone
    return known


def _ask(wording: Wording, known: Mapping[str, Shape]) -> tuple[Ask, Described]:
    """About the type that is named, and then along its hops."""
    by_type = {each.type_id: each for each in known.values()}
    ask, described = _about(_shape(wording.type_name, known), by_type, wording.where, wording.when)
    for text in wording.via:
        words = phrases.hop(text)
        relation, forward, end = _along(words, ask, known)
        target = by_type.get(end)
        if target is None:
            raise NotFound(f"there is no type {end.name} yet")
        check_depth(words.least, words.most)
        if words.most != 1 and target.type_id != ask.shape.type_id:
            raise InvalidQuery(f"{words.relation} leads to another type: it can be followed once only")
        edge = parse(words.where, _described(relation)) if words.where else TRUE
        origin = Origin(ask, relation, edge, forward, words.least, words.most)
        ask, described = _about(target, by_type, words.to, wording.when)
        ask = replace(ask, origin=origin)
    return ask, described


def _along(words: phrases.HopWords, ask: Ask, known: Mapping[str, Shape]) -> tuple[Shape, bool, TypeId]:
    """The relation of a hop, whether it is followed from left to right, and the type that it leads to."""
    relation = _shape(words.relation, known)
    if relation.ends is None:
        raise InvalidQuery(f"{words.relation} is not a relation", remedy="hops lead along relations")
    fits = [end == ask.shape.type_id for end in relation.ends]
    if not fits[1 if words.reverse else 0] and (words.reverse or not fits[1]):
        raise InvalidQuery(
            f"{words.relation} does not lead on from {ask.shape.type_id.name}",
            remedy=f"it leads from {relation.ends[0].name} to {relation.ends[1].name}",
        )
    forward = fits[0] and not words.reverse
    return relation, forward, relation.ends[1 if forward else 0]


def _shape(name: str, known: Mapping[str, Shape]) -> Shape:
    found = known.get(name)
    if found is None:
        close = get_close_matches(name, known, n=1)
        listed = f"the types are: {', '.join(known) or 'none yet'}"
        raise NotFound(f"there is no type {name}", remedy=f"did you mean {close[0]}?" if close else listed)
    return found


def _about(shape: Shape, by_type: Mapping[TypeId, Shape], where: str | None, when: When) -> tuple[Ask, Described]:
    sides = [by_type[each] for each in shape.ends or () if each in by_type]
    complete = len(sides) == len(ENDS)
    ends = (_described(sides[0]), _described(sides[1])) if complete else None
    described = Described(shape.type_id.name, shape.nodes, ends)
    found = dict(zip(ENDS, sides, strict=True)) if complete else {}
    return Ask(shape, found, where=parse(where, described) if where else TRUE, when=when), described


def _described(shape: Shape) -> Described:
    return Described(shape.type_id.name, shape.nodes)


async def figures_in_words(tables: SqlTables, wording: Wording) -> list[dict[str, Any]]:
    """Figures over all rows, or of groups."""
    ask, described = _ask(wording, await _known(tables, wording, wording.when))
    ask = replace(ask, limit=wording.limit, offset=wording.offset)
    keys = [phrases.key(text, described) for text in wording.group_by]
    figures = [phrases.figure(text, described) for text in wording.figures or ("count()",)]
    if len({each.name for each in figures}) != len(figures):
        raise InvalidQuery("two figures have one name", remedy="name them, as in first=min(age)")
    columns = {**{key.name: node for key, node in keys}, **{each.name: each.node for each in figures}}
    tests = [phrases.test_of_groups(text, columns) for text in wording.having]
    terms = {each.name: each.term for each in figures}
    found = await worked_out(tables.engine, ask, tuple(key for key, _ in keys), terms)
    return [group for group in found if all(phrases.passes(test, group) for test in tests)]


async def way_in_words(tables: SqlTables, wording: Wording, text: str) -> pa.Table:
    """The entities on a shortest way from those of the question along a relation; no rows if there is none."""
    ask, wanted = await understood(tables, wording)
    words = phrases.hop(text)
    if words.to is None:
        raise InvalidQuery(f"{text!r} does not say where it leads", remedy='say so, as in: Knows to name == "Ada"')
    relation, forward, _ = _along(words, ask, await _known(tables, wording, wording.when))
    edge = parse(words.where, _described(relation)) if words.where else TRUE
    most = words.most if words.told and words.most is not None else STEPS
    ways = Ways(ask, relation, edge, parse(words.to, _described(ask.shape)), forward, most)

    async def question(moment: Pinned) -> pa.Table:
        keys = await ways.shortest(moment) or []
        rows = await rows_of(Ask(ask.shape, ask.ends, when=ask.when), moment)
        those = Sql("r.entity_key IN (SELECT unnest(CAST(? AS VARCHAR[])))", (keys,))
        rows = replace(rows, conditions=(*rows.conditions, those))
        order = Sql("list_position(CAST(? AS VARCHAR[]), r.entity_key)", (keys,))
        return await tables.engine.warm.table(*_typed(rows, wanted, order))

    return await tables.engine.ask(question)


async def difference_in_words(tables: SqlTables, wording: Wording, older: Moment, newer: Moment) -> pa.Table:
    """What is not the same at two commits: keys, action, and the fields before and after, as JSON."""
    ask, _ = _ask(wording, await _known(tables, wording, When(last=newer)))
    ask = replace(ask, limit=wording.limit, offset=wording.offset)
    found = await changed_rows(tables.engine, ask, older, newer)
    before, after = (found.column(f"{name}_fields").to_pylist() for name in ("before", "after"))
    actions = [
        "added" if old is None else "retracted" if new is None else "changed"
        for old, new in zip(before, after, strict=True)
    ]
    keys = {name: found.column(name) for name in ask.shape.keys}
    return pa.table({**keys, "action": actions, "before": before, "after": after})


async def arrow_of(engine: Engine, ask: Ask, wanted: Sequence[str]) -> pa.Table:
    """One column per field; in history also ``commit_id`` and ``retracted``."""

    async def question(moment: Pinned) -> pa.Table:
        async def made() -> Shown:
            return _typed(await rows_of(ask, moment), wanted)

        return await engine.warm.table(*await moment.said(ask, f"arrow {wanted}", made))

    return await engine.ask(question, partial(types_of, ask))


def _typed(rows: Rows, wanted: Sequence[str], order: Sql | None = None) -> Shown:
    """A statement for the columns that are wanted of rows, as they are ordered, or in another order; and what makes
    the table of its result."""
    shape = rows.ask.shape
    typed = [name for name in wanted if name in shape.payload and name not in rows.table.lacking]
    columns = [f"r.{quoted(name)}" for name in typed]
    columns += [] if shape.ends is None else rows.keys
    columns += ["r.commit_id", "r._retracted"] if rows.window.history else []
    if len(typed) < len([name for name in wanted if name in shape.payload]):
        columns.append("r.fields_json")
    sql = rows.select(columns, ordered=order is None)
    if order is not None:
        sql = fill("{} ORDER BY {}", sql, order)
    return sql, partial(typed_table, shape, names=wanted, history=rows.window.history)


async def counted(engine: Engine, ask: Ask) -> int:
    """How many rows there are."""

    async def question(moment: Pinned) -> pa.Table:
        async def made() -> Sql:
            rows = await rows_of(ask, moment)
            if ask.limit is None and not ask.offset:
                return rows.select(["count(*) AS n"], ordered=False)
            return fill("SELECT count(*) AS n FROM ({})", rows.select(["1"], ordered=False))

        return await engine.warm.table(await moment.said(ask, "count", made))

    return int((await engine.ask(question, partial(types_of, ask))).column("n")[0].as_py())
