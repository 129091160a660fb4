"""Along relations, and page by page."""

import base64
import json
from typing import Any

import pytest

from holdfast.base.errors import Invalid
from holdfast.ontology import Entity, Field, Relation, meta
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int] = Field(default=0)


class Book(Entity):
    id: Field[int] = Field(primary_key=True)
    title: Field[str]


class Shelf(Entity):
    id: Field[str] = Field(primary_key=True)


class Read(Relation[Person, Book]):
    stars: Field[int] = Field(default=3)


class Stands(Relation[Book, Shelf]):
    pass


class Knows(Relation[Person, Person]):
    since: Field[int] = Field(default=0)


async def library(desk: Desk) -> Ontology:
    onto = Ontology(desk.store, desk.ambient, [Person, Book, Shelf, Read, Stands, Knows])
    onto.ensure([Person(id=key, age=age) for key, age in (("ada", 30), ("bo", 40), ("cy", 50), ("di", 60), ("ed", 70))])
    onto.ensure([Book(id=1, title="Sand"), Book(id=2, title="Sea"), Book(id=3, title="Stone")])
    onto.ensure([Shelf(id="north"), Shelf(id="south")])
    onto.ensure([Read(left_key=who, right_key=what, stars=n) for who, what, n in (("ada", 1, 5), ("ada", 2, 1))])
    onto.ensure([Read(left_key="bo", right_key=2, stars=4), Read(left_key="bo", right_key=9)])
    onto.ensure([Stands(left_key=1, right_key="north"), Stands(left_key=2, right_key="south")])
    onto.ensure([Knows(left_key=a, right_key=b) for a, b in (("ada", "bo"), ("bo", "cy"), ("cy", "ada"), ("cy", "di"))])
    await onto.commit()
    return onto


async def test_hops_that_lead_nowhere_are_refused() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        people = onto.query(Person)
        with pytest.raises(Invalid, match="relates Book and Shelf, not Person"):
            people.via(Stands)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(Invalid, match="is not a relation"):
            people.via(Book)  # type: ignore[arg-type]  # on purpose
        with pytest.raises(Invalid, match="followed once only"):
            people.via(Read, depth=2)
        with pytest.raises(Invalid, match="not a depth"):
            people.via(Knows, depth=(3, 2))
        with pytest.raises(Invalid, match="is about Knows, not about Read"):
            people.via(Read, Knows.left_key == "x")
        with pytest.raises(Invalid, match="does not lead to Person"):
            people.via(Read, reverse=True)  # type: ignore[arg-type]  # on purpose
        for depth in (None, True, (1, 2, 3), (1, "x"), (1, 2**40)):
            with pytest.raises(Invalid, match="not a depth"):
                people.via(Knows, depth=depth)  # type: ignore[arg-type]  # on purpose


# --- pages ---


async def test_cursors_that_do_not_fit_are_refused() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        query = onto.query(Person)
        page = await query.page(2)
        with pytest.raises(Invalid, match="of another query"):
            await query.where(Person.age > 5).page(2, after=page.cursor)
        with pytest.raises(Invalid, match="not a cursor"):
            await query.page(2, after="abc")
        with pytest.raises(Invalid, match="not the size of a page"):
            await query.page(0)
        with pytest.raises(Invalid, match="has no pages"):
            await query.limit(3).page(2)
        with pytest.raises(Invalid, match="of another query"):
            await query.with_history().page(2, after=page.cursor)
        for size in (True, "2", 2.0):
            with pytest.raises(Invalid, match="not the size of a page"):
                await query.page(size)  # type: ignore[arg-type]  # on purpose
        assert (await query.page(2**70)).cursor is None


@pytest.mark.parametrize("change", [{"key": 5}, {"key": [5]}, {"key": ["a", "b"]}, {"key": None}, {"commit": -1}])
async def test_cursors_that_were_tampered_with_are_refused(change: dict[str, Any]) -> None:
    desk = Desk()
    async with await library(desk) as onto:
        for query in (onto.query(Person), onto.query(Person).order_by(Person.age)):
            place = json.loads(base64.urlsafe_b64decode((await query.page(2)).cursor or ""))
            changed = {**place, "skip": "x", **change}
            with pytest.raises(Invalid, match="not a cursor"):
                await query.page(2, after=base64.urlsafe_b64encode(json.dumps(changed).encode()).decode())


async def test_a_cursor_is_of_the_hops_that_led_there() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        people = onto.query(Person).order_by(Person.age)
        page = await people.limit(1).via(Read).page(1)
        assert page.cursor is not None
        with pytest.raises(Invalid, match="of another query"):
            await people.limit(2).via(Read).page(1, after=page.cursor)


async def test_pages_of_history_end_where_the_first_one_did() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        onto.ensure(Person(id="ada", age=31))
        onto.retract(Person, "ed")
        await onto.commit()
        for query in (onto.query(Person).with_history(), onto.query(Person).history_since(1)):
            expected = [(meta(one).commit_id, one.id) for one in await query.all()]
            found: list[tuple[int, str]] = []
            cursor = None
            while True:
                page = await query.page(2, after=cursor)
                found += [(meta(one).commit_id, one.id) for one in page.rows]
                cursor = page.cursor
                if cursor is None:
                    break
                onto.ensure(Person(id="ada", age=100 + len(found)))
                await onto.commit()
            assert found == expected
