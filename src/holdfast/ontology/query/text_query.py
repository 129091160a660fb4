"""Questions without classes: by the names of types and fields, from text. For the command line.

A question of this kind has the power of a query: the same conditions, moments and tables answer it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from holdfast.base.errors import NotFound
from holdfast.ontology.chain.times import LATEST, Moment, When
from holdfast.ontology.filters.parse import parse
from holdfast.ontology.filters.scope import Sql
from holdfast.ontology.format.chainstate import fate
from holdfast.ontology.query import text_clauses
from holdfast.ontology.query.aggregation import worked_out
from holdfast.ontology.query.differences import changed_rows
from holdfast.ontology.query.engine import Moment as Pinned
from holdfast.ontology.query.hops import STEPS, Ways, check_depth, of_the_relation
from holdfast.ontology.query.pagination import Piece, commit_of
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.statement import ENDS, Ask, Origin, rows_of
from holdfast.ontology.query.tabular import Columns, columns_of, meta_of, page_table, shown
from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import TRUE, And, Predicate
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema


@dataclass(frozen=True)
class Wording:
    """A question in words."""

    type_name: str
    where: Sequence[str] = ()
    """Conditions, all of which must hold."""
    order_by: Sequence[str] = ()
    columns: Sequence[str] = ()
    limit: int | None = None
    offset: int = 0
    when: When = LATEST
    via: Sequence[str] = ()
    group_by: Sequence[str] = ()
    figures: Sequence[str] = ()
    having: Sequence[str] = ()
    linked: bool = False
    meta: bool = False


async def understood(tables: SqlTables, wording: Wording, *, known: When | None = None) -> Columns:
    """The question, and the columns of its answer. ``known``: when there were the types, if not at its own moment."""
    types = await _known(tables, wording, known if known is not None else wording.when)
    ask, described = _ask(wording, types)
    order = tuple(text_clauses.order(term, described) for term in wording.order_by)
    asked = replace(ask, order=order, limit=wording.limit, offset=wording.offset)
    return columns_of(asked, wording.columns, linked=wording.linked, meta=wording.meta)


async def page_in_words(tables: SqlTables, wording: Wording, size: int, after: str | None) -> tuple[Columns, Piece]:
    """The next rows after a cursor; the types are those of the commit that all pages are of."""
    known = None if after is None else When(last=commit_of(after))
    wanted = await understood(tables, wording, known=known)
    return wanted, await page_table(tables.engine, wanted, size, after)


async def _known(tables: SqlTables, wording: Wording, when: When) -> dict[str, TypeInfo]:
    """The types that there are, or were at the moment that is asked about."""
    known = await tables.tables(when)
    if wording.type_name not in known and (gone := fate(await tables.engine.pinned(), wording.type_name)) is not None:
        raise gone
    return known


def _ask(wording: Wording, known: Mapping[str, TypeInfo]) -> tuple[Ask, TypeInfo]:
    """About the type that is named, and then along its hops."""
    by_type = {each.type_id: each for each in known.values()}
    ask, described = _about(_shape(wording.type_name, known), by_type, wording.where, wording.when)
    for text in wording.via:
        words = text_clauses.hop(text)
        order = tuple(text_clauses.order(term, described) for term in words.by)
        ask = replace(ask, order=order, limit=words.first, offset=words.skip)
        relation, forward, end = _along(words, ask, known)
        target = by_type.get(end)
        if target is None:
            raise NotFound(f"there is no type {end.name} yet")
        check_depth(words.least, words.most)
        if words.most != 1 and target.type_id != ask.shape.type_id:
            raise InvalidQuery(f"{words.relation} leads to another type: it can be followed once only")
        origin = Origin(ask, relation, _edge(words, relation, by_type), forward, words.least, words.most)
        ask, described = _about(target, by_type, [words.to] if words.to else [], wording.when)
        ask = replace(ask, origin=origin)
    return ask, described


def _along(words: text_clauses.HopWords, ask: Ask, known: Mapping[str, TypeInfo]) -> tuple[TypeInfo, bool, TypeId]:
    """The relation of a hop, whether it is followed from left to right, and the type that it leads to."""
    relation = _shape(words.relation, known)
    if relation.ends is None:
        raise InvalidQuery(f"{words.relation} is not a relation", remedy="hops lead along relations")
    fits = [end.type_id == ask.shape.type_id for end in relation.ends]
    if not fits[1 if words.reverse else 0] and (words.reverse or not fits[1]):
        raise InvalidQuery(
            f"{words.relation} does not lead on from {ask.shape.type_id.name}",
            remedy=f"it leads from {relation.ends[0].name} to {relation.ends[1].name}",
        )
    forward = fits[0] and not words.reverse
    return relation, forward, relation.ends[1 if forward else 0].type_id


def _shape(name: str, known: Mapping[str, TypeInfo]) -> TypeInfo:
    found = known.get(name)
    if found is None:
        close = get_close_matches(name, known, n=1)
        listed = f"the types are: {', '.join(known) or 'none yet'}"
        raise NotFound(f"there is no type {name}", remedy=f"did you mean {close[0]}?" if close else listed)
    return found


def _about(
    shape: TypeInfo, by_type: Mapping[TypeId, TypeInfo], where: Sequence[str], when: When
) -> tuple[Ask, TypeInfo]:
    sides = dict(zip(ENDS, shape.ends or (), strict=False))
    found = {end: by_type[each.type_id] for end, each in sides.items() if each.type_id in by_type}
    described = _described(shape, by_type)
    terms = [parse(text, described) for text in where]
    condition = terms[0] if len(terms) == 1 else And(tuple(terms))
    return Ask(shape, found, where=condition, when=when), described


def _edge(words: text_clauses.HopWords, relation: TypeInfo, known: Mapping[TypeId, TypeInfo]) -> Predicate:
    """What a hop says of its relation."""
    if not words.where:
        return TRUE
    return of_the_relation(
        parse(words.where, _described(relation, known)), remedy="filter the far end with: to CONDITION"
    )


def _described(shape: TypeInfo, known: Mapping[TypeId, TypeInfo] | None = None) -> TypeInfo:
    """The type with what is known of its ends. A relation has keys of ends also where their types have no rows yet."""
    if shape.ends is None:
        return shape
    left, right = ((known or {}).get(end.type_id) or of_schema(end.type_id, {}) for end in shape.ends)
    return replace(shape, ends=(left, right))


async def figures_in_words(tables: SqlTables, wording: Wording) -> list[dict[str, Any]]:
    """Figures over all rows, or of groups."""
    ask, described = _ask(wording, await _known(tables, wording, wording.when))
    ask = replace(ask, limit=wording.limit, offset=wording.offset)
    keys = [text_clauses.key(text, described) for text in wording.group_by]
    figures = [text_clauses.figure(text, described) for text in wording.figures or ("count()",)]
    if len({each.name for each in figures}) != len(figures):
        raise InvalidQuery("two figures have one name", remedy="name them, as in first=min(age)")
    columns = {**{key.name: node for key, node in keys}, **{each.name: each.node for each in figures}}
    tests = [text_clauses.test_of_groups(text, columns) for text in wording.having]
    terms = {each.name: each.term for each in figures}
    found = await worked_out(tables.engine, ask, tuple(key for key, _ in keys), terms)
    return [group for group in found if all(text_clauses.passes(test, group) for test in tests)]


async def way_in_words(tables: SqlTables, wording: Wording, text: str) -> tuple[Columns, pa.Table]:
    """The entities on a shortest way from those of the question along a relation; no rows if there is none."""
    wanted = await understood(tables, wording)
    ask, words = wanted.ask, text_clauses.hop(text)
    if words.to is None:
        raise InvalidQuery(f"{text!r} does not say where it leads", remedy='say so, as in: Knows to name == "Ada"')
    if words.first is not None or words.skip or words.by:
        raise InvalidQuery(f"{text!r} says where it begins", remedy="use --order-by, --limit and --offset")
    known = await _known(tables, wording, wording.when)
    relation, forward, _ = _along(words, ask, known)
    edge = _edge(words, relation, {each.type_id: each for each in known.values()})
    most = words.most if words.told and words.most is not None else STEPS
    ways = Ways(ask, relation, edge, parse(words.to, _described(ask.shape)), forward, most)

    async def question(moment: Pinned) -> pa.Table:
        keys = await ways.shortest(moment) or []
        rows = await rows_of(Ask(ask.shape, ask.ends, when=ask.when), moment)
        those = Sql("r.entity_key IN (SELECT unnest(CAST(? AS VARCHAR[])))", (keys,))
        rows = replace(rows, conditions=(*rows.conditions, those))
        order = Sql("list_position(CAST(? AS VARCHAR[]), r.entity_key)", (keys,))
        return await tables.engine.warm.table(*shown(rows, wanted, order))

    return wanted, await tables.engine.ask(question)


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
    told = {}
    if wording.meta:
        listed = list(zip(*(column.to_pylist() for column in keys.values()), strict=True))
        told = {f"{side}._meta": meta_of(listed, found, side) for side in ("before", "after")}
    return pa.table({**keys, "action": actions, "before": before, "after": after, **told})
