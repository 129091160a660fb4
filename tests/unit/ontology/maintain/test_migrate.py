"""Migrations: schemas and rows move together, in one commit; history stays readable by the same upgraders."""

import json
from typing import Any

import pytest

from holdfast.base.errors import Invalid, Refused
from holdfast.objects.store import Store
from holdfast.ontology import Entity, Field, Relation, SchemaDrift, UnreadableRow, count, upgrader
from holdfast.ontology.chain.history import find_commit
from holdfast.ontology.format import layout
from holdfast.ontology.maintain import migrate
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import TypeInfo, type_info
from holdfast.ontology.types.upgrade import fingerprint
from tests.unit.ontology.desk import Desk


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    age: Field[str]


class Owns(Relation[Person, Person]):
    number: Field[str] = Field(instance_key=True)
    price: Field[int]


class Person2(Entity, name="Person"):
    id: Field[str] = Field(primary_key=True)
    first: Field[str]
    last: Field[str]
    age: Field[int]


@upgrader(Person2, from_version=1, to_version=2)
def split(fields: dict[str, Any]) -> dict[str, Any]:
    first, _, last = fields["name"].partition(" ")
    return {"id": fields["id"], "first": first, "last": last, "age": int(fields["age"])}


class Owns2(Relation[Person2, Person2], name="Owns"):
    number: Field[str] = Field(instance_key=True)
    cents: Field[int]


@upgrader(Owns2, from_version=1, to_version=2)
def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": fields["price"] * 100}


TYPES: dict[Any, TypeInfo] = {type_info(each).type_id: type_info(each) for each in (Person2, Owns2)}


def session(desk: Desk, *types: Any) -> Ontology:
    return Ontology(desk.store, desk.ambient, types or (Person2, Owns2))


async def history(desk: Desk, extra: int = 0) -> None:
    async with session(desk, Person, Owns) as onto:
        onto.ensure([Person(id="a", name="Ada L", age="36"), Person(id="b", name="Bo", age="4")])
        await onto.commit()
        onto.ensure(Person(id="a", name="Ada Lovelace", age="37"))
        onto.ensure(Owns(left_key="a", right_key="b", number="1", price=3))
        onto.ensure([Person(id=f"x{number:03}", name="X Y", age="1") for number in range(extra)])
        await onto.commit()
        onto.retract(Person, "b")
        await onto.commit()


async def applied(desk: Desk, store: Store | None = None, **options: Any) -> Any:
    found = await migrate.preview(store or desk.store, TYPES)
    options = {"by": "anna", "why": "names", **options}
    return await migrate.apply(store or desk.store, desk.ambient, found, found.token, **options)


async def people(onto: Ontology, as_of: int | None = None) -> list[Any]:
    query = onto.query(Person2)
    found = await (query if as_of is None else query.as_of(as_of)).all()
    return [(one.id, one.first, one.last, one.age) for one in found]


async def test_the_preview_says_what_would_be_done_and_writes_nothing(desk: Desk) -> None:
    await history(desk)
    before = dict(desk.shelf.objects)
    found = await migrate.preview(desk.store, TYPES)
    listed = {each.type_id.name: (each.action, each.from_version, each.to_version, each.rows) for each in found.changes}
    assert listed == {"Person": ("rewrite", 1, 2, 1), "Owns": ("rewrite", 1, 2, 1)}
    person = next(each for each in found.changes if each.type_id.name == "Person").document()
    assert {each["field"] for each in person["differences"]} == {"name", "first", "last", "age"}
    assert desk.shelf.objects == before
    async with session(desk) as onto:
        onto.ensure(Person2(id="q", first="Q", last="", age=1))
        with pytest.raises(SchemaDrift, match="name is not in the class") as caught:
            await onto.commit()
        assert "upgrader" in str(caught.value.remedy)
        onto.discard()


async def test_rows_and_schemas_move_in_one_commit(desk: Desk) -> None:
    await history(desk)
    commit = await applied(desk)
    assert (commit.commit_id, commit.rows) == (4, 2)
    manifest = await find_commit(desk.store, 4)
    assert {each.schema_version_id for each in manifest.files} == {2}
    assert manifest.metadata["migrate"]["why"] == "names"
    assert {each.reason for each in manifest.registered} == {"migrate"}
    versions = json.loads(desk.shelf.objects[layout.versions_key("entity", "Person")].body)["versions"]
    assert [(each["schema_version_id"], each["reason"]) for each in versions] == [(1, "register"), (2, "migrate")]
    async with session(desk) as onto:
        assert await people(onto) == [("a", "Ada", "Lovelace", 37)]
        onto.ensure(Person2(id="a", first="Ada", last="Lovelace", age=37))
        assert await onto.commit() is None
        onto.ensure(Person2(id="c", first="C", last="D", age=1))
        assert (await onto.commit()) is not None
    async with session(desk, Person) as old:
        old.ensure(Person(id="z", name="Z", age="1"))
        with pytest.raises(SchemaDrift):
            await old.commit()
        old.discard()
    assert (await verify(desk.store, deep=True)).findings == []
    assert not await migrate.preview(desk.store, TYPES)
    assert await applied(desk) is None


