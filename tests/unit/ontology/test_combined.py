"""Files of a type as one table: when it is made, that it answers the same, and what ends it."""

import asyncio
from typing import Any

from holdfast.ontology import Entity, Field, Relation, count, left
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.cache.combined import BESIDE
from holdfast.ontology.query.results import meta
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk

COMMITS = 9


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Link(Relation[Thing, Thing]):
    weight: Field[int]


THING = TypeId("entity", "Thing")


def session(desk: Desk, **options: Any) -> Ontology:
    return Ontology(desk.store, desk.ambient, (Thing, Link), Options(**options))


async def filled(onto: Ontology, first: int = 0, last: int = COMMITS) -> None:
    for number in range(first, last):
        onto.ensure([Thing(id=f"t{(number * 3 + row) % 10}", value=number) for row in range(4)])
        onto.ensure(Link(left_key=f"t{number % 4}", right_key=f"t{number % 3}", weight=number))
        if number % 5 == 4:
            onto.retract(Thing, f"t{number % 10}")
        await onto.commit()


async def answers(onto: Ontology, upto: int = COMMITS) -> dict[str, Any]:
    things, links = onto.query(Thing), onto.query(Link)
    asked: dict[str, Any] = {"latest": things, "links": links, "history": things.with_history()}
    asked |= {f"as of {number}": things.as_of(number) for number in range(upto + 1)}
    asked |= {"since": things.history_since(4), "between": links.between(2, 6)}
    asked |= {"ends": links.where((left(Link).value > 5) | (Link.weight < 4)), "key": things.where(Thing.id == "t4")}
    asked |= {"filtered": things.where(Thing.value >= 5), "via": things.where(Thing.value > 3).via(Link)}
    found: dict[str, Any] = {name: [(meta(one), vars(one)) for one in await each.all()] for name, each in asked.items()}
    found["groups"] = await things.group_by(Thing.value).agg(n=count())
    found["arrow"] = (await things.arrow()).to_pylist()
    return found


def tables(onto: Ontology) -> list[str]:
    """The tables that latest things are read from."""
    found = onto._warm._gatherer
    return [] if found is None else [each.loaded.table or "" for each in found._made.values()]


async def sql(onto: Ontology) -> str:
    return (await onto.query(Thing).explain()).sql


async def test_the_same_answers_from_files_and_from_one_table() -> None:
    for fan in (0, 2, 8):
        desk = Desk()
        async with session(desk) as onto:
            await filled(onto)
        if fan:
            await Compactor(desk.store, desk.ambient, fan=fan).compact(THING)
        async with session(desk) as onto, session(desk) as plain:
            plain._warm.gather_after = 10**9
            expected = await answers(plain)
            onto._warm.gather_after = 1
            for _ in range(3):
                await answers(onto)
                await onto.settled()
            assert len(tables(onto)) == 2, "things and links"
            assert "gathered_" in await sql(onto)
            assert "gathered_" not in await sql(plain)
            assert await answers(onto) == expected == await answers(plain)


async def test_it_takes_some_questions_and_no_request() -> None:
    desk = Desk()
    async with session(desk) as onto:
        await filled(onto)
    async with session(desk) as onto:
        query = onto.query(Thing)
        await query.where(Thing.id == "t1").all()
        for _ in range(20):
            await query.where(Thing.id == "t1").all()
        await onto.settled()
        assert tables(onto) == [], "some files are not here, and are not fetched for this"
        await query.all()
        await onto.settled()
        desk.spent()
        assert tables(onto) != []
        await query.all()
        assert desk.spent() == {"get": 1}


async def test_later_commits_are_read_beside_it_until_there_are_many() -> None:
    desk = Desk()
    async with session(desk) as onto, session(desk) as plain:
        plain._warm.gather_after = 10**9
        await filled(onto)
        onto._warm.gather_after = 1
        await answers(onto)
        await onto.settled()
        first = tables(onto)
        for number in range(COMMITS, COMMITS + BESIDE + 3):
            await filled(onto, number, number + 1)
            assert await answers(onto, number + 1) == await answers(plain, number + 1)
            await onto.settled()
            if number < COMMITS + BESIDE:
                assert tables(onto) == first
        await answers(onto)
        await onto.settled()
        assert set(tables(onto)).isdisjoint(first)


