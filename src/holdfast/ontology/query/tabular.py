"""Results as Arrow tables, or as a number of rows.

In history the columns ``commit_id`` and ``retracted`` come after the fields.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.query.engine import Engine, Moment
from holdfast.ontology.query.results import typed_table
from holdfast.ontology.query.statement import Ask, Rows, types_of
from holdfast.ontology.types.errors import unknown

Shown = tuple[Sql, Callable[[pa.Table], pa.Table]]
"""A statement, and what is made of its result."""


@dataclass(frozen=True)
class Columns:
    """Which columns of a question's rows are wanted, in this order."""

    ask: Ask
    wanted: tuple[str, ...]

    def typed(self, rows: Rows) -> list[str]:
        """The SQL of the columns from which the table is made."""
        shape = self.ask.shape
        payload = [name for name in self.wanted if name in shape.payload]
        typed = [name for name in payload if name not in rows.table.lacking]
        columns = [f"r.{quoted(name)}" for name in typed]
        columns += rows.keys if shape.ends is not None else []
        columns += ["r.commit_id", "r._retracted"] if rows.window.history else []
        columns += ["r.fields_json"] if len(typed) < len(payload) else []
        return columns

    def made(self, found: pa.Table, *, history: bool) -> pa.Table:
        """The table, from what DuckDB gave. Blocking."""
        return typed_table(self.ask.shape, found, self.wanted, history=history)


def columns_of(ask: Ask, wanted: Sequence[str]) -> Columns:
    """Those that are named, or all."""
    known = ask.shape.shown
    for name in wanted:
        if name not in known:
            raise unknown(ask.shape.type_id.name, name, known)
    return Columns(ask, tuple(dict.fromkeys(wanted)) or tuple(known))


def shown(rows: Rows, wanted: Columns) -> Shown:
    """A statement for the rows in their order; and what makes the table of its result."""
    columns, made = wanted.typed(rows), partial(wanted.made, history=rows.window.history)
    key = rows.key_among(columns) if rows.one_load else None
    sql = rows.select(columns, ordered=key is None)
    return sql, made if key is None else lambda found: made(_by(key, found))


def _by(key: str, found: pa.Table) -> pa.Table:
    """The table in the order of a column, which it mostly has already: to look takes a tenth of sorting it."""
    texts = found.column(key)
    if len(texts) < 2 or pc.all(pc.less(texts.slice(0, len(texts) - 1), texts.slice(1)), skip_nulls=False).as_py():
        return found
    return found.take(pc.sort_indices(texts))


async def arrow_of(engine: Engine, wanted: Columns) -> pa.Table:
    """All rows."""
    ask = wanted.ask

    async def question(moment: Moment) -> pa.Table:
        return await engine.table(*shown(await moment.rows(ask), wanted))

    return await engine.ask(question, partial(types_of, ask))


async def counted(engine: Engine, ask: Ask) -> int:
    """How many rows there are."""

    async def question(moment: Moment) -> pa.Table:
        rows = await moment.rows(ask)
        if rows.limited:
            return await engine.table(fill("SELECT count(*) AS n FROM ({})", rows.select(["1"], ordered=False)))
        return await engine.table(rows.select(["count(*) AS n"], ordered=False))

    return int((await engine.ask(question, partial(types_of, ask))).column("n")[0].as_py())
