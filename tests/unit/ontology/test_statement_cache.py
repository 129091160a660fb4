"""Questions that are put again: one statement for all of them, and never one of before a change."""

from typing import Any

import pytest

from holdfast.ontology import Entity, Field, Relation, count, left
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.engine import LONGEST, MOST, CachedStatement, StatementCache
from holdfast.ontology.query.statement import Ask, Origin
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.expressions.ast import Comparison, FieldPath, In, Not
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk

PATH = FieldPath("own", "value")


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    note: Field[str | None] = Field(default=None)


class Link(Relation[Thing, Thing]):
    weight: Field[int]


def opened(desk: Desk, memory_limit: str = "256MB") -> Ontology:
    return Ontology(desk.store, desk.ambient, (Thing, Link), Options(memory_limit=memory_limit))


async def answers(onto: Ontology) -> list[Any]:
    things, links = onto.query(Thing), onto.query(Link)
    over = things.where(Thing.value > 1)
    return [
        (await things.arrow()).to_pylist(),
        (await things.as_of(2).arrow()).to_pylist(),
        (await things.with_history().arrow()).to_pylist(),
        (await things.where(Thing.id == "t1").arrow()).to_pylist(),
        [vars(one) for one in await over.all()],
        [vars(one) for one in await over.order_by(Thing.value.desc()).limit(2).all()],
        await over.count(),
        await things.group_by(Thing.value).agg(n=count()),
        await things.agg(n=count(), most=Thing.value.max()),
        [vars(one) for one in await links.where(left(Link).value > 0).all()],
        (await over.via(Link).arrow()).to_pylist(),
    ]


async def test_what_is_asked_again_is_said_once_until_something_changes() -> None:
    desk = Desk()
    expected: list[Any] = []
    async with opened(desk) as onto, opened(desk) as writer:
        onto._warm.gather_after = 7
        for number in range(12):
            writer.ensure([Thing(id=f"t{row}", value=number * row) for row in range(number % 4, 4)])
            writer.ensure(Link(left_key=f"t{number % 4}", right_key="t2", weight=number))
            if number == 5:
                writer.retract(Thing, "t3")
            if number == 8:
                await Compactor(desk.store, desk.ambient, fan=2).compact(TypeId("entity", "Thing"))
            await writer.commit()
            async with opened(desk) as fresh:
                expected = await answers(fresh)
            assert expected[0], "there is something to see"
            for _ in range(3):
                assert await answers(onto) == expected
        await onto.settled()
        onto._warm.gather_after = 10**9  # nothing changes any more
        assert await answers(onto) == expected
        said = dict(onto._engine.sayings._kept)
        assert len(said) == len(expected)
        desk.spent()
        assert await answers(onto) == expected
        assert onto._engine.sayings._kept == said
        assert desk.spent() == {"get": len(expected)}


def test_words_tell_what_is_not_the_same() -> None:
    shape, same = type_info(Thing), type_info(Thing)
    values: list[Any] = [1, True, 1.0, "1", b"1"]
    asks = [Ask(shape, {}, where=Comparison(PATH, "==", value, "number")) for value in values]
    asks += [Ask(shape, {}), Ask(shape, {}, limit=1), Ask(shape, {}, offset=1), Ask(shape, {}, hydrate=True)]
    asks += [Ask(shape, {}, origin=Origin(Ask(shape, {}), shape, Not(In(PATH, (n,), "number")), True)) for n in (1, 2)]
    asks += [Ask(type_info(Link), {})]
    assert len({each.words for each in asks}) == len(asks)
    assert Ask(shape, {}, limit=1).words == Ask(same, {}, limit=1).words


def test_few_are_kept_and_none_of_another_state() -> None:
    said = CachedStatement("SELECT", (), None)
    sayings = StatementCache()
    assert sayings.find(1, "a") is None
    sayings.keep(2, "a", said)
    assert sayings.find(1, "a") is None, "it was made while something changed"
    sayings.keep(1, "a", said)
    sayings.keep(1, "b" * (LONGEST + 1), said)
    assert sayings.find(1, "a") is said
    assert sayings.find(1, "b" * (LONGEST + 1)) is None
    assert sayings.find(2, "a") is None
    assert sayings.find(1, "a") is None, "states do not come back"
    for number in range(2 * MOST):
        sayings.keep(1, str(number), said)
        assert len(sayings._kept) <= MOST


@pytest.mark.parametrize("depth", [60, 200])
async def test_conditions_within_conditions(depth: int) -> None:
    """However deep: what cannot be compared by its words is said anew."""
    desk = Desk()
    async with opened(desk) as onto:
        onto.ensure([Thing(id="t1", value=1), Thing(id="t2", value=2)])
        await onto.commit()
        deep = Thing.value == 1
        for _ in range(depth // 2):
            deep = ~((Thing.value == 2) | ~deep)
        for _ in range(4):
            assert [one.id for one in await onto.query(Thing).where(deep).all()] == ["t1"]
