"""Plans: migrate, drop, revert and erase do what their preview showed, on its head, or nothing."""

from typing import Any

import pytest

from holdfast.base.errors import Conflict, Refused, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.ontology import Entity, Field, upgrader
from holdfast.ontology.chain.history import find_commit
from holdfast.ontology.maintain import drop, erase, migrate, revert
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Person


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
    assert [each.kind for each in report.findings] == []
