"""The same moments as tables of SQL."""

from typing import Any

from holdfast.ontology.filters.operand import quoted
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.sqltables import SqlTables
from tests.properties.query_model.past import When
from tests.properties.query_model.referee import Referee


async def repeat(tables: SqlTables, everything: Query[Any], when: When, referee: Referee) -> None:
    """``everything`` is the query for all rows of a type at ``when``."""
    wanted = await everything.arrow()
    columns = ", ".join(map(quoted, wanted.column_names))
    name = everything.info.name
    if when.history:
        table = f"{name}__history WHERE commit_id BETWEEN {when.first} AND {when.last}"
    else:
        table = f"{name}__as_of_{when.last}"
    found = await tables.run(f"SELECT {columns} FROM {table}")
    got, expected = (sorted(each.to_pylist(), key=repr) for each in (found, wanted))
    referee.agree("in SQL", everything, got, expected)
