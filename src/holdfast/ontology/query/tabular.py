"""Answers as tables: whole, in pieces, or as a number of rows.

Columns are named as conditions name fields: ``age``, of a relation also ``left.name`` and ``right.price``, which are
null where there is no entity at that end. In history ``commit_id`` and ``retracted`` come after them, and where it is
asked for ``_meta``: what ``meta(obj)`` says of an object.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.query.engine import Engine, Moment
from holdfast.ontology.query.pagination import Piece, piece_of
from holdfast.ontology.query.results import from_bodies, typed_table
from holdfast.ontology.query.statement import ALIASES, ENDS, Ask, Rows, rows_of, types_of
from holdfast.ontology.types.errors import unknown
from holdfast.ontology.types.expressions.ast import End
from holdfast.ontology.types.typespec import Form

Shown = tuple[Sql, Callable[[pa.Table], pa.Table]]
"""A statement, and what is made of its result."""
META = pa.struct(
    [("commit_id", pa.int64()), ("key", pa.list_(pa.string())), ("retracted", pa.bool_()), ("erased", pa.bool_())]
)


class Column(NamedTuple):
    end: End
    field: str

    @property
    def name(self) -> str:
        return self.field if self.end == "own" else f"{self.end}.{self.field}"


@dataclass(frozen=True)
class Columns:
    """Which columns of a question's rows are wanted, in this order."""

    ask: Ask
    wanted: tuple[Column, ...]
    meta: bool = False

    @cached_property
    def own(self) -> tuple[str, ...]:
        return tuple(each.field for each in self.wanted if each.end == "own")

    @cached_property
    def ends(self) -> Mapping[End, tuple[str, ...]]:
        """The fields of each end that is looked at."""
        found = {end: tuple(each.field for each in self.wanted if each.end == end) for end in ENDS}
        return {end: names for end, names in found.items() if names}

    @property
    def asked(self) -> Ask:
        """The question, with its ends beside the rows where columns are theirs."""
        return replace(self.ask, hydrate=True) if self.ends else self.ask

    def at_most(self, rows: int) -> "Columns":
        limit = rows if self.ask.limit is None else min(rows, self.ask.limit)
        return replace(self, ask=replace(self.ask, limit=limit))

    @property
    def forms(self) -> dict[str, Form]:
        """What each column holds; of keys nothing is said."""
        found = {name: form for name, form in self.ask.shape.forms.items() if name in self.own}
        for end, names in self.ends.items():
            found |= {f"{end}.{name}": self.ask.ends[end].forms[name] for name in names}
        return found

    def typed(self, rows: Rows, *, identity: bool = False) -> list[str]:
        """The SQL of the columns from which the table is made."""
        shape = self.ask.shape
        payload = [name for name in self.own if name in shape.payload]
        typed = [name for name in payload if name not in rows.table.lacking]
        columns = [f"r.{quoted(name)}" for name in typed]
        columns += rows.keys if shape.ends is not None or identity or self.meta else []
        columns += ["r.commit_id", "r._retracted"] if rows.window.history or identity or self.meta else []
        columns += ["r.fields_json"] if self.meta or len(typed) < len(payload) else []
        for end in self.ends:
            columns += [f"{ALIASES[end]}.fields_json AS {end}_fields", f"{ALIASES[end]}.commit_id AS {end}_commit"]
        return columns

    def made(self, found: pa.Table, *, history: bool) -> pa.Table:
        """The table, from what DuckDB gave. Blocking."""
        table = typed_table(self.ask.shape, found, self.own, history=history)
        if not self.ends and not self.meta:
            return table
        columns = {name: table.column(name) for name in table.column_names}
        for end, names in self.ends.items():
            bodies = found.column(f"{end}_fields").to_pylist()
            read = from_bodies(self.ask.ends[end], names, [body if body is not None else "{}" for body in bodies])
            columns |= {f"{end}.{name}": array for name, array in read.items()}
        first = {each.name: columns.pop(each.name) for each in self.wanted}
        return pa.table({**first, **columns, **(self._metas(found) if self.meta else {})})

    def _metas(self, found: pa.Table) -> dict[str, pa.Array]:
        keys = list(zip(*(found.column(name).to_pylist() for name in self.ask.shape.keys), strict=True))
        told = {"_meta": _meta(keys, found, "commit_id", "fields_json", "_retracted")}
        for number, end in enumerate(ENDS):
            if end in self.ends:
                theirs = [(key[number],) for key in keys]
                told[f"{end}._meta"] = _meta(theirs, found, f"{end}_commit", f"{end}_fields")
        return told


