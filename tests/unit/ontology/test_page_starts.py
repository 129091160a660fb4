"""Pages in whatever order: each row once, in its place, beside writers, before and after compaction."""

import base64
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from holdfast.base.errors import Conflict
from holdfast.ontology import Entity, Field, Ordering, Relation, left, meta
from holdfast.ontology.filters.operand import Sql, fill
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query import statement
from holdfast.ontology.query.query import Query
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk

WHOLES = (None, 0, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1)
REALS = (None, 0.0, -0.0, float("nan"), float("inf"), 1.5)
MIXED = (None, True, 7, 7.0, "x", [1], {"a": 1})


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    real: Field[float | None] = Field(default=None)
    price: Field[Decimal | None] = Field(default=None)
    bag: Field[dict[str, Any]] = Field(default_factory=dict)


class Near(Relation[Thing, Thing]):
    pass


ORDERS: dict[str, Callable[[Any], tuple[Ordering, ...]]] = {
    "whole": lambda way: (way(Thing.whole),),
    "real, whole": lambda way: (way(Thing.real), Thing.whole.desc()),
    "price": lambda way: (way(Thing.price),),
    "anything": lambda way: (way(Thing.bag.path("x")), Thing.real.asc(nulls="first")),
    "key": lambda way: (way(Thing.id),),
}
WAYS: dict[str, Callable[[Any], Ordering]] = {
    "asc": lambda term: term.asc(),
    "desc": lambda term: term.desc(),
    "asc first": lambda term: term.asc(nulls="first"),
    "desc first": lambda term: term.desc(nulls="first"),
}


async def stocked(desk: Desk) -> Ontology:
    onto = Ontology(desk.store, desk.ambient, [Thing, Near])
    prices = (None, Decimal("1.10"), Decimal("1.1"), Decimal(10) ** 19)
    drawn = zip(product(WHOLES, REALS), prices * 9, (MIXED * 6)[:36], strict=True)
    things = [
        Thing(id=f"t{number:02}", whole=whole, real=real, price=price, bag={"x": mixed})
        for number, ((whole, real), price, mixed) in enumerate(drawn)
    ]
    onto.ensure(things[:30])
    await onto.commit()
    onto.ensure(things[30:])
    onto.ensure([Thing(id="t03", whole=5), Thing(id="t04")])
    onto.retract(Thing, "t05")
    onto.ensure([Near(left_key=f"t{number:02}", right_key="t00") for number in range(0, 40, 3)])
    await onto.commit()
    return onto


async def in_pages(query: Query[Any], size: int, between: Callable[[], Any] | None = None) -> list[Any]:
    found, cursor = [], None
    while True:
        page = await query.page(size, after=cursor)
        found += [(meta(one).commit_id, meta(one).key) for one in page.rows]
        cursor = page.cursor
        if cursor is None:
            return found
        if between is not None:
            await between()


async def whole(query: Query[Any]) -> list[Any]:
    return [(meta(one).commit_id, meta(one).key) for one in await query.all()]


@pytest.mark.parametrize("way", WAYS)
async def test_pages_have_each_row_once_in_its_place(way: str) -> None:
    desk = Desk()
    async with await stocked(desk) as onto:
        things = onto.query(Thing)
        for order, query in product(ORDERS.values(), (things, things.with_history())):
            ordered = query.order_by(*order(WAYS[way]))
            assert await in_pages(ordered, 9) == await whole(ordered), ordered
        ends = onto.query(Near).order_by(WAYS[way](left(Near).whole))
        assert await in_pages(ends, 2) == await whole(ends)


async def test_pages_go_on_beside_writers_and_after_compaction() -> None:
    """What is typed in the files of one page may be read from JSON for the next, and the other way round."""
    desk = Desk()
    async with await stocked(desk) as onto:
        ordered = onto.query(Thing).order_by(Thing.whole.desc(), Thing.price)
        history = onto.query(Thing).history_since(0)
        wanted = await whole(ordered), await whole(history)
        written = 0

        async def write() -> None:
            nonlocal written
            written += 1
            onto.ensure([Thing(id=f"t{written:02}", whole=2**53 + written), Thing(id=f"n{written}", whole=written)])
            await onto.commit()
            compactor = Compactor(desk.store, desk.ambient, whole=True)
            for type_id in await compactor.types():
                for merge in (await compactor.outlook(type_id)).merges:
                    await compactor.perform(merge)

        assert await in_pages(ordered, 9, write) == wanted[0]
        assert written > 2
        now = await whole(history)
        assert await in_pages(history, 20, write) == now
        assert now[: len(wanted[1])] == wanted[1]


async def test_forgetting_where_nulls_stand_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def naive(template: str, *parts: Sql) -> Sql:
        return fill(template.replace("{} IS NULL OR ", "false AND {} IS NULL OR "), *parts)

    desk = Desk()
    async with await stocked(desk) as onto:
        ordered = onto.query(Thing).order_by(Thing.whole)
        assert await in_pages(ordered, 5) == await whole(ordered)
        monkeypatch.setattr(statement, "fill", naive)
        assert len(await in_pages(ordered, 5)) < len(await whole(ordered))


async def test_a_page_after_a_row_that_is_not_there_is_refused() -> None:
    desk, other = Desk(), Desk()
    async with await stocked(desk) as onto, Ontology(other.store, other.ambient, [Thing]) as empty:
        page = await onto.query(Thing).order_by(Thing.whole).page(2)
        empty.ensure(Thing(id="else", whole=1))
        await empty.commit()
        with pytest.raises(Conflict, match="is not there"):
            await empty.query(Thing).order_by(Thing.whole).page(2, after=page.cursor)


async def test_a_cursor_carries_no_payload() -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        onto.ensure([Thing(id=f"t{number}", bag={"x": f"secret {number}"}) for number in range(3)])
        await onto.commit()
        page = await onto.query(Thing).order_by(Thing.bag.path("x")).page(1)
    cursor = page.cursor or ""
    assert b'"key":["t0"]' in base64.urlsafe_b64decode(cursor)
    assert b"secret" not in base64.urlsafe_b64decode(cursor)
