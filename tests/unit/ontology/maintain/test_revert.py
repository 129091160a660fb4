"""Revert: everything as it was, by a new commit that does what was shown."""

import io
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import NotFound, Refused
from holdfast.ontology import Entity, Field
from holdfast.ontology.chain.history import diff, find_commit
from holdfast.ontology.commit.lock import Open
from holdfast.ontology.maintain.revert import Preview, apply, preview
from holdfast.ontology.maintain.verify.verify import verify
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Likes, Person


async def history(desk: Desk) -> None:
    async with desk.session(Person, Likes) as onto:
        onto.ensure([Person(id="a", age=1), Person(id="b", age=1)])
        await onto.commit()
        onto.ensure(Likes(left_key="a", right_key="b"))
        await onto.commit()
        onto.ensure([Person(id="a", age=2), Person(id="c", age=3)])
        onto.retract(Person, "b")
        await onto.commit()


async def applied(desk: Desk, found: Preview, token: str | None = None) -> Any:
    return await apply(desk.store, desk.ambient, found, token or found.token, turn=Open(), by="anna", why="a mistake")


async def test_everything_is_as_it_was(desk: Desk) -> None:
    await history(desk)
    found = await preview(desk.store, 1)
    assert {each.name: counts for each, counts in found.counts.items()} == {"Person": (2, 1), "Likes": (0, 1)}
    commit = await applied(desk, found)
    assert commit.commit_id == 4
    assert await diff(desk.store, 1, 4) == []
    async with desk.session(Person, Likes) as onto:
        assert [(one.id, one.age) for one in await onto.all(Person)] == [("a", 1), ("b", 1)]
        assert await onto.all(Likes) == []
    manifest = await find_commit(desk.store, 4)
    assert manifest.metadata == {"revert": {"to_commit": 1, "by": "anna", "why": "a mistake"}}
    assert manifest.runtime_id == "anna"
    path = next(each.path for each in manifest.files if each.type_id.name == "Person")
    table = pq.read_table(io.BytesIO(desk.shelf.objects[path].body))
    assert table.column("age").to_pylist() == [1, 1, 3]
    assert (await verify(desk.store, deep=True)).good
    again = await preview(desk.store, 1)
    assert (again.counts, await applied(desk, again)) == ({}, None)


async def test_to_the_empty_store_and_back(desk: Desk) -> None:
    await history(desk)
    await applied(desk, await preview(desk.store, 0))
    async with desk.session(Person) as onto:
        assert await onto.all(Person) == []
        await applied(desk, await preview(desk.store, 3))
        assert [one.id for one in await onto.all(Person)] == ["a", "c"]


async def test_what_cannot_be_done(desk: Desk) -> None:
    with pytest.raises(NotFound):
        await preview(desk.store, 7)
    await desk.plain.commit({("entity", "Customer"): [("a", {"v": 1})]})
    await desk.plain.commit({("entity", "Customer"): [("a", {"v": 2})]})
    with pytest.raises(Refused, match="no schema"):
        await preview(desk.store, 1)


async def test_a_schema_that_has_changed_is_refused(desk: Desk) -> None:
    await history(desk)

    class Later(Entity, name="Person"):
        id: Field[str] = Field(primary_key=True)
        age: Field[int]
        name: Field[str | None] = Field(default=None)

    async with desk.session(Later) as onto:
        await onto.register()
        onto.ensure(Later(id="x", age=1))
        await onto.commit()
    with pytest.raises(Refused, match="version 1 then, and is 2 now"):
        await preview(desk.store, 1)
