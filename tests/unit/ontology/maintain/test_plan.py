"""Plans: migrate, drop, revert and erase do what their preview showed, on its head, or nothing."""

import io
from typing import Any

import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Conflict, NotFound, Refused, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.ontology import Entity, Field, upgrader
from holdfast.ontology.chain.history import find_commit
from holdfast.ontology.feed import diff
from holdfast.ontology.maintain import drop, erase, migrate, revert
from holdfast.ontology.maintain.revert import Preview, apply, preview
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Likes, Person


class Newer(Entity, name="Person"):
    id: Field[str] = Field(primary_key=True)
    years: Field[int]


@upgrader(Newer, from_version=1, to_version=2)
def renamed(fields: dict[str, Any]) -> dict[str, Any]:
    return {"id": fields["id"], "years": fields["age"]}


PREVIEWS: dict[Any, Any] = {
    migrate: lambda store: migrate.preview(store, {type_info(Newer).type_id: type_info(Newer)}),
    drop: lambda store: drop.preview(store, "Person"),
    erase: lambda store: erase.preview(store, "Person", "a"),
    revert: lambda store: revert.preview(store, 1),
}
BY: dict[str, str] = {"by": "anna", "why": "because"}
OPERATIONS = pytest.mark.parametrize("operation", PREVIEWS, ids=lambda each: each.__name__.rpartition(".")[2])


async def commit(desk: Desk, age: int) -> None:
    async with desk.session(Person) as onto:
        onto.ensure([Person(id="a", age=age), Person(id=f"p{age}", age=age)])
        await onto.commit()


async def history(desk: Desk) -> None:
    for age in (1, 2):
        await commit(desk, age)


@OPERATIONS
async def test_the_commit_is_on_the_previewed_head_and_says_who_and_why(operation: Any, desk: Desk) -> None:
    await history(desk)
    planned = await PREVIEWS[operation](desk.store)
    assert (planned.head, (await desk.reader.head())["commit_id"]) == (2, 2)
    with pytest.raises(Refused, match="the token does not fit"):
        await operation.apply(desk.store, desk.ambient, planned, "0", **BY)
    assert (await operation.apply(desk.store, desk.ambient, planned, planned.token, **BY)).commit_id == 3
    (record,) = (await find_commit(desk.store, 3)).metadata.values()
    assert (record["by"], record["why"]) == ("anna", "because")


@OPERATIONS
async def test_a_plan_is_not_applied_to_a_later_head(operation: Any, desk: Desk) -> None:
    await history(desk)
    planned = await PREVIEWS[operation](desk.store)
    await commit(desk, 3)
    assert (await PREVIEWS[operation](desk.store)).token != planned.token
    with pytest.raises(Conflict, match="commit 2 was expected"):
        await operation.apply(desk.store, desk.ambient, planned, planned.token, **BY)
    assert (await desk.reader.head())["commit_id"] == 3


class WithoutDerived(Layer):
    """Objects that are derived from commits cannot be written."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith("meta/schema/"):
            raise Unavailable(f"{key}: no")
        return await super().put(key, body, mode)


@OPERATIONS
async def test_after_the_commit_derived_objects_are_left_to_the_next_session(operation: Any, desk: Desk) -> None:
    await history(desk)
    planned = await PREVIEWS[operation](desk.store)
    store = WithoutDerived(desk.store)
    assert (await operation.apply(store, desk.ambient, planned, planned.token, **BY)).commit_id == 3
    python: type[Any] = Newer if operation is migrate else Person
    async with desk.session(python) as onto:
        onto.ensure(Newer(id="z", years=1) if operation is migrate else Person(id="z", age=1))
        await onto.commit()
    report = await verify(desk.store, deep=True)
    assert [each.rule.name for each in report.findings] == []


async def past(desk: Desk) -> None:
    async with desk.session(Person, Likes) as onto:
        onto.ensure([Person(id="a", age=1), Person(id="b", age=1)])
        await onto.commit()
        onto.ensure(Likes(left_key="a", right_key="b"))
        await onto.commit()
        onto.ensure([Person(id="a", age=2), Person(id="c", age=3)])
        onto.retract(Person, "b")
        await onto.commit()


async def reverted(desk: Desk, found: Preview, token: str | None = None) -> Any:
    return await apply(desk.store, desk.ambient, found, token or found.token, by="anna", why="a mistake")


async def test_everything_is_as_it_was(desk: Desk) -> None:
    await past(desk)
    found = await preview(desk.store, 1)
    assert {each.name: counts for each, counts in found.counts.items()} == {"Person": (2, 1), "Likes": (0, 1)}
    commit = await reverted(desk, found)
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
    assert (again.counts, await reverted(desk, again)) == ({}, None)


async def test_to_the_empty_store_and_back(desk: Desk) -> None:
    await past(desk)
    await reverted(desk, await preview(desk.store, 0))
    async with desk.session(Person) as onto:
        assert await onto.all(Person) == []
        await reverted(desk, await preview(desk.store, 3))
        assert [one.id for one in await onto.all(Person)] == ["a", "c"]


async def test_what_cannot_be_done(desk: Desk) -> None:
    with pytest.raises(NotFound):
        await preview(desk.store, 7)
    await desk.plain.commit({("entity", "Customer"): [("a", {"v": 1})]})
    await desk.plain.commit({("entity", "Customer"): [("a", {"v": 2})]})
    with pytest.raises(Refused, match="no schema"):
        await preview(desk.store, 1)


async def test_a_schema_that_has_changed_is_refused(desk: Desk) -> None:
    await past(desk)

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