async def test_what_does_not_fit_stays_in_files() -> None:
    desk = Desk()
    async with session(desk, memory_limit="4MB") as onto:
        onto._warm.gather_after = 1
        onto.ensure([Thing(id=f"{number:06}{'x' * 50}", value=number) for number in range(3_000)])
        await onto.commit()
        gatherer_limit = 1_000
        assert await onto.query(Thing).count() == 3_000
        await onto.settled()
        assert onto._warm._gatherer is not None
        onto._warm._gatherer.forget()
        onto._warm._gatherer._most_bytes = gatherer_limit
        for _ in range(3):
            assert await onto.query(Thing).count() == 3_000
            await onto.settled()
        assert tables(onto) == []


async def test_a_session_that_is_left_while_it_gathers() -> None:
    desk = Desk()
    async with session(desk) as onto:
        await filled(onto)
        onto._warm.gather_after = 1
        assert len(await onto.query(Thing).all()) > 0
        assert onto._warm._gatherer is not None
        assert onto._warm._gatherer._task is not None
    assert len(asyncio.all_tasks()) == 1, "nothing goes on"


async def test_questions_count_while_another_type_is_gathered() -> None:
    desk = Desk()
    async with session(desk) as onto:
        await filled(onto)
        onto._warm.gather_after = 3
        await onto.query(Thing).count()
        gatherer = onto._warm._gatherer
        assert gatherer is not None
        gatherer._task = busy = asyncio.create_task(asyncio.sleep(3600))
        for _ in range(3):
            await onto.query(Link).count()
        busy.cancel()
        await asyncio.wait([busy])
        gatherer._task = None
        await onto.query(Link).count()
        await onto.settled()
        assert [type_id.name for type_id in gatherer._made] == ["Link"]


class Odd(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    file_row_number: Field[int]
    filename: Field[str] = Field(default="x")


class Early(Entity, name="Late"):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Later(Entity, name="Late"):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    file_row_number: Field[int | None] = Field(default=None)


class Rowid(Entity):
    rowid: Field[str] = Field(primary_key=True)
    value: Field[int]


async def test_fields_may_be_called_as_duckdb_calls_the_numbers_of_rows_and_files() -> None:
    kinds: tuple[tuple[type[Any], dict[str, Any]], ...] = ((Odd, {"file_row_number": 1}), (Rowid, {}))
    for kind, more in kinds:
        desk = Desk()
        key = "id" if kind is Odd else "rowid"
        async with Ontology(desk.store, desk.ambient, [kind]) as onto:
            onto._warm.gather_after = 2
            for number in range(9):
                onto.ensure(kind(**{key: f"k{row}", "value": number * row, **more}) for row in range(number, 12))
                await onto.commit()
                found = await onto.query(kind).all()
                assert sorted((getattr(one, key), one.value) for one in found) == sorted(
                    (f"k{row}", min(row, number) * row) for row in range(12)
                )
                await onto.settled()
            assert onto._warm._gatherer is not None
            assert onto._warm._gatherer._made


async def test_a_field_called_like_the_number_of_a_row_may_come_later() -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Early]) as onto:
        onto.ensure(Early(id=f"k{number:03d}", value=number) for number in range(300))
        await onto.commit()
    async with Ontology(desk.store, desk.ambient, [Later]) as onto:
        await onto.migrate((await onto.migrate()).token)
        onto.ensure(Later(id="k050", value=1, file_row_number=2))
        await onto.commit()
    async with Ontology(desk.store, desk.ambient, [Later]) as onto:
        onto._warm.pooled_bytes = 3000
        for _ in range(3):
            assert await onto.query(Later).where(Later.file_row_number.is_null()).count() == 299
            assert await onto.query(Later).where(Later.value == 50).count() == 0
