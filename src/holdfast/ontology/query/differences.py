"""What is not the same at two commits: one query over both states, of the identities that were written in between.

Conditions on ends and hops are asked as of each of the two commits. What has changed at an end, or on the way, does not
make a row another one.
"""

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid
from holdfast.ontology.chain.times import LATEST, Window, commit_at
from holdfast.ontology.chain.times import Moment as MomentInTime
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.scope import Source, Sql, quoted
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.format.data.intents import Row
from holdfast.ontology.format.data.rows import read
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.query.cache.prune import paths
from holdfast.ontology.query.engine import Engine, Moment
from holdfast.ontology.query.results import Changed, Meta, attach
from holdfast.ontology.query.statement import ENDS, Ask, reached_from
from holdfast.ontology.types.expressions.ast import End
from holdfast.ontology.types.model import Mixin

if TYPE_CHECKING:
    from holdfast.ontology.query.query import Query

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
    if ask.order or ask.limit is not None or ask.offset:
        raise Invalid("a diff is whole, and by key", remedy="leave out order_by, limit and offset")
    if ask.when != LATEST:
        raise Invalid("a diff names its moments itself", remedy="leave out as_of and history")
    shape = ask.shape
    keys = ", ".join(map(quoted, shape.keys))
    written = await moment.table(shape, Window(first, last, history=True))
    lives = [(await engine.files(shape.type_id, ledger, commit_id)).generation for commit_id in (first, last)]
    scans = [written.only("", "").rows()]
    if lives[0] != lives[1]:  # the type was dropped in between, which wrote no rows
        scans.append((await moment.table(shape, Window(0, first, history=False))).only("", "").live())
    touched = joined(" UNION ALL ", [fill(f"SELECT {keys} FROM ({{}})", scan) for scan in scans])
    before, after = await _held(ask, moment, first, "b"), await _held(ask, moment, last, "a")
    identity = [f"t.{quoted(name)}" for name in shape.keys]
    columns = [*identity]
    for side, name in ((before, "before"), (after, "after")):
        columns += [f"{side.alias}.fields_json AS {name}_fields", f"{side.alias}.commit_id AS {name}_commit"]
    return fill(
        f"SELECT {', '.join(columns)} FROM (SELECT DISTINCT {keys} FROM ({{}})) t {{}} {{}} "
        f"WHERE b.fields_json IS DISTINCT FROM a.fields_json AND ({{}}) ORDER BY {', '.join(identity)}",
        touched,
        before.joins,
        after.joins,
        joined(" OR ", [before.condition, after.condition]),
    )


class _Side(NamedTuple):
    """The state at one of the two commits: how it is joined to the identities, and whether the question holds there."""

    alias: str
    joins: Sql
    condition: Sql


async def _held(ask: Ask, moment: Moment, commit_id: int, alias: str) -> _Side:
    state = Window(0, commit_id, history=False)
    own = await moment.table(ask.shape, state)
    tables = {f"{alias}{end[0]}": (end, await moment.table(ask.ends[end], state)) for end in _ends(ask)}
    scope: dict[End, Source] = {"own": own.source(alias)}
    scope |= {end: table.source(name) for name, (end, table) in tables.items()}
    # What does not exist has nulls alone, and is like nothing.
    condition = fill(f"({alias}.commit_id IS NOT NULL AND {{}})", compile_where(ask.where, scope))
    if ask.origin is not None:
        reached = await reached_from(ask.origin, moment, commit_id)
        condition = fill("({} AND t.entity_key IN ({}))", condition, reached)
    keys = " AND ".join(f"{alias}.{quoted(name)} = t.{quoted(name)}" for name in ask.shape.keys)
    used = f"{alias}.fields_json {condition.text}"
    joins = fill(f"LEFT JOIN ({{}}) {alias} ON {keys}", own.only(used, alias).live())
    for name, (end, table) in tables.items():
        at_end = fill(f"LEFT JOIN ({{}}) {name} ON {name}.entity_key = t.{end}_key", table.only(used, name).live())
        joins = joined(" ", [joins, at_end])
    return _Side(alias, joins, condition)


def _ends(ask: Ask) -> list[End]:
    touched = {path.end for path in paths(ask.where)}
    return [end for end in ENDS if end in touched]


def _changes(query: "Query[M]", found: pa.Table) -> list[Changed[M]]:
    keys = list(zip(*(found.column(name).to_pylist() for name in query.ask.shape.keys), strict=True))
    sides = [_side(query, keys, found, name) for name in ("before", "after")]
    return [Changed(key, before, after) for key, before, after in zip(keys, *sides, strict=True)]


def _side(query: "Query[M]", keys: list[tuple[str, ...]], found: pa.Table, name: str) -> list[M | None]:
    bodies, commits = (found.column(f"{name}_{each}").to_pylist() for each in ("fields", "commit"))
    stored = [Row(key, body) for key, body in zip(keys, bodies, strict=True) if body is not None]
    made = iter(read(query.info, stored))
    listed: list[M | None] = []
    for key, body, commit_id in zip(keys, bodies, commits, strict=True):
        one = next(made) if body is not None else None
        if one is not None:
            attach(one, Meta(commit_id, key, erased=is_erased(body)))
        listed.append(one)
    return listed
