"""Figures and groups, against what Python says of the same rows."""

import math
from decimal import Decimal
from typing import Any

import pytest

from holdfast.base.errors import Invalid
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.expressions.terms import Figure, RowTerm, count
from holdfast.ontology.types.fields import left
from tests.unit.ontology.desk import Desk

HUGE = 2**63 - 1


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int | None] = Field(default=None)
    weight: Field[float] = Field(default=0.0)
    money: Field[Decimal] = Field(default=Decimal(0))
    town: Field[str | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    more: Field[dict[str, int]] = Field(default_factory=dict)


class Likes(Relation[Person, Person]):
    much: Field[int] = Field(default=1)


PEOPLE = [
    Person(id="a", age=30, weight=0.1, money=Decimal("1.10"), town="Rome", tags=["x", "y"], more={"n": 1}),
    Person(id="b", age=40, weight=0.2, money=Decimal("2.20"), town="Rome", more={"n": 2}),
    Person(id="c", age=HUGE, weight=0.7, town="Ayr", tags=["z"]),
    Person(id="d", age=HUGE, weight=1.0, town=None),
    Person(id="e", weight=5.0, town="Ayr"),
]


async def session(desk: Desk, *, plain: bool) -> Ontology:
    """With ``plain`` the same rows come from a writer whose files have no columns that can be relied on."""
    onto = Ontology(desk.store, desk.ambient, [Person, Likes])
    if plain:
        await onto.register()
        await onto.flush()
        await onto._turn.close()  # a plain writer waits for the lock
        from tests.unit.ontology.shop import fields

        await desk.plain.commit({("entity", "Person"): [(one.id, fields(one)) for one in PEOPLE]})
    else:
        onto.ensure(PEOPLE)
        await onto.commit()
    return onto


async def test_moments_and_ends_apply_to_figures() -> None:
    desk = Desk()
    async with await session(desk, plain=False) as onto:
        onto.ensure([Likes(left_key="a", right_key="b", much=2), Likes(left_key="c", right_key="b", much=5)])
        await onto.commit()
        onto.ensure(Person(id="c", town="Rome"))
        await onto.commit()
        query = onto.query(Likes)
        by_town = query.group_by(left(Likes).town)
        assert await by_town.agg(sum=Likes.much.sum()) == [{"left.town": "Rome", "sum": 7}]
        older = await query.as_of(2).group_by(left(Likes).town).agg(sum=Likes.much.sum())
        assert older == [{"left.town": "Ayr", "sum": 5}, {"left.town": "Rome", "sum": 2}]
        assert await query.as_of(1).agg(n=count(), much=Likes.much.sum()) == {"n": 0, "much": None}
        liked = onto.query(Person).where(Person.id == "a").via(Likes)
        assert await liked.agg(money=liked_money()) == {"money": Decimal("2.20")}


def liked_money() -> Figure:
    return Person.money.sum()


async def test_figures_that_are_none() -> None:
    desk = Desk()
    async with await session(desk, plain=False) as onto:
        query = onto.query(Person)
        with pytest.raises(Invalid, match="nothing to work out"):
            await query.agg()
        with pytest.raises(Invalid, match="over all rows"):
            await query.limit(3).agg(n=count())
        with pytest.raises(Invalid, match="two columns have one name"):
            await query.group_by(Person.town).agg(town=count())
        with pytest.raises(Invalid, match="figure of Likes, not of Person"):
            await query.agg(n=Likes.much.sum())
        with pytest.raises(Invalid, match="not a field to group by"):
            query.group_by("town")  # type: ignore[arg-type]  # refused


class Odd(Entity):
    id: Field[str] = Field(primary_key=True)
    whole: Field[int | None] = Field(default=None)
    money: Field[Decimal | None] = Field(default=None)
    either: Field[int | float | None] = Field(default=None)
    any: Field[Any] = Field(default=None)
    more: Field[dict[str, Any]] = Field(default_factory=dict)


class Seat(Relation[Odd, Odd]):
    number: Field[int] = Field(instance_key=True)


async def test_groups_are_exact_whatever_the_values_are() -> None:
    """Nothing is rounded, and nothing but null and what is unlike goes to the group of null."""
    desk = Desk()
    huge, fine = 2**63 - 2, Decimal("0.123456789012345678")
    async with Ontology(desk.store, desk.ambient, [Odd, Seat]) as onto:
        onto.ensure(
            [
                Odd(id="a", whole=huge, money=Decimal("1E+19"), either=math.inf, any=3, more={"x": True}),
                Odd(id="b", whole=huge + 1, money=fine, either=1, any="3", more={"x": 1}),
                Odd(id="c", whole=huge, money=fine, either=1.0, any=3.0, more={"x": "1"}),
                Odd(id="d", whole=1, money=Decimal("1.10"), any=[3], more={"x": None}),
                Odd(id="e", money=Decimal("1.1")),
            ]
        )
        onto.ensure(
            [Seat(left_key=one, right_key="a", number=number) for one, number in (("a", 9), ("b", 10), ("c", 9))]
        )
        await onto.commit()

        async def groups(term: RowTerm[Any]) -> list[tuple[Any, int]]:
            found = await onto.query(Odd).group_by(term).agg(n=count())
            return [(next(iter(group.values())), group["n"]) for group in found]

        assert await groups(Odd.whole) == [(1, 1), (huge, 2), (huge + 1, 1), (None, 1)]
        assert await groups(Odd.money) == [(fine, 2), (Decimal("1.1"), 2), (Decimal("1E+19"), 1)]
        assert await groups(Odd.either) == [(1, 2), (math.inf, 1), (None, 2)]
        assert await groups(Odd.any) == [(3, 2), ("3", 1), (None, 2)]
        assert await groups(Odd.more.path("x")) == [(True, 1), (1, 1), ("1", 1), (None, 2)]
        assert await onto.query(Seat).group_by(Seat.number).agg(n=count()) == [
            {"number": 9, "n": 2},
            {"number": 10, "n": 1},
        ]
