"""The same questions in words: what a query says is written down as the command line takes it, and asked again."""

from collections.abc import Sequence
from typing import Any

from holdfast.ontology.filters.render import to_text
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.statement import Ask
from holdfast.ontology.query.tabular import arrow_of
from holdfast.ontology.query.text_query import Wording, page_in_words, understood
from holdfast.ontology.types.expressions.ast import Order
from tests.properties.query_model.past import Key, Version
from tests.properties.query_model.referee import Referee


def written(ask: Ask) -> Wording:
    hops: list[str] = []
    first = ask
    while first.origin is not None:
        origin = first.origin
        way = "" if origin.forward else "reverse "
        depth = f"depth {origin.least}..{'' if origin.most is None else origin.most}"
        conditions = f"where {to_text(origin.where)} to {to_text(first.where)}"
        hops.insert(0, f"{way}{origin.relation.type_id.name} {depth} {conditions}")
        first = origin.ask
    order = [_order(each) for each in ask.order]
    where = [to_text(first.where)]
    return Wording(first.shape.type_id.name, where, order, when=ask.when, via=hops, meta=True)


def _order(order: Order) -> str:
    return f"{order.path.field} {'desc' if order.descending else 'asc'} nulls {order.nulls}"


async def repeat(tables: SqlTables, query: Query[Any], rows: Sequence[Version], referee: Referee) -> None:
    found = await arrow_of(tables.engine, await understood(tables, written(query.ask)))
    got = [(each["commit_id"], tuple(each["key"]), each["retracted"]) for each in found.column("_meta").to_pylist()]
    referee.agree("in words", query, got, [(row.commit_id, row.key, row.retracted) for row in rows])


async def repeat_keys(tables: SqlTables, query: Query[Any], keys: Sequence[str], referee: Referee) -> None:
    found = await arrow_of(tables.engine, await understood(tables, written(query.ask)))
    got = [each["key"][0] for each in found.column("_meta").to_pylist()]
    referee.agree("in words via", query, got, list(keys))


async def pages(tables: SqlTables, query: Query[Any], size: int) -> list[Key]:
    found: list[Key] = []
    cursor = None
    while True:
        _, piece = await page_in_words(tables, written(query.ask), size, cursor)
        found += [tuple(each["key"]) for each in piece.found.column("_meta").to_pylist()]
        cursor = piece.cursor
        if cursor is None:
            return found
