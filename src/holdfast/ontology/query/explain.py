"""Explains a query: files chosen and pruned, conditions pushed down, requests.

The files that the query needs are fetched, as they would be for the query itself, and stay warm for it. With a profile
the query is run as well.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from holdfast.ontology.chain.history import When
from holdfast.ontology.filters.operand import Sql
from holdfast.ontology.query.cache.prune import paths, split
from holdfast.ontology.query.engine import Engine, Planned, Snapshot
from holdfast.ontology.query.statement import Ask
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.expressions.ast import (
    And,
    Between,
    Comparison,
    FieldPath,
    In,
    IsNotNull,
    IsNull,
    Length,
    Not,
    Or,
    Order,
    Predicate,
    Quantified,
    Text,
    Value,
)


def described(ask: Ask) -> str:
    parts = [ask.shape.type_id.name]
    if ask.origin is not None:
        hop = ask.origin
        way = "" if hop.forward else "reverse "
        parts = [f"{described(hop.ask)} via {way}{hop.relation.type_id.name} to {parts[0]}"]
    terms = ask.where.terms if isinstance(ask.where, And) else (ask.where,)
    if terms := tuple(term for term in terms if term != And(())):
        parts.append(f"where {shown(And(terms) if len(terms) > 1 else terms[0])}")
    parts += _moments(ask.when)
    if ask.order:
        parts.append(f"order by {', '.join(map(_order, ask.order))}")
    if ask.limit is not None:
        parts.append(f"limit {ask.limit}")
    if ask.offset:
        parts.append(f"offset {ask.offset}")
    return " ".join(parts)


def _moments(when: When) -> list[str]:
    if when.first is not None:
        return [f"between {when.first} and {when.last}"]
    history = "with history" if when.after is None else f"history since {when.after}"
    return [*([history] if when.mode == "history" else []), *([] if when.last is None else [f"as of {when.last}"])]


def _order(order: Order) -> str:
    return f"{_path(order.path)} desc" if order.descending else _path(order.path)


def shown(predicate: Predicate) -> str:
    """A predicate for people: in ``repr`` of a query and in its explanation."""
    match predicate:
        case And(terms=terms):
            return " and ".join(map(_grouped, terms)) or "true"
        case Or(terms=terms):
            return " or ".join(map(_grouped, terms)) or "false"
        case Not(term=term):
            return f"not {_grouped(term)}"
        case Quantified(quantifier=quantifier, path=path, where=where):
            return f"{quantifier} of {_path(path)}: {_grouped(where)}"
        case Length(path=path, operator=operator, value=count):
            return f"len({_path(path)}) {operator} {count}"
        case Comparison(path=path, operator=operator, value=value):
            return f"{_path(path)} {operator} {_value(value)}"
        case In(path=path, values=values):
            return f"{_path(path)} in [{', '.join(map(_value, values))}]"
        case Between(path=path, low=low, high=high):
            return f"{_path(path)} between {_value(low)} and {_value(high)}"
        case Text(path=path, operator=test, value=text, fold=fold):
            return f"{_path(path)} {test} {_value(text)}{' in any case' if fold else ''}"
        case IsNull(path=path):
            return f"{_path(path)} is null"
        case IsNotNull(path=path):
            return f"{_path(path)} is not null"


def _grouped(term: Predicate) -> str:
    return f"({shown(term)})" if isinstance(term, And | Or) and len(term.terms) > 1 else shown(term)


def _path(path: FieldPath) -> str:
    end = () if path.end == "own" else (path.end,)
    return ".".join((*end, *filter(None, (path.field, *path.steps))))


def _value(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


SHOWN = 8
"""Files of a table that the text names one by one."""


@dataclass(frozen=True)
class FileUse:
    path: str
    commits: tuple[int, int]
    use: str
    """rows: it may hold rows of the result. shadow: only newer rows that hide others. pruned: not read."""
    reason: str
    """Why it is pruned, or a shadow: commits, keys or columns."""


@dataclass(frozen=True)
class TableUse:
    type_name: str
    files: tuple[FileUse, ...]
    by_index: bool
    """The index named the files; else the chain did."""
    from_json: tuple[str, ...]
    """Fields that some file does not have in a typed column as it is now: fields_json is asked."""
    fetched: int
    """Files that the session did not have yet."""
    conditions: tuple[str, ...] = ()
    """What is asked of its rows, and where: on keys as they are read, on typed columns, or on JSON."""

    @property
    def counts(self) -> Counter[str]:
        return Counter(each.use for each in self.files)


@dataclass(frozen=True)
class Explanation:
    head: int
    commits: tuple[int, int]
    """The first and the last commit that the query is about."""
    history: bool
    tables: tuple[TableUse, ...]
    requests: int | None
    """That explaining cost, and so the query would have; None where the store does not count."""
    received_bytes: int | None
    sql: str
    plan: str
    """DuckDB's, in full. The text leaves it out: it is long, and says little of what a query costs in a bucket."""
    profile: str | None = None
    """The plan with the time that each part of it took."""

    def __str__(self) -> str:
        first, last = self.commits
        lines = [f"{'history' if self.history else 'state'}, commits {first} to {last} of {self.head}"]
        if self.requests is not None:
            lines.append(f"{self.requests} requests, {self.received_bytes} bytes received")
        for table in self.tables:
            counts = table.counts
            read = counts["rows"] + counts["shadow"]
            source = "index" if table.by_index else "chain"
            lines.append(
                f"{table.type_name}: {read} of {len(table.files)} files by the {source}, {table.fetched} fetched"
            )
            reasons = Counter(f"{each.use} by {each.reason}" for each in table.files if each.reason)
            lines += [f"  {count} {reason}" for reason, count in sorted(reasons.items())]
            lines += [f"  {each.use}: {each.path}" for each in table.files if each.use != "pruned"][:SHOWN]
            lines += [f"  {condition}" for condition in table.conditions]
            if table.from_json:
                lines.append(f"  read from fields_json: {', '.join(table.from_json)}")
        if self.profile is not None:
            lines += ["", self.profile]
        return "\n".join(lines)


