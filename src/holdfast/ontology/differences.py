"""What is not the same at two commits: one query over both states, of the identities that were written in between."""

from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.ontology.delta import Row
from holdfast.ontology.engine import Engine, Moment
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.model import Mixin
from holdfast.ontology.prune import paths
from holdfast.ontology.results import Changed, Meta, attach
from holdfast.ontology.statement import Ask
from holdfast.ontology.times import Moment as MomentInTime
from holdfast.ontology.times import Window, commit_at

if TYPE_CHECKING:
    from holdfast.ontology.query import Query

M = TypeVar("M", bound=Mixin)


async def differences(query: "Query[M]", older: MomentInTime, newer: MomentInTime) -> list[Changed[M]]:
    return await blocking(_changes, query, await changed_rows(query.engine, query.ask, older, newer))


async def changed_rows(engine: Engine, ask: Ask, older: MomentInTime, newer: MomentInTime) -> pa.Table:
    """Keys, and ``before_fields``, ``before_commit``, ``after_fields``, ``after_commit`` of each."""

    async def question(moment: Moment) -> pa.Table:
        sql = await _statement(engine, ask, older, newer, moment)
        return await engine.warm.table(sql)

    return await engine.ask(question)


async def _statement(engine: Engine, ask: Ask, older: MomentInTime, newer: MomentInTime, moment: Moment) -> Sql:
    chain, ledger = engine.chain, moment.ledger
    first, last = await commit_at(older, chain, ledger), await commit_at(newer, chain, ledger)
    if first > last:
        raise Invalid(f"commit {first} is after commit {last}", remedy="name the older one first")
    if any(path.end != "own" for path in paths(ask.where)):
        raise Invalid(
            "a diff cannot be filtered by the ends of a relation", remedy="filter by the relation's own fields"
        )
    shape = ask.shape
    keys = ", ".join(map(quoted, shape.keys))
    touched = await moment.table(shape, Window(first, last, history=True))
    before = await moment.table(shape, Window(0, first, history=False))
    after = await moment.table(shape, Window(0, last, history=False))
    held = [
        fill("coalesce({}, false)", compile_where(ask.where, {"own": table.source(alias)}))
        for table, alias in ((before, "b"), (after, "a"))
    ]
    columns = [f"t.{quoted(name)}" for name in shape.keys]
    for alias, name in (("b", "before"), ("a", "after")):
        columns += [f"{alias}.fields_json AS {name}_fields", f"{alias}.commit_id AS {name}_commit"]
    return fill(
        f"SELECT {', '.join(columns)} FROM (SELECT DISTINCT {keys} FROM ({{}})) t "
        f"LEFT JOIN ({{}}) b USING ({keys}) LEFT JOIN ({{}}) a USING ({keys}) "
        f"WHERE b.fields_json IS DISTINCT FROM a.fields_json AND ({{}}) ORDER BY {keys}",
        touched.only("", "").rows(),
        before.only(f"b.fields_json {held[0].text}", "b").live(),
        after.only(f"a.fields_json {held[1].text}", "a").live(),
        joined(" OR ", held),
    )


def _changes(query: "Query[M]", found: pa.Table) -> list[Changed[M]]:
    keys = list(zip(*(found.column(name).to_pylist() for name in query.ask.shape.keys), strict=True))
    sides = [_side(query, keys, found, name) for name in ("before", "after")]
    return [Changed(key, before, after) for key, before, after in zip(keys, *sides, strict=True)]


def _side(query: "Query[M]", keys: list[tuple[str, ...]], found: pa.Table, name: str) -> list[M | None]:
    bodies, commits = (found.column(f"{name}_{each}").to_pylist() for each in ("fields", "commit"))
    stored = [Row(key, body) for key, body in zip(keys, bodies, strict=True) if body is not None]
    made = iter(query.form.objects(stored))
    listed: list[M | None] = []
    for key, body, commit_id in zip(keys, bodies, commits, strict=True):
        one = next(made) if body is not None else None
        if one is not None:
            attach(one, Meta(commit_id, key))
        listed.append(one)
    return listed