@pytest.mark.parametrize("migrated", [False, True])
@pytest.mark.parametrize("compacted", [False, True])
async def test_older_versions_are_upgraded_when_they_are_read(migrated: bool, compacted: bool, desk: Desk) -> None:
    await history(desk)
    if migrated:
        await applied(desk)
    if compacted:
        compactor = Compactor(desk.store, desk.ambient, fan=2)
        assert await compactor.compact(type_info(Person2).type_id)
    async with session(desk) as onto:
        assert await people(onto, 1) == [("a", "Ada", "L", 36), ("b", "Bo", "", 4)]
        assert await people(onto, 2) == [("a", "Ada", "Lovelace", 37), ("b", "Bo", "", 4)]
        assert await people(onto) == [("a", "Ada", "Lovelace", 37)]
        one = await onto.get(Person2, "a")
        assert one is not None
        assert one.last == "Lovelace"
        query = onto.query(Person2)
        assert await query.as_of(2).where(Person2.age > 5, Person2.last == "Lovelace").count() == 1
        assert await query.as_of(1).where(Person2.age == 4).count() == 1
        assert (await query.as_of(1).arrow()).column("age").to_pylist() == [36, 4]
        assert await query.with_history().count() == (5 if migrated else 4)
        assert [each.cents for each in await onto.query(Owns2).all()] == [300]
        groups = await query.as_of(2).group_by(Person2.last).agg(n=count())
        assert {each["last"]: each["n"] for each in groups} == {"Lovelace": 1, "": 1}
        assert (await query.between(0, 2).arrow()).column("age").to_pylist() == [36, 4, 37]
        changes = [each async for each in onto.changes(Person2)]
        listed = [(each.commit_version, each.change_type, each.object.id, each.object.age) for each in changes]
        assert listed == [
            (1, "insert", "a", 36),
            (1, "insert", "b", 4),
            (2, "update_preimage", "a", 36),
            (2, "update_postimage", "a", 37),
            (3, "retract", "b", 4),
        ]
        assert (await onto.changes(Person2, since=2).arrow()).column("_change_type").to_pylist() == ["retract"]
        linked = await onto.query(Owns2).as_of(2).linked()
        assert (linked[0].left.age, linked[0].right.first) == (37, "Bo")


async def test_a_session_with_queued_intents_does_not_migrate(desk: Desk) -> None:
    await history(desk)
    async with session(desk, Person) as onto:
        onto.ensure(Person(id="later", name="L", age="2"))
        with pytest.raises(Invalid, match="queued"):
            await onto.migrate("x")
        onto.discard()


async def test_rows_that_an_upgrader_cannot_deal_with_are_named(desk: Desk) -> None:
    await history(desk)
    async with session(desk, Person) as onto:
        onto.ensure(Person(id="odd", name="O", age="many"))
        await onto.commit()
    with pytest.raises(UnreadableRow, match=r"Person 'odd': the upgrader from version 1 to 2 by split failed"):
        await migrate.preview(desk.store, TYPES)


async def test_changes_without_a_way_are_refused(desk: Desk) -> None:
    await history(desk)

    class Bare(Entity, name="Person"):
        id: Field[str] = Field(primary_key=True)

    with pytest.raises(Refused, match="no upgrader leads to version 2") as caught:
        await migrate.preview(desk.store, {type_info(Bare).type_id: type_info(Bare)})
    assert "@upgrader(Bare, from_version=1, to_version=2)" in str(caught.value.remedy)

    class Renamed(Entity, name="Person"):
        key: Field[str] = Field(primary_key=True)

    with pytest.raises(Refused, match="key field"):
        await migrate.preview(desk.store, {type_info(Renamed).type_id: type_info(Renamed)})


async def test_an_additive_change_rewrites_nothing(desk: Desk) -> None:
    await history(desk)

    class More(Entity, name="Person"):
        id: Field[str] = Field(primary_key=True)
        name: Field[str]
        age: Field[str]
        note: Field[str | None] = Field(default=None)

    form: TypeInfo = type_info(More)
    found = await migrate.preview(desk.store, {form.type_id: form})
    assert [(each.action, each.rows) for each in found.changes] == [("new version", 0)]
    commit = await migrate.apply(desk.store, desk.ambient, found, found.token, by="a", why="")
    assert commit is not None
    assert commit.rows == 0
    async with session(desk, More) as onto:
        assert [(one.id, one.note) for one in await onto.query(More).as_of(1).all()] == [("a", None), ("b", None)]


def test_upgraders_lead_forward_one_way_at_a_time() -> None:
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)

    def same(fields: dict[str, Any]) -> dict[str, Any]:
        return fields

    upgrader(Thing, from_version=1, to_version=3)(same)
    with pytest.raises(Invalid, match="two upgraders"):
        upgrader(Thing, from_version=2, to_version=4)(same)
    with pytest.raises(Invalid, match="from version 2 to 2"):
        upgrader(Thing, from_version=2, to_version=2)
    upgrader(Thing, from_version=3, to_version=4)(lambda fields: {**fields, "x": 1})
    assert [step.to_version for step in type_info(Thing).upgraders] == [3, 4]
    assert fingerprint(type_info(Thing).upgraders) != fingerprint(type_info(Thing).upgraders[:1])
