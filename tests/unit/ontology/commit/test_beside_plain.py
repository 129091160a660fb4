"""Types beside a plain writer: what it drops, migrates, registers and begins anew counts for our sessions too."""

import json
from typing import Any

import pytest

from holdfast.base.errors import Conflict, Corrupt
from holdfast.objects.store import OVERWRITE
from holdfast.ontology import Entity, Field, SchemaDrift, TypeDropped, upgrader
from holdfast.ontology.chain.history import commits
from holdfast.ontology.feed import Feed, diff
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.query.sqltables import SqlTables
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.shop import Person


class Older(Entity, name="Person"):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]
    born: Field[int]


class Grown(Entity, name="Person"):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]
    born: Field[int]


@upgrader(Grown, from_version=1, to_version=2)
def with_a_year(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "born": 2000}


class Pet(Entity):
    id: Field[str] = Field(primary_key=True)


PERSON = TypeId("entity", "Person")
KIND = ("entity", "Person")
INDEX = "meta/indices/entities/Person.json"


def schema(name: str, **types: str) -> dict[str, Any]:
    def field(key: str, of: str) -> dict[str, Any]:
        spec = {"kind": "primitive", "name": of}
        return {"primary_key": key == "id", "index": False, "type": f"<class '{of}'>", "type_spec": spec}

    return {"entity_name": name, "fields": {key: field(key, of) for key, of in types.items()}}


OLD, NEW = schema("Person", id="str", age="int"), schema("Person", id="str", age="int", born="int")