def columns_of(ask: Ask, wanted: Sequence[str], *, linked: bool = False, meta: bool = False) -> Columns:
    """Those that are named, or all; ``linked`` adds the fields of the ends."""
    own = ask.shape.shown
    if linked and ask.shape.ends is None:
        raise Invalid(
            f"{ask.shape.type_id.name} is not a relation: it has no ends", remedy="ask about a relation, or use via"
        )
    known = [Column("own", name) for name in own]
    theirs = [Column(end, name) for end, shape in ask.ends.items() for name in shape.shown]
    by_name = {each.name: each for each in (*theirs, *known)}
    for name in wanted:
        if name not in by_name:
            raise unknown(ask.shape.type_id.name, name, [each.name for each in (*known, *theirs)])
    named = [by_name[name] for name in dict.fromkeys(wanted)]
    return Columns(ask, tuple(named or (*known, *(theirs if linked else ()))), meta)


def _meta(
    keys: Sequence[tuple[str, ...]], found: pa.Table, commit: str, body: str, retracted: str | None = None
) -> pa.Array:
    """What ``meta`` says of each; null where there is no object."""
    commits, bodies = found.column(commit).to_pylist(), found.column(body).to_pylist()
    gone = [False] * len(keys) if retracted is None else found.column(retracted).to_pylist()
    told = [
        None
        if one is None
        else {"commit_id": commit_id, "key": list(key), "retracted": bool(past), "erased": is_erased(one)}
        for commit_id, key, past, one in zip(commits, keys, gone, bodies, strict=True)
    ]
    return pa.array(told, META)


def meta_of(keys: Sequence[tuple[str, ...]], found: pa.Table, side: str) -> pa.Array:
    """The same of one side of a difference."""
    return _meta(keys, found, f"{side}_commit", f"{side}_fields")


def shown(rows: Rows, wanted: Columns, order: Sql | None = None) -> Shown:
    """A statement for rows as they are ordered, or in another order; and what makes the table of its result."""
    columns, made = wanted.typed(rows), partial(wanted.made, history=rows.window.history)
    key = rows.key_among(columns) if order is None and rows.one_load else None
    sql = rows.select(columns, ordered=order is None and key is None)
    if order is not None:
        sql = fill("{} ORDER BY {}", sql, order)
    return sql, made if key is None else lambda found: made(_by(key, found))


def _by(key: str, found: pa.Table) -> pa.Table:
    """The table in the order of a column, which it mostly has already: to look takes a tenth of sorting it."""
    texts = found.column(key)
    if len(texts) < 2 or pc.all(pc.less(texts.slice(0, len(texts) - 1), texts.slice(1)), skip_nulls=False).as_py():
        return found
    return found.take(pc.sort_indices(texts))


async def arrow_of(engine: Engine, wanted: Columns) -> pa.Table:
    """All rows."""
    ask = wanted.asked

    async def question(moment: Moment) -> pa.Table:
        async def made() -> Shown:
            return shown(await rows_of(ask, moment), wanted)

        return await engine.warm.table(*await moment.said(ask, f"arrow {wanted.wanted} {wanted.meta}", made))

    return await engine.ask(question, partial(types_of, ask))


async def page_table(engine: Engine, wanted: Columns, size: int, after: str | None) -> Piece:
    """The next rows after a cursor, as a table."""
    piece = await piece_of(engine, wanted.asked, size, after, lambda rows: wanted.typed(rows, identity=True))
    made = await blocking(lambda: wanted.made(piece.found, history=piece.window.history))
    return piece._replace(found=made)


async def pieces_of(engine: Engine, wanted: Columns) -> AsyncIterator[pa.Table]:
    """All rows, some thousands at a time. A state comes in no order unless one is asked for."""
    ask = wanted.asked

    async def question(moment: Moment) -> tuple[Rows, Sql]:
        rows = await rows_of(ask, moment)
        ordered = bool(ask.order) or rows.window.history or rows.limited
        return rows, await engine.warm.filled(rows.select(wanted.typed(rows), ordered=ordered))

    rows, sql = await engine.ask(question, partial(types_of, ask))
    async for batch in engine.warm.duck.batches(sql.text, list(sql.params)):
        yield await blocking(_piece, wanted, batch, history=rows.window.history)


def _piece(wanted: Columns, batch: pa.RecordBatch, *, history: bool) -> pa.Table:
    return wanted.made(pa.Table.from_batches([batch]), history=history)


async def counted(engine: Engine, ask: Ask) -> int:
    """How many rows there are."""

    async def question(moment: Moment) -> pa.Table:
        async def made() -> Sql:
            rows = await rows_of(ask, moment)
            if ask.limit is None and not ask.offset:
                return rows.select(["count(*) AS n"], ordered=False)
            return fill("SELECT count(*) AS n FROM ({})", rows.select(["1"], ordered=False))

        return await engine.warm.table(await moment.said(ask, "count", made))

    return int((await engine.ask(question, partial(types_of, ask))).column("n")[0].as_py())
