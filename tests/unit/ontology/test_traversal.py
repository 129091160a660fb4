"""Along relations, and page by page."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.ontology import Entity, Field, Relation
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
    pass


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


async def test_hops_with_filters_at_each() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        people = onto.query(Person)
        books = people.where(Person.id == "ada").via(Read)
        assert [one.title for one in await books.all()] == ["Sand", "Sea"]
        assert [one.title for one in await people.via(Read, Read.stars >= 4).all()] == ["Sand", "Sea"]
        assert [one.title for one in await people.where(Person.age < 40).via(Read, Read.stars >= 4).all()] == ["Sand"]
        assert [one.id for one in await books.via(Stands).all()] == ["north", "south"]
        assert [one.id for one in await books.where(Book.title == "Sea").via(Stands).all()] == ["south"]
        assert await people.via(Read).count() == 2  # book 9 does not exist
        back = onto.query(Shelf).where(Shelf.id == "south").via(Stands).via(Read)
        assert [one.id for one in await back.all()] == ["ada", "bo"]
        few = people.order_by(Person.age.desc()).limit(4).via(Read)
        assert [one.id for one in await few.all()] == [2]


async def test_hops_are_as_of_one_commit() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        onto.retract(Read, "ada", 2)
        onto.retract(Stands, 1, "north")
        await onto.commit()
        ada = onto.query(Person).where(Person.id == "ada")
        assert [one.id for one in await ada.via(Read).via(Stands).all()] == []
        assert [one.id for one in await ada.via(Read).via(Stands).as_of(1).all()] == ["north", "south"]
        assert [one.id for one in await ada.as_of(1).via(Read).via(Stands).all()] == ["north", "south"]


async def test_walks_of_any_depth() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        ada = onto.query(Person).where(Person.id == "ada")

        async def ids(depth: int | tuple[int, int | None], *, reverse: bool = False) -> list[str]:
            return [one.id for one in await ada.via(Knows, depth=depth, reverse=reverse).all()]

        assert await ids(1) == ["bo"]
        assert await ids(2) == ["cy"]
        assert await ids((1, 2)) == ["bo", "cy"]
        assert await ids((1, 3)) == ["ada", "bo", "cy", "di"]
        assert await ids((0, 1)) == ["ada", "bo"]
        assert await ids((1, None)) == ["ada", "bo", "cy", "di"]
        assert await ids(1, reverse=True) == ["cy"]
        assert await ids((1, 2), reverse=True) == ["bo", "cy"]


async def test_shortest_ways() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        ada = onto.query(Person).where(Person.id == "ada")

        async def way(to: str, most: int = 16, *, reverse: bool = False) -> list[str] | None:
            found = await ada.shortest_path(Knows, Person.id == to, most=most, reverse=reverse)
            return None if found is None else [one.id for one in found]

        assert await way("di") == ["ada", "bo", "cy", "di"]
        assert await way("di", most=2) is None
        assert await way("ada") == ["ada"]
        assert await way("ed") is None
        assert await way("bo", reverse=True) == ["ada", "cy", "bo"]
        onto.ensure(Knows(left_key="ada", right_key="di"))
        await onto.commit()
        assert await way("di") == ["ada", "di"]
        older = await ada.as_of(1).shortest_path(Knows, Person.id == "di")
        assert [one.id for one in older or ()] == ["ada", "bo", "cy", "di"]


async def test_hops_that_lead_nowhere_are_refused() -> None:
    desk = Desk()
    async with await library(desk) as onto:
        people = onto.query(Person)
        with pytest.raises(Invalid, match="relates Book and Shelf, not Person"):
            people.via(Stands)
        with pytest.raises(Invalid, match="is not a relation"):
            people.via(Book)
        with pytest.raises(Invalid, match="followed once only"):
            people.via(Read, depth=2)
        with pytest.raises(Invalid, match="not a depth"):
            people.via(Knows, depth=(3, 2))
        with pytest.raises(Invalid, match="is about Knows, not about Read"):
            people.via(Read, Knows.left_key == "x")
        with pytest.raises(Invalid, match="does not lead to Person"):
            people.via(Read, reverse=True)
        with pytest.raises(Invalid, match="not about history"):
            await people.via(Read).with_history().all()


# --- pages ---


@pytest.mark.parametrize("ordered", [False, True])
async def test_pages_are_of_one_state(ordered: bool) -> None:
    desk = Desk()
    async with await library(desk) as onto:
        query = onto.query(Person)
        if ordered:
            query = query.order_by(Person.age.desc())
        found: list[str] = []
        page = await query.page(2)
        while True:
            found += [one.id for one in page.rows]
            onto.ensure([Person(id=f"aa{len(found)}", age=999), Person(id=f"zz{len(found)}", age=0)])
            await onto.commit()
            if page.cursor is None:
                break
            page = await query.page(2, after=page.cursor)
            assert page.commit_id == 1
        assert found == (["ed", "di", "cy", "bo", "ada"] if ordered else ["ada", "bo", "cy", "di", "ed"])


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
        with pytest.raises(Invalid, match="not of history"):
            await query.with_history().page(2)
