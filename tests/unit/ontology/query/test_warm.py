"""The table of a type: rows of small files with their ends, brought forward in place, whatever comes in which order."""

import asyncio
import threading
from typing import Any

import pytest

from holdfast.ontology.query.cache import warm
from holdfast.ontology.query.results import meta
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Thing

THING = TypeId("entity", "Thing")


def session(desk: Desk) -> Ontology:
    return desk.session(Thing)


async def filled(onto: Ontology, first: int = 0, last: int = 9) -> None:
    for number in range(first, last):
        onto.ensure([Thing(id=f"t{(number * 3 + row) % 10}", value=number) for row in range(4)])
        if number % 5 == 4:
            onto.retract(Thing, f"t{number % 10}")
        await onto.commit()


async def states(onto: Ontology, head: int) -> list[Any]:
    query = onto.query(Thing)
    asked = [query, query.with_history(), *(query.as_of(number) for number in range(head + 1))]
    return [[(meta(one), one.value) for one in await each.all()] for each in asked]


async def test_rows_of_a_chain_that_a_restored_backup_replaced_are_not_shown(desk: Desk) -> None:
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


async def test_a_question_that_is_cancelled_while_rows_are_added(monkeypatch: pytest.MonkeyPatch, desk: Desk) -> None:
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


async def test_small_files_beyond_the_memory_limit_are_scanned_where_they_lie(desk: Desk) -> None:
    async with session(desk) as onto:
        await filled(onto)
        expected = await states(onto, 9)
    async with session(desk) as onto:
        await onto._warm.placed()
        onto._warm._room = 0
        assert await states(onto, 9) == expected
        (here,) = onto._warm._types.values()
        assert not here.created
