"""What cannot be asked is refused by name: questions, moments, figures, hops, pages and cursors."""

import base64
import json
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import pytest

from holdfast.base.errors import Invalid, NotFound
from holdfast.ontology import Entity, Field, Relation, count
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int] = Field(default=0)


class Book(Entity):
    id: Field[int] = Field(primary_key=True)


class Shelf(Entity):
    id: Field[str] = Field(primary_key=True)


class Read(Relation[Person, Book]):
    stars: Field[int] = Field(default=3)


class Stands(Relation[Book, Shelf]):
    pass


class Knows(Relation[Person, Person]):
    since: Field[int] = Field(default=0)


class Stranger(Entity):
    id: Field[str] = Field(primary_key=True)


def nested() -> Any:
    condition = Person.age == 1
    for _ in range(5_000):
        condition = ~condition
    return condition


REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda ask: ask(Stranger), "not a type of this session"),
    (lambda ask: ask(Person).select("agee"), "has no field agee did you mean age?"),
    (lambda ask: ask(Person).where(Read.stars == 3), "is about Person"),
    (lambda ask: ask(Person).where(True), "not a condition"),
    (lambda ask: ask(Person).limit(-1), "not a limit"),
    (lambda ask: ask(Person).where(Person.id == "\ud800"), "half of a surrogate pair"),
    (lambda ask: ask(Person).where(Person.id.startswith("\ud800")), "half of a surrogate pair"),
    (lambda ask: ask(Person).where(nested()).count(), "nested too deeply"),
    (lambda ask: ask(Person).as_of(99, strict=True).all(), "no commit 99 yet"),
    (lambda ask: ask(Person).as_of(-1).all(), "no commit -1"),
    (lambda ask: ask(Person).as_of("yesterday").all(), "neither a commit nor a time nor a tag"),
    (lambda ask: ask(Person).as_of("31 May").all(), "neither a commit nor a time"),
    (lambda ask: ask(Person).between(2, 1).all(), "commit 2 is after commit 1"),
    (lambda ask: ask(Person).agg(), "no figure is given"),
    (lambda ask: ask(Person).limit(3).agg(n=count()), "over all rows"),
    (lambda ask: ask(Person).group_by(Person.age).agg(age=count()), "two columns have one name"),
    (lambda ask: ask(Person).agg(n=Read.stars.sum()), "figure of Read, not of Person"),
    (lambda ask: ask(Person).group_by("age"), "not a field to group by"),
    (lambda ask: ask(Person).via(Stands), "relates Book and Shelf, not Person"),
    (lambda ask: ask(Person).via(Book), "is not a relation"),
    (lambda ask: ask(Person).via(Read, depth=2), "followed once only"),
    (lambda ask: ask(Person).via(Read, Knows.left_key == "x"), "is about Knows, not about Read"),
    (lambda ask: ask(Person).via(Read, reverse=True), "does not lead to Person"),
    *(
        (lambda ask, depth=depth: ask(Person).via(Knows, depth=depth), "not a depth")
        for depth in (None, True, (3, 2), (1, 2, 3), (1, "x"), (1, 2**40))
    ),
    *((lambda ask, size=size: ask(Person).page(size), "not the size of a page") for size in (0, True, "2", 2.0)),
    (lambda ask: ask(Person).page(2, after="abc"), "not a cursor"),
    (lambda ask: ask(Person).limit(3).page(2), "has no pages"),
]


async def library(desk: Desk) -> Ontology:
    onto = desk.session(Person, Book, Shelf, Read, Stands, Knows)
    for age in (1, 2):
        onto.ensure([Person(id=key, age=age) for key in "abcde"])
        onto.ensure([Book(id=1), Book(id=2)])
        onto.ensure([Read(left_key="a", right_key=number, stars=age) for number in (1, 2)])
        await onto.commit()
    return onto


async def asked(build: Callable[[Any], Any], onto: Ontology) -> None:
    found = build(onto.query)
    if isawaitable(found):
        await found


async def test_what_cannot_be_asked() -> None:
    async with await library(Desk()) as onto:
        for build, message in REFUSED:
            with pytest.raises((Invalid, NotFound)) as refused:
                await asked(build, onto)
            assert message in f"{refused.value} {refused.value.remedy}"


async def test_cursors_of_other_queries() -> None:
    async with await library(Desk()) as onto:
        people = onto.query(Person)
        cursor = (await people.page(2)).cursor
        hops = people.order_by(Person.age)
        led = (await hops.limit(1).via(Read).page(1)).cursor
        for query, after in (
            (people.where(Person.age > 5), cursor),
            (people.with_history(), cursor),
            (hops.limit(2).via(Read), led),
        ):
            with pytest.raises(Invalid, match="of another query"):
                await query.page(1, after=after)
        assert (await people.page(2**70)).cursor is None


@pytest.mark.parametrize("change", [{"rows": "5"}, {"rows": None}, {"rows": 2**64}, {"of": 5}, {"commit": -1}])
async def test_cursors_that_were_tampered_with(change: dict[str, Any]) -> None:
    async with await library(Desk()) as onto:
        for query in (onto.query(Person), onto.query(Person).order_by(Person.age)):
            place = json.loads(base64.urlsafe_b64decode((await query.page(2)).cursor or ""))
            changed = {**place, "skip": "x", **change}
            with pytest.raises(Invalid, match="not a cursor"):
                await query.page(2, after=base64.urlsafe_b64encode(json.dumps(changed).encode()).decode())
