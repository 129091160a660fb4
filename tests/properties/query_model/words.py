"""The same questions in words: the condition and order of a query are written as text, and asked again."""

from typing import Any

from holdfast.ontology.filters.render import to_text
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.query.tabular import arrow_of
from holdfast.ontology.query.text_query import Wording, understood
from tests.properties.query_model.referee import Referee


async def repeat(tables: SqlTables, query: Query[Any], referee: Referee) -> None:
    """``query`` has no hops."""
    ask = query.ask
    order = [f"{each.path.field} {'desc' if each.descending else 'asc'} nulls {each.nulls}" for each in ask.order]
    wording = Wording(ask.shape.type_id.name, [to_text(ask.where)], order, when=ask.when)
    found = await arrow_of(tables.engine, await understood(tables, wording))
    referee.agree("in words", query, found.to_pylist(), (await query.arrow()).to_pylist())