async def explain(engine: Engine, ask: Ask, *, profile: bool) -> Explanation:
    before = _usage(engine)

    async def question(snapshot: Snapshot) -> tuple[Snapshot, Sql, Any]:
        rows = await snapshot.rows(ask)
        return snapshot, await engine.filled(rows.select(rows.stored)), rows.window

    snapshot, sql, window = await engine.ask(question)
    after = _usage(engine)
    plan = await _plan(engine, "EXPLAIN", sql)
    return Explanation(
        snapshot.ledger.commit_id,
        (window.lower + 1, window.upper),
        window.history,
        tuple(_table_use(each) for each in snapshot.planned),
        None if before is None or after is None else after[0] - before[0],
        None if before is None or after is None else after[1] - before[1],
        sql.text,
        plan,
        await _plan(engine, "EXPLAIN ANALYZE", sql) if profile else None,
    )


async def _plan(engine: Engine, verb: str, sql: Sql) -> str:
    found = await engine.table(Sql(f"{verb} {sql.text}", sql.params))
    return "\n".join(str(text).rstrip() for text in found.column("explain_value").to_pylist())


def _table_use(planned: Planned) -> TableUse:
    table = planned.table
    files = tuple(
        FileUse(each.entry.path, (each.entry.first, each.entry.last), each.use, each.reason) for each in planned.choices
    )
    return TableUse(
        table.shape.type_id.name,
        files,
        planned.resolved.by_index,
        tuple(sorted(table.lacking)),
        len(planned.fetched),
        _conditions(planned),
    )


def _conditions(planned: Planned) -> tuple[str, ...]:
    """The conditions on one table's own fields. Those on ends stand with the tables of the ends, as far as these can
    be narrowed by them.
    """
    table, found = planned.table, []
    parts = split(planned.predicate, table.shape)
    for term in (*parts.keys.terms, *parts.rest.terms):
        fields = list(paths(term))
        if any(path.end != "own" for path in fields):
            continue
        if term in parts.keys.terms:
            where = "condition on keys, pushed into the scan"
        elif all(_is_typed(table, path) for path in fields):
            where = "condition on typed columns"
        else:
            where = "condition on JSON"
        found.append(f"{where}: {shown(term)}")
    return tuple(found)


def _is_typed(table: Table, path: FieldPath) -> bool:
    shape = table.shape
    return path.field in shape.payload and path.field not in table.lacking and shape.forms[path.field] != "json"


def _usage(engine: Engine) -> tuple[int, int] | None:
    usage = getattr(engine.store, "usage", None)
    if usage is None:
        return None
    return usage.requests(), sum(tally.received_bytes for tally in usage.tallies.values())
