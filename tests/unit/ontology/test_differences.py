"""Differences between two commits, and moments that bound history."""

import pytest

from holdfast.base.errors import Invalid
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.filters.sides import left, right
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.expressions.terms import Condition
from tests.unit.ontology.desk import Desk


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str | None] = Field(default=None)


class Likes(Relation[Person, Person]):
    much: Field[int] = Field(default=1)


async def village(desk: Desk) -> Ontology:
    onto = Ontology(desk.store, desk.ambient, [Person, Likes])
    onto.ensure([Person(id="a", tier="Gold"), Person(id="b", tier="Std"), Likes(left_key="a", right_key="b")])
    await onto.commit()
    onto.ensure([Person(id="a", tier="Std"), Person(id="c", tier="Gold"), Likes(left_key="a", right_key="b", much=2)])
    onto.ensure(Likes(left_key="b", right_key="zz"))
    onto.retract(Person, "b")
    await onto.commit()
    return onto


async def test_what_does_not_exist_is_like_nothing() -> None:
    """Its fields would be null, and null differs from every value."""
    desk = Desk()
    async with await village(desk) as onto:
        people = onto.query(Person)

        async def keys(condition: Condition) -> list[str]:
            return [each.key[0] for each in await people.where(condition).diff(1, 2)]

        assert await keys(Person.tier != "Gold") == ["a", "b"]
        assert await keys(~(Person.tier == "Gold")) == ["a", "b"]
        assert await keys(Person.tier.is_null()) == []
        assert await keys(Person.tier == "Gold") == ["a", "c"]


async def test_ends_are_those_of_each_commit() -> None:
    desk = Desk()
    async with await village(desk) as onto:
        likes = onto.query(Likes)
        was_gold = await likes.where(left(Likes).tier == "Gold").diff(1, 2)
        assert [(each.key[:2], each.action) for each in was_gold] == [(("a", "b"), "changed")]
        has_none = await likes.where(right(Likes).tier.is_null(), left(Likes).tier == "Std").diff(1, 2)
        assert [each.key[:2] for each in has_none] == [("a", "b")]
        either = await likes.where((left(Likes).tier == "Gold") | (Likes.right_key == "zz")).diff(1, 2)
        assert [(each.key[:2], each.action) for each in either] == [(("a", "b"), "changed"), (("b", "zz"), "added")]
        assert await likes.where(left(Likes).tier == "Gold", Likes.much == 2).diff(1, 2) == []


async def test_what_a_difference_cannot_heed_is_refused() -> None:
    desk = Desk()
    async with await village(desk) as onto:
        people = onto.query(Person)
        for query in (people.limit(1), people.offset(1), people.order_by(Person.tier)):
            with pytest.raises(Invalid, match="a diff is whole, and by key"):
                await query.diff(1, 2)
        with pytest.raises(Invalid, match="names its moments itself"):
            await people.as_of(1).diff(1, 2)


async def test_a_moment_bounds_history() -> None:
    desk = Desk()
    async with await village(desk) as onto:
        people = onto.query(Person)
        for query in (people.as_of(1).with_history(), people.with_history().as_of(1)):
            assert [one.id for one in await query.all()] == ["a", "b"]
        assert await people.history_since(1).as_of(1).count() == 0
        assert await people.between(1, 1).with_history().count() == 5
        with pytest.raises(Invalid, match="says itself where it ends"):
            people.between(1, 2).as_of(1)
        with pytest.raises(Invalid, match="says itself where it ends"):
            people.as_of(1).between(1, 2)


async def test_times_are_named_the_older_one_first() -> None:
    desk = Desk()
    async with await village(desk) as onto:
        people = onto.query(Person)
        with pytest.raises(Invalid, match="is after 2001"):
            await people.between(2, "2001-01-01T00:00:00Z").all()
        assert await people.between(7, 9).all() == []
        assert await people.between("2001-01-01T00:00:00Z", 1).count() == 2
