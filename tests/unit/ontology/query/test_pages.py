"""Pages in whatever order: each row once, in its place, beside writers, before and after compaction."""

from collections.abc import Callable
from decimal import Decimal
from itertools import product
from typing import Any

import pytest

from holdfast.base.errors import Conflict
from holdfast.ontology import Entity, Field, meta
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.query import Query
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    price: Field[Decimal | None] = Field(default=None)
    bag: Field[dict[str, Any]] = Field(default_factory=dict)


async def stocked(desk: Desk) -> Ontology:
    onto = desk.session(Thing)
    drawn = product((None, 0, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1), (None, Decimal("1.10"), Decimal(10) ** 19))
    onto.ensure([Thing(id=f"t{n:02}", whole=each, price=price) for n, (each, price) in enumerate(drawn)])
    await onto.commit()
    onto.ensure([Thing(id="t03", whole=5), Thing(id="t04")])
    onto.retract(Thing, "t05")
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


async def test_pages_go_on_beside_writers_and_after_compaction(desk: Desk) -> None:
    """What is typed in the files of one page may be read from JSON for the next, and the other way round."""
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

        assert await in_pages(ordered, 4, write) == wanted[0]
        assert written > 2
        now = await whole(history)
        assert await in_pages(history, 9, write) == now
        assert now[: len(wanted[1])] == wanted[1]


async def test_a_cursor_of_another_store_is_refused() -> None:
    desk, other = Desk(), Desk()
    async with await stocked(desk) as onto, other.session(Thing) as empty:
        page = await onto.query(Thing).order_by(Thing.whole).page(2)
        empty.ensure(Thing(id="else", whole=1))
        await empty.commit()
        with pytest.raises(Conflict, match="the store is another one"):
            await empty.query(Thing).order_by(Thing.whole).page(2, after=page.cursor)
