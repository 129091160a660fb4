"""The table of a type: rows of small files with their ends, brought forward in place, whatever comes in which order."""

import asyncio
import threading
from typing import Any

import pytest

from holdfast.ontology import Entity, Field
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.query.cache import warm
from holdfast.ontology.query.results import meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.plain import PlainWriter

THING = TypeId("entity", "Thing")


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


def session(desk: Desk) -> Ontology:
    return Ontology(desk.store, desk.ambient, [Thing])


async def filled(onto: Ontology, first: int = 0, last: int = 9) -> None:
    for number in range(first, last):
        onto.ensure([Thing(id=f"t{(number * 3 + row) % 10}", value=number) for row in range(4)])
        if number % 5 == 4:
            onto.retract(Thing, f"t{number % 10}")
        await onto.commit()


async def table(onto: Ontology) -> list[tuple[str, int, int | None]]:
    """What the table holds: keys, commits, ends."""
    (here,) = onto._warm._types.values()
    found = await onto._warm.duck.table(f"SELECT entity_key, commit_id, _until FROM {here.table} ORDER BY ALL")
    return list(zip(*(found.column(name).to_pylist() for name in found.column_names), strict=True))


def ends(rows: list[tuple[str, int, int | None]]) -> list[tuple[str, int, int | None]]:
    """The same rows with the commit of the next one of their key."""
    keys = [(key, commit) for key, commit, _ in rows]
    later = {(key, commit): [other for same, other in keys if same == key and other > commit] for key, commit in keys}
    return [(key, commit, min(later[key, commit], default=None)) for key, commit in keys]


async def states(onto: Ontology, head: int) -> list[Any]:
    query = onto.query(Thing)
    asked = [query, query.with_history(), *(query.as_of(number) for number in range(head + 1))]
    return [[(meta(one), one.value) for one in await each.all()] for each in asked]


async def test_every_row_ends_with_the_next_one_of_its_key_in_whatever_order_files_come() -> None:
    desk = Desk()
    async with session(desk) as onto:
        await filled(onto)
    async with session(desk) as onto:
        for number in (5, 2, 9):
            await onto.query(Thing).between(number, number).all()
        assert await table(onto) == ends(await table(onto))
        assert {commit for _, commit, _ in await table(onto)} == {2, 5, 9}
        await onto.query(Thing).all()
        whole = await table(onto)
        assert whole == ends(whole)
        await filled(onto, 9, 12)
        await onto.query(Thing).all()
        assert await table(onto) == ends(await table(onto))
        assert len(await table(onto)) > len(whole)


async def test_a_snapshot_of_files_that_are_here_brings_no_row_twice() -> None:
    desk = Desk()
    async with session(desk) as onto, session(desk) as writer:
        await filled(writer)
        expected = await states(onto, 9)
        before = await table(onto)
        await Compactor(desk.store, desk.ambient, fan=2).compact(THING)
        for table_bytes in (onto._warm.table_bytes, 0):  # in the table, and where it lies
            onto._engine._forget()
            onto._warm.table_bytes = table_bytes
            assert await states(onto, 9) == expected
            assert await table(onto) == before


async def test_a_plain_writers_rows_lack_columns_whichever_file_brings_them() -> None:
    """The snapshot has typed columns for rows that are here already, from a file without them."""
    desk = Desk()
    for number in range(4):
        rows = [(f"t{row}", {"id": f"t{row}", "value": number * 10 + row}) for row in range(number, 6)]
        await PlainWriter(desk.store).commit({("entity", "Thing"): rows})
    async with session(desk) as onto:
        query = onto.query(Thing).where(Thing.value >= 20)
        assert await query.count() == 4
        await Compactor(desk.store, desk.ambient, fan=2).compact(THING)
        onto._engine._forget()
        assert await query.count() == 4
        assert await onto.query(Thing).as_of(2).where(Thing.value >= 10).count() == 5


async def test_rows_of_a_chain_that_a_restored_backup_replaced_are_not_shown() -> None:
    desk = Desk()
    async with session(desk) as writer:
        await filled(writer, 0, 4)
    backup = dict(desk.shelf.objects)
    async with session(desk) as writer:
        await filled(writer, 4, 6)
    for more in range(1, 5):
        async with session(desk) as onto:
            await onto.query(Thing).all()
            await desk.store.delete_many([key for key in desk.shelf.objects if key not in backup])
            for key, each in backup.items():
                await desk.store.put(key, each.body)
            async with session(desk) as writer:
                for number in range(more):
                    writer.ensure(Thing(id="new", value=number))
                    await writer.commit()
            async with session(desk) as fresh:
                expected = await states(fresh, 4 + more)
            for _ in range(2):
                assert await states(onto, 4 + more) == expected
            async with session(desk) as writer:
                writer.ensure(Thing(id="newer", value=1))
                await writer.commit()
            async with session(desk) as fresh:
                assert await states(onto, 5 + more) == await states(fresh, 5 + more)


async def test_a_question_that_is_cancelled_while_rows_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()
    async with session(desk) as onto:
        await filled(onto)
        expected = await states(onto, 9)
    begun, go_on = asyncio.Event(), threading.Event()
    loop, insert = asyncio.get_running_loop(), warm._insert

    def slow(*args: Any) -> None:
        loop.call_soon_threadsafe(begun.set)
        go_on.wait(60)
        insert(*args)

    async with session(desk) as onto:
        monkeypatch.setattr(warm, "_insert", slow)
        asked = asyncio.create_task(onto.query(Thing).all())
        await begun.wait()
        asked.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert await states(onto, 9) == expected


async def test_small_files_beyond_the_memory_limit_are_scanned_where_they_lie() -> None:
    desk = Desk()
    async with session(desk) as onto:
        await filled(onto)
        expected = await states(onto, 9)
    async with session(desk) as onto:
        await onto._warm.placed()
        onto._warm._room = 0
        assert await states(onto, 9) == expected
        (here,) = onto._warm._types.values()
        assert not here.made


async def test_conditions_within_conditions() -> None:
    desk = Desk()
    async with session(desk) as onto:
        onto.ensure([Thing(id="t1", value=1), Thing(id="t2", value=2)])
        await onto.commit()
        for depth in (30, 100):
            deep = Thing.value == 1
            for _ in range(depth):
                deep = ~((Thing.value == 2) | ~deep)
            assert [one.id for one in await onto.query(Thing).where(deep).all()] == ["t1"]