def person(key: str, age: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return key, {"id": key, "age": age, **more}


def session(desk: Desk, *types: Any) -> Ontology:
    return Ontology(desk.store, desk.ambient, types or (Person,))


async def ages(onto: Ontology, as_of: int | None = None) -> dict[str, int]:
    query = onto.query(Person)
    return {one.id: one.age for one in await (query if as_of is None else query.as_of(as_of)).all()}


async def ours(desk: Desk) -> None:
    """Commits 1 and 2."""
    async with session(desk) as onto:
        for age in (1, 2):
            onto.ensure([Person(id="a", age=age), Person(id=f"p{age}", age=age)])
            await onto.commit()


async def theirs(desk: Desk) -> None:
    """The same, by a plain writer."""
    await desk.plain.register(*KIND, OLD)
    for age in (1, 2):
        await desk.plain.commit({KIND: [person("a", age), person(f"p{age}", age)]})


BEGINNINGS = pytest.mark.parametrize("begin", [ours, theirs])
ALL = {"a": 2, "p1": 1, "p2": 2}


# --- drops ---


@BEGINNINGS
@pytest.mark.parametrize("noted", [True, False])
async def test_what_a_plain_writer_purged_stays_purged(begin: Any, noted: bool, desk: Desk) -> None:
    await begin(desk)
    async with session(desk) as warm:
        assert await ages(warm) == ALL
        assert await desk.plain.drop(*KIND, noted=noted) == 3
        async with session(desk) as cold:
            for onto in (warm, cold):
                assert [await ages(onto, at) for at in (None, 3, 2, 1)] == [{}] * 4
                assert await onto.query(Person).with_history().count() == 0
                await onto.flush()
    async with session(desk, Pet) as onto:  # a commit of ours, of another type, makes the history before it provable
        onto.ensure(Pet(id="x"))
        await onto.commit()
    async with session(desk) as onto:
        assert [await ages(onto, at) for at in (None, 3, 2)] == [{}] * 3
        onto.ensure(Person(id="a", age=2))  # as it was: no no-op
        assert (await onto.commit()) is not None
        assert [await ages(onto, at) for at in (None, 4, 2)] == [{"a": 2}, {}, {}]
    async with session(desk) as onto:
        assert [await ages(onto, at) for at in (None, 4, 2)] == [{"a": 2}, {}, {}]
    index = await desk.reader.json("meta/indices/entities/Person.json")
    assert [each["min_commit_id"] for each in index["entries"]] == [5]
    assert [each.commit_version async for each in Feed(desk.store).changes() if each.type_id == PERSON] == [5]
    assert [each.identity for each in await diff(desk.store, 1, 2)] == []
    assert "Person" not in (await desk.reader.json("meta/schema/dropped.json"))["entity"]
    async with SqlTables(desk.store) as tables:
        found = await tables.run("SELECT count(*) AS n FROM Person__history")
        assert found.column("n").to_pylist() == [1]
    report = await verify(desk.store, deep=True)
    assert report.good, report.findings


@BEGINNINGS
async def test_a_dropped_type_that_a_plain_writer_begins_anew_has_its_new_rows_alone(begin: Any, desk: Desk) -> None:
    await begin(desk)
    await desk.plain.drop(*KIND)
    await desk.plain.register(*KIND, NEW)  # from here on dropped.json does not name it
    await desk.plain.commit({KIND: [person("z", 9, born=1990)]})
    for rows in (2, 4):
        async with session(desk, Older) as onto:
            assert [one.id for one in await onto.all(Older)] == ["z"]
            onto.ensure(Older(id="y", age=8, born=1991))
            await onto.commit()
            assert sorted(one.id for one in await onto.all(Older)) == ["y", "z"]
            assert await onto.query(Older).with_history().count() == rows
            onto.retract(Older, "y")
            await onto.commit()
    await desk.plain.validate(*KIND, NEW)
    await repair_indexes(desk.store, desk.ambient, apply=True)
    await Compactor(desk.store, desk.ambient, fan=2).compact(PERSON)
    async with session(desk, Older) as onto:
        assert [one.id for one in await onto.all(Older)] == ["z"]
        assert await onto.query(Older).as_of(2).all() == []
    async with session(desk) as onto:
        onto.ensure(Person(id="q", age=1))
        with pytest.raises(SchemaDrift, match="born"):
            await onto.commit()
        onto.discard()


async def test_a_drop_without_purge_leaves_the_past(desk: Desk) -> None:
    await ours(desk)
    await desk.plain.drop(*KIND, purge=False)
    async with session(desk) as onto:
        assert [await ages(onto, at) for at in (None, 3, 2)] == [{}, {}, ALL]


async def test_a_drop_whose_object_is_written_while_we_wait_for_the_lock_counts(desk: Desk) -> None:
    """The head has moved already, without a note; dropped.json follows under the plain writer's lock."""
    await ours(desk)
    plain = desk.plain
    assert await plain.acquire()
    number = await plain._attempt({}, {})
    assert number == 3
    async with session(desk) as onto:
        assert await ages(onto) == ALL
        onto.ensure(Person(id="p1", age=7))

        async def finish() -> None:
            await plain.dropped(*KIND, 3, purge=True)
            await plain.release()

        acquire = onto._lock.acquire

        async def late() -> bool:
            await finish()
            return await acquire()

        onto._lock.acquire = late  # type: ignore[method-assign]  # the moment between our draft and our lock
        with pytest.raises(TypeDropped):
            await onto.commit()
        onto.discard()


# --- migrations ---


@BEGINNINGS
@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize("rows", [True, False])
async def test_a_plain_writers_migration_is_drift_warm_and_cold(
    begin: Any, noted: bool, rows: bool, desk: Desk
) -> None:
    await begin(desk)
    async with session(desk) as warm:
        warm.ensure(Person(id="a", age=3))
        await warm.commit()
        moved = [person("a", 3, born=2020)] if rows else []
        await desk.plain.migrate(*KIND, NEW, moved, noted=noted)
        for onto in (warm, session(desk)):
            onto.ensure(Person(id="b", age=1))
            with pytest.raises(SchemaDrift, match="born"):
                await onto.commit()
            assert onto.pending == 1
            onto.discard()
            await onto.close()
        if not (noted or rows):
            return  # nothing on the chain says so: it is seen until our next commit
        async with session(desk, Pet) as onto:  # a commit of ours passes it on
            onto.ensure(Pet(id="x"))
            await onto.commit()
        async with session(desk) as onto:
            onto.ensure(Person(id="b", age=1))
            with pytest.raises(SchemaDrift, match="born"):
                await onto.commit()
            onto.discard()
    async with session(desk, Older) as onto:
        onto.ensure(Older(id="b", age=1, born=2021))
        assert (await onto.commit()) is not None
    head = await desk.reader.head()
    assert [each["schema_version_id"] for each in (await desk.reader.json(head["manifest_path"]))["files"]] == [2]
    assert await desk.plain.validate(*KIND, NEW) == 2
    assert len(await desk.plain.versions(*KIND)) == 2
    async with SqlTables(desk.store) as tables:
        found = await tables.run("SELECT born FROM Person WHERE id = 'b'")
        assert found.column("born").to_pylist() == [2021]
    report = await verify(desk.store, deep=True)
    assert report.good, report.findings


async def test_a_migration_whose_schema_is_not_written_yet_is_waited_for(desk: Desk) -> None:
    await ours(desk)
    plain = desk.plain
    plain.version = 2
    number = await plain._attempt({KIND: [person("a", 2, born=2020)]}, {})
    assert number == 3
    async with session(desk, Older) as onto:
        onto.ensure(Older(id="b", age=1, born=2021))
        with pytest.raises(Conflict, match="rows of version 2"):
            await onto.commit()
        await plain.register(*KIND, NEW, "migration")
        assert (await onto.commit()) is not None
        assert sorted([one.id for one in await onto.query(Older).where(Older.born > 0).all()]) == ["a", "b"]


async def test_a_registration_alone_is_read_when_the_type_is_first_committed(desk: Desk) -> None:
    await desk.plain.register(*KIND, NEW)
    async with session(desk) as onto:
        onto.ensure(Person(id="b", age=1))
        with pytest.raises(SchemaDrift, match="born"):
            await onto.commit()
        onto.discard()


# --- sessions that only read ---


async def _drop(desk: Desk) -> None:
    await desk.plain.drop(*KIND)


async def _drop_and_begin_anew(desk: Desk) -> None:
    await desk.plain.drop(*KIND)
    async with session(desk) as other:
        other.ensure(Person(id="new", age=1))
        await other.commit()


async def _begin_the_store_anew(desk: Desk) -> None:
    for key in list(desk.shelf.objects):
        await desk.bare.delete(key)
    await ours(desk)
    await ours(desk)


@pytest.mark.parametrize(
    ("happens", "error"), [(_drop, TypeDropped), (_drop_and_begin_anew, TypeDropped), (_begin_the_store_anew, Corrupt)]
)
@pytest.mark.parametrize("wrote", [False, True])
async def test_a_session_that_only_read_is_bound_as_one_that_wrote(
    happens: Any, error: Any, wrote: bool, desk: Desk
) -> None:
    await ours(desk)
    onto = session(desk)
    assert await ages(onto) == ALL
    if wrote:
        onto.ensure(Person(id="p1", age=5))
        await onto.commit()
    await happens(desk)
    onto.ensure(Person(id="a", age=7))
    with pytest.raises(error):
        await onto.commit()
    onto.discard()
    await onto.close()


# --- remedies ---


async def _versions_lost(desk: Desk) -> None:
    await desk.bare.delete("meta/schema/versions/entity/Person.json")


async def _another_schema(desk: Desk) -> None:
    await desk.plain._write_versions(*KIND, [])
    await desk.plain.register(*KIND, NEW)


async def _types_rewritten(desk: Desk) -> None:
    types = await desk.reader.json("meta/schema/types.json")
    await desk.plain._write("meta/schema/types.json", {**types, "entities": []})


async def _compacted(desk: Desk) -> None:
    await desk.plain.compact(*KIND)


async def _index_lost(desk: Desk) -> None:
    await desk.bare.delete(INDEX)


@BEGINNINGS
@pytest.mark.parametrize(
    ("happens", "kind"),
    [
        (_versions_lost, "schema_objects_differ"),
        (_another_schema, "schema_objects_differ"),
        (_types_rewritten, "schema_objects_differ"),
        (_compacted, "snapshot_unproved"),
        (_index_lost, "index_absent"),
    ],
)
async def test_the_remedies_for_an_adopted_store_work(begin: Any, happens: Any, kind: str, desk: Desk) -> None:
    await begin(desk)
    if happens is _compacted:
        await happens(desk)
    else:
        async with session(desk) as onto:
            onto.ensure(Person(id="q", age=1))
            await onto.commit()
        assert (await verify(desk.store, deep=True)).findings == []
        await happens(desk)
    (found,) = (await verify(desk.store, deep=True)).findings
    assert (found.rule.name, "holdfast onto index repair --apply" in found.rule.remedy) == (kind, True)
    await repair_indexes(desk.store, desk.ambient, apply=True)
    assert {each.rule.name for each in (await verify(desk.store, deep=True)).findings} <= {"orphan_snapshot"}


async def test_the_remedy_for_a_version_that_no_commit_has_works(desk: Desk) -> None:
    await ours(desk)
    await desk.plain.register(*KIND, NEW, "migration")
    (found,) = (await verify(desk.store, deep=True)).findings
    assert (found.rule.name, "holdfast onto migrate" in found.rule.remedy) == ("schema_version_ahead", True)
    async with session(desk, Grown) as onto:
        assert (await onto.migrate((await onto.migrate()).token)) is not None
    assert (await verify(desk.store, deep=True)).findings == []


# --- compaction beside dict fields ---


class Tagged(Entity):
    id: Field[str] = Field(primary_key=True)
    tags: Field[dict[str, int]]


TAGGED = ("entity", "Tagged")


async def test_our_compaction_takes_dict_fields_of_a_plain_writer(desk: Desk) -> None:
    """It writes a dict as a struct of the keys that a commit has, and we write JSON; ``fields_json`` has both alike."""
    for number in range(20):
        given = {"id": f"p{number}", "tags": {f"k{number}": number}}
        await desk.plain.commit({TAGGED: [(f"p{number}", given)]})
    async with desk.session(Tagged, compaction=False) as onto:
        onto.ensure(Tagged(id="o", tags={"k0": 1}))
        await onto.commit()
        await onto.query(Tagged).all()
    before = await desk.reader.latest(*TAGGED)
    assert before["p7"] == {"id": "p7", "tags": {"k7": 7}}
    assert [
        each.published for each in await Compactor(desk.store, desk.ambient, fan=2).compact(TypeId("entity", "Tagged"))
    ]
    assert await desk.reader.latest(*TAGGED) == before
    async with session(desk, Tagged) as onto:
        assert {one.id: one.tags for one in await onto.all(Tagged)} == {key: row["tags"] for key, row in before.items()}
        assert [one.id for one in await onto.query(Tagged).where(Tagged.tags.path("k7") == 7).all()] == ["p7"]
    assert (await verify(desk.store, deep=True)).good


# --- documents that lack something ---


async def test_manifests_without_a_time_are_read(desk: Desk) -> None:
    await ours(desk)
    desk.plain.dates = False
    for age in (5, 6):
        await desk.plain.commit({KIND: [person("a", age)]})
    for _ in range(2):
        async with session(desk) as onto:
            assert (await ages(onto))["a"] == 6
            assert (await onto.query(Person).as_of("2100-01-01T00:00:00Z").all())[0].age == 6
            assert await onto.query(Person).as_of("2000-01-01T00:00:00Z").all() == []
            onto.ensure(Person(id="b", age=1))
            await onto.commit()
    listed = [each async for each in commits(desk.store)]
    assert [bool(each.created_at) for each in listed] == [True, False, False, True, True]
    times = [each.created_at for each in listed if each.created_at]
    async with session(desk) as onto:
        assert (await ages(onto, 3))["a"] == 5
        query = onto.query(Person).as_of(times[1])  # of commit 2, and of those after it that name no time
        assert [one.age for one in await query.where(Person.id == "a").all()] == [6]
    assert [each async for each in Feed(desk.store).changes()]
    report = await verify(desk.store, deep=True)
    assert report.good, report.findings


async def test_an_unreadable_list_of_drops_is_none(desk: Desk) -> None:
    await ours(desk)
    await desk.bare.put("meta/schema/dropped.json", b"[]", OVERWRITE)
    await desk.plain.commit({KIND: [person("a", 5)]})
    async with session(desk) as onto:
        assert (await ages(onto))["a"] == 5
        assert json.loads(desk.shelf.objects["meta/schema/dropped.json"].body) == []
