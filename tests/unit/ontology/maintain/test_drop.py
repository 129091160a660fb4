"""Dropping a type, and beginning it anew: no row comes back, none is hidden."""

import json
from typing import Any

import pytest

from holdfast.base.errors import NotFound, Refused
from holdfast.ontology import Entity, Field
from holdfast.ontology.chain.history import find_commit
from holdfast.ontology.feed import Feed
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.drop import apply, preview
from holdfast.ontology.maintain.revert import preview as preview_of_revert
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Likes, Person


class Pet(Entity):
    id: Field[str] = Field(primary_key=True)


class Other(Entity, name="Person"):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


def session(desk: Desk, *types: Any) -> Ontology:
    return Ontology(desk.store, desk.ambient, types or (Person, Likes))


async def ages(onto: Ontology, as_of: int | None = None) -> dict[str, int]:
    query = onto.query(Person)
    found = await (query if as_of is None else query.as_of(as_of)).all()
    return {one.id: one.age for one in found}


async def history(desk: Desk) -> None:
    async with session(desk) as onto:
        for number in range(3):
            onto.ensure([Person(id="a", age=number), Person(id=f"p{number}", age=number)])
            await onto.commit()
        onto.ensure(Likes(left_key="a", right_key="p1"))
        await onto.commit()


async def drop(desk: Desk, *, purge: bool = False, name: str = "Person") -> Any:
    found = await preview(desk.store, name, purge=purge)
    return await apply(desk.store, desk.ambient, found, found.token, by="anna", why="over")


async def test_a_drop_is_a_commit_without_files(desk: Desk) -> None:
    await history(desk)
    found = await preview(desk.store, "Person")
    assert (found.objects, found.files, found.relations, found.live) == (4, 3, ("Likes",), True)
    commit = await drop(desk)
    manifest = await find_commit(desk.store, commit.commit_id)
    assert (manifest.commit_id, manifest.files, manifest.runtime_id) == (5, (), "anna")
    with pytest.raises(NotFound):
        await preview(desk.store, "Person")
    assert (await verify(desk.store, deep=True)).good


async def test_the_schema_objects_and_the_feed_follow(desk: Desk) -> None:
    await history(desk)
    await drop(desk)

    def read(key: str) -> Any:
        return json.loads(desk.shelf.objects[key].body)

    assert read(layout.TYPES)["entities"] == []
    assert "Person" not in read(layout.REGISTRY)["entity"]
    dropped = read(layout.DROPPED)
    assert (dropped["entity"]["Person"]["commit_id"], dropped["entity"]["Person"]["purged"]) == (5, False)
    assert dropped["relation"] == {}
    async with session(desk, Other) as onto:
        onto.ensure(Other(id="a", name="Ada"))
        await onto.commit()
    assert read(layout.TYPES)["entities"] == ["Person"]
    assert list(read(layout.REGISTRY)["entity"]["Person"]["fields"]) == ["id", "name"]
    assert read(layout.DROPPED)["entity"] == {}
    versions = read(layout.versions_key("entity", "Person"))["versions"]
    assert [each["schema_version_id"] for each in versions] == [1, 2]
    for since in (0, 4):
        seen = [each async for each in Feed(desk.store, since=since).changes() if each.type_id.name == "Person"]
        once = Feed(desk.store, since=since, once=True)
        assert [each async for each in once.changes() if each.type_id.name == "Person"] == seen
        answer = [(each.identity[0], each.change_type, each.commit_version) for each in seen if each.commit_version > 4]
        assert answer == [*((key, "retract", 5) for key in ("a", "p0", "p1", "p2")), ("a", "insert", 6)]


async def test_no_key_of_a_purged_type_is_left_anywhere(desk: Desk) -> None:
    """Manifests of later commits tell of recent files, and of their least and greatest keys."""
    async with session(desk, Person, Pet) as onto:
        for number in range(4):
            onto.ensure([Person(id=f"secret-{number}", age=number), Pet(id=f"rex-{number}")])
            await onto.commit()

    def left(text: bytes) -> list[str]:
        return sorted(key for key, each in desk.shelf.objects.items() if text in each.body)

    assert len([key for key in left(b"secret-") if key.endswith("manifest.json")]) == 4
    pets = left(b"rex-")
    await drop(desk, purge=True)
    async with session(desk, Pet) as onto:
        onto.ensure(Pet(id="last"))
        await onto.commit()
    assert left(b"secret-") == []
    assert set(pets) <= set(left(b"rex-"))
    assert (await verify(desk.store, deep=True)).good


async def test_a_revert_does_not_pretend_to_bring_a_type_back(desk: Desk) -> None:
    await history(desk)
    await drop(desk)
    with pytest.raises(Refused, match="dropped by commit 5") as caught:
        await preview_of_revert(desk.store, 3)
    assert "export it as of commit 3" in str(caught.value.remedy)
    assert (await preview_of_revert(desk.store, 5)).counts == {}


async def test_an_error_about_a_dropped_type_says_what_became_of_it(desk: Desk) -> None:
    await history(desk)
    await drop(desk)

    async def answer(text: str) -> str:
        async with SqlTables(desk.store) as tables:
            with pytest.raises(NotFound) as caught:
                await tables.run(text)
        return f"{caught.value} ({caught.value.remedy})"

    dropped = "commit 5 dropped Person (read it as of an earlier moment, such as commit 4)"
    assert await answer("SELECT * FROM Person") == dropped
    await drop(desk, purge=True)
    for text in ("SELECT * FROM Person", "SELECT * FROM Person__as_of_3", "SELECT * FROM Person__history"):
        assert "commit 5 dropped Person, and its rows were purged from all of history" in await answer(text)
    with pytest.raises(NotFound, match="commit 5 dropped Person, and its rows were purged"):
        await preview(desk.store, "Person", purge=True)
    assert "there is no table Persn" in await answer("SELECT * FROM Persn")
