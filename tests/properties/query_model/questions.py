"""One random question about one type, answered in every way there is: whole, counted, streamed, ordered, in pages, in
groups, as figures, and with ends."""

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

from holdfast.ontology import Figure, count, count_where, left, meta
from holdfast.ontology.query.query import Query
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from tests.properties.query_model import answers, in_sql
from tests.properties.query_model.answers import By
from tests.properties.query_model.classes import CLASSES, FIELDS, Person
from tests.properties.query_model.conditions import about
from tests.properties.query_model.past import ENDS, Fact, Key, Kind, Past, Version, When
from tests.properties.query_model.referee import Referee

OFTEN: tuple[Kind, ...] = ("Person", "Person", "Person", "Knows", "Buys", "Item")
GROUPED = ("tier", "age", "score", "price", "day", "at", "flag")
ORDERED = (*GROUPED, "id")
FIGURES: dict[str, Figure] = {
    "rows": count(),
    "golden": count_where(Person.tier.equals("gold", fold=True)),
    "years": Person.age.sum(),
    "median": Person.age.quantile(0.5),
    "worth": Person.price.sum(),
    "mean": Person.price.avg(),
    "dearest": Person.price.max(),
    "worst": Person.score.min(),
    "tiers": Person.tier.count_distinct(),
    "length": Person.tags.avg_len(),
}


def drawn_when(rng: Random, query: Query[Any], head: int) -> tuple[When, Query[Any]]:
    choice, first = rng.random(), rng.randint(0, head)
    last = rng.randint(first, head)
    if choice < 0.3:
        return When(0, head, history=False), query
    if choice < 0.55:
        return When(0, first, history=False), query.as_of(first)
    if choice < 0.7:
        return When(1, head, history=True), query.with_history()
    if choice < 0.85:
        return When(first + 1, head, history=True), query.history_since(first)
    return When(first, last, history=True), query.between(first, last)


async def ask(rng: Random, onto: Ontology, tables: SqlTables, past: Past, referee: Referee) -> None:
    kind = rng.choice(OFTEN)
    where = about(rng, kind, rng.randint(0, 3))
    when, everything = drawn_when(rng, onto.query(CLASSES[kind]), past.head)
    query = everything.where(where.asked)
    rows = past.rows(kind, where.holds, when)
    await _whole(query, kind, rows, referee)
    await in_sql.repeat(tables, everything, when, referee)
    if kind in ENDS:
        await _ends(query, kind, past, when, rows, referee)
    elif kind == "Person":
        way = rng.choice((_streamed, _in_order, _in_groups))
        await way(rng, query, when, rows, referee)
    else:
        await _streamed(rng, query, when, rows, referee)


async def _whole(query: Query[Any], kind: Kind, rows: list[Version], referee: Referee) -> None:
    found = await query.all()
    got = [(meta(one).commit_id, meta(one).key, meta(one).retracted, _fact(one, kind)) for one in found]
    wanted = [(row.commit_id, row.key, row.retracted, dict(row.fact)) for row in rows]
    referee.agree("all", query, got, wanted)
    referee.agree("count", query, await query.count(), len(rows))


def _fact(one: Any, kind: Kind) -> dict[str, Any]:
    return {name: getattr(one, name) for name in FIELDS[kind]}


async def _streamed(rng: Random, query: Query[Any], when: When, rows: list[Version], referee: Referee) -> None:
    """A state streams in any order, history in its own."""
    got = [meta(one).key async for one in query.stream()]
    wanted = [row.key for row in rows]
    referee.agree("stream", query, got if when.history else sorted(got), wanted)
    referee.agree("arrow", query, (await query.arrow()).num_rows, len(rows))
    referee.agree("pages", query, await _pages(query, rng.randint(1, 3)), wanted)


async def _pages(query: Query[Any], size: int) -> list[Key]:
    page = await query.page(size)
    found = list(page.rows)
    while page.cursor is not None:
        page = await query.page(size, after=page.cursor)
        found += page.rows
    return [meta(one).key for one in found]


async def _in_order(rng: Random, query: Query[Any], when: When, rows: list[Version], referee: Referee) -> None:
    names = rng.sample(ORDERED, rng.randint(1, 3))
    terms = [By(name, rng.random() < 0.5, rng.choice(("first", "last"))) for name in names]
    fields = [getattr(Person, term.name) for term in terms]
    ordered = query.order_by(
        *((field.desc if by.descending else field.asc)(nulls=by.nulls) for field, by in zip(fields, terms, strict=True))
    )
    wanted = [row.key for row in answers.ordered(rows, terms)]
    limit, offset = rng.randint(0, 5), rng.randint(0, 5)
    some = await ordered.limit(limit).offset(offset).all()
    referee.agree("order", (ordered, limit, offset), [meta(one).key for one in some], wanted[offset : offset + limit])
    size = 1 + len(rows) % 4
    referee.agree("ordered pages", ordered, await _pages(ordered, size), wanted)


async def _in_groups(rng: Random, query: Query[Any], when: When, rows: list[Version], referee: Referee) -> None:
    names = rng.sample(GROUPED, rng.randint(1, 2))
    found = await query.group_by(*(getattr(Person, name) for name in names)).agg(**FIGURES)
    groups = answers.grouped(rows, names)
    got = {answers.group_of([row[name] for name in names]): row for row in found}
    referee.agree("groups", (query, names), (set(got), len(found)), (set(groups), len(groups)))
    for group in got.keys() & groups.keys():
        _compare(got[group], groups[group], (query, names, group), referee)
    _compare(await query.agg(**FIGURES), [row.fact for row in rows], query, referee)


def _compare(found: dict[str, Any], people: Sequence[Fact], of: Any, referee: Referee) -> None:
    wanted = answers.figures(people)
    referee.agree("figures", of, {name: _settled(found[name], wanted[name]) for name in wanted}, wanted)


def _settled(got: Any, wanted: Any) -> Any:
    """A sum of Decimals is exact, and a mean may be the double beside."""
    if isinstance(wanted, Fraction) and isinstance(got, Decimal):
        return Fraction(got)
    if isinstance(wanted, float) and isinstance(got, float) and math.isclose(got, wanted, rel_tol=1e-12):
        return wanted
    return got


async def _ends(query: Query[Any], kind: Kind, past: Past, when: When, rows: list[Version], referee: Referee) -> None:
    """Relations by what is at their left end; and with both of their ends."""
    relation: Any = CLASSES[kind]
    field = "weight" if kind == "Knows" else "quantity"
    side: Any = left(relation)
    found = await query.group_by(side.tier).agg(rows=count(), total=getattr(relation, field).sum())
    sums: dict[Any, tuple[int, int | None]] = {}
    sights = [past.sight(row, when.last) for row in rows]
    for sight in sights:
        tier, value = None if sight.left is None else sight.left["tier"], sight.own[field]
        number, total = sums.get(tier, (0, None))
        sums[tier] = number + 1, total if value is None else value + (total or 0)
    referee.agree("groups by end", query, {row["left.tier"]: (row["rows"], row["total"]) for row in found}, sums)
    if when.history:
        return
    linked = await query.linked()
    got = [(meta(one.relation).key, _seen(one.left, "Person"), _seen(one.right, ENDS[kind][1])) for one in linked]
    referee.agree("linked", query, got, [(row.key, see.left, see.right) for row, see in zip(rows, sights, strict=True)])


def _seen(one: Any, kind: Kind) -> dict[str, Any] | None:
    return None if one is None else _fact(one, kind)
