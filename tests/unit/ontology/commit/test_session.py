"""A session with real classes: what users do, and the errors when it does not fit."""

import json
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.base.config import Settings, load
from holdfast.base.errors import Conflict, Invalid, Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.ontology import Entity, Field, SchemaDrift
from holdfast.ontology.session import Ontology, Options
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.plain import PlainReader
from tests.unit.ontology.shop import Customer, Order, Product, Subscription

TYPES = (Customer, Product, Subscription, Order)


def session(desk: Desk, *types: Any, **options: Any) -> Ontology:
    return Ontology(desk.store, desk.ambient, types or TYPES, Options(**options))


async def test_objects_are_committed_and_read_back(desk: Desk) -> None:
    async with session(desk) as onto:
        ada = Customer(id="c1", name="Ada Ünal", tier="gold")
        onto.ensure(ada)
        onto.ensure([Product(id=7, title="Anvil"), Customer(id="c2", name="Bo")])
        onto.ensure(Subscription(left_key="c1", right_key=7, seats=2))
        onto.ensure(Order(left_key=ada, right_key=7, number="n1"))
        assert onto.pending == 5
        commit = await onto.commit(metadata={"why": "import"})
        assert commit is not None
        assert (commit.commit_id, commit.rows, onto.pending) == (1, 5, 0)
        assert await onto.get(Customer, "c1") == ada
        assert await onto.get(Customer, "missing") is None
        assert await onto.get(Product, 7) == Product(id=7, title="Anvil")
        assert await onto.get(Subscription, "c1", 7) == Subscription(left_key="c1", right_key=7, seats=2)
        assert await onto.get(Order, ada, 7, "n1") is not None
        assert [each.id for each in await onto.all(Customer)] == ["c1", "c2"]
        onto.ensure(ada)
        assert await onto.commit() is None
    reader = PlainReader(desk.bare)
    assert (await reader.latest("entity", "Customer"))["c1"]["name"] == "Ada Ünal"
    assert await reader.latest("relation", "Subscription") == {("c1", "7", ""): {"seats": 2}}
    assert set(await reader.latest("relation", "Order")) == {("c1", "7", "n1")}


async def test_leaving_flushes_indexes_and_frees_the_lock(desk: Desk) -> None:
    async with session(desk) as onto:
        onto.ensure(Customer(id="c1", name="Ada"))
        await onto.commit()
        info = await onto.info()
        assert (info.commit_id, info.index_lag) == (1, 1)
        assert info.lock is not None
        assert (info.lock.owner_id, info.lock.expired) == (onto.runtime_id, False)
    index = await desk.reader.json("meta/indices/entities/Customer.json")
    assert (index["max_indexed_commit"], len(index["entries"])) == (1, 1)
    assert (await desk.reader.json("meta/indices/relations/Order.json"))["max_indexed_commit"] == 1
    lock = await desk.reader.json("meta/locks/ontology_write.json")
    assert datetime.fromisoformat(lock["expires_at"]).timestamp() * 1e9 <= desk.ambient.clock.wall_ns()
    types = await desk.reader.json("meta/schema/types.json")
    assert (types["entities"], types["relations"]) == (["Customer", "Product"], ["Order", "Subscription"])
    info = await session(desk).info()
    assert (info.index_lag, info.last_index_warning) == (0, None)


async def test_leaving_in_peace_with_intents_queued_is_an_error(desk: Desk) -> None:
    with pytest.raises(Invalid, match="intents that were never committed: 1"):
        async with session(desk) as onto:
            onto.ensure(Customer(id="c1", name="Ada"))
    failing = session(desk)
    failing.ensure(Customer(id="c1", name="Ada"))
    await failing.__aexit__(ValueError, ValueError("the application's own"), None)
    assert failing.pending == 1


async def test_expectations_of_every_kind(desk: Desk) -> None:
    async with session(desk) as anna, session(desk) as bert:
        before = Customer(id="c1", name="Ada")
        anna.ensure(before, expect=7)
        with pytest.raises(Conflict):
            await anna.commit()
        assert not anna._lock.held, "a failed commit does not keep the lock"
        anna.discard()
        anna.ensure(before, expect=None)
        first = await anna.commit()
        assert first is not None
        bert.ensure(Customer(id="c1", name="Bea"), expect=before)
        second = await bert.commit()
        assert second is not None
        for stale in (before, first.commit_id, None):
            anna.ensure(Customer(id="c1", name="Cleo"), expect=stale)
            with pytest.raises(Conflict, match="'c1'"):
                await anna.commit()
            assert anna.discard() == 1
        anna.ensure(Customer(id="c1", name="Cleo"), expect=second.commit_id)
        assert await anna.commit(if_head=2) is not None
        with pytest.raises(Invalid, match="another object"):
            anna.ensure(Customer(id="c1", name="Cleo"), expect=Customer(id="c2", name="x"))
        anna.retract(Customer, "c1", expect=1)
        with pytest.raises(Conflict):
            await anna.commit()
        anna.discard()


async def test_wrong_things_are_refused_when_they_are_given(desk: Desk) -> None:
    class Stranger(Entity):
        id: Field[str] = Field(primary_key=True)

    async with session(desk) as onto:
        for given in (Stranger(id="x"), [Stranger(id="x")]):
            with pytest.raises(Invalid, match="Stranger is not a type of this session"):
                onto.ensure(given)
        for nonsense in ("text", b"bytes", 7, None, ["text"], {"id": "c1"}):
            with pytest.raises(Invalid, match=r"is not an object of a type.*\nhint: make objects"):
                onto.ensure(nonsense)
        with pytest.raises(Invalid, match="of which type"):
            onto.ensure(pa.table({"id": ["c1"]}))
        with pytest.raises(Invalid, match="'Customer' is not an entity or relation type"):
            onto.retract("Customer", "c1")  # type: ignore[arg-type]  # that is the point
        for python, keys, message in (
            (Subscription, ("c1",), "2 keys, and 1 were given"),
            (Customer, ("c1", "c2"), "one key"),
        ):
            with pytest.raises(Invalid, match=message):
                onto.retract(python, *keys)
        for expected in (True, "c1", 1.0, [1]):
            with pytest.raises(Invalid, match="cannot be expected of Customer"):
                onto.ensure(Customer(id="c1", name="x"), expect=expected)  # type: ignore[arg-type]
        for head in ("1", True, 1.0):
            with pytest.raises(Invalid, match="if_head is"):
                await onto.commit(if_head=head)  # type: ignore[arg-type]
        assert onto.pending == 0


class One(Entity, name="Thing"):
    id: Field[str] = Field(primary_key=True)
    size: Field[int]


class Two(Entity, name="Thing"):
    id: Field[str] = Field(primary_key=True)
    size: Field[int]
    colour: Field[str | None] = Field(default=None)


class Three(Entity, name="Thing"):
    id: Field[str] = Field(primary_key=True)
    size: Field[str]


async def test_additive_schemas_are_registered_and_others_are_drift(desk: Desk) -> None:
    async with session(desk, One) as onto:
        onto.ensure(One(id="t1", size=1))
        await onto.commit()
    async with session(desk, Two) as onto:
        onto.ensure(Two(id="t2", size=2, colour="red"))
        with pytest.raises(SchemaDrift):
            await onto.commit()
        commit = await onto.register()
        assert commit is not None
        assert commit.commit_id == 2
        assert len(await onto.all(Two)) == 2
    with pytest.raises(SchemaDrift):
        async with session(desk, Three) as onto:
            await onto.register()
    stored = await desk.reader.json("meta/schema/versions/entity/Thing.json")
    assert [each["schema_version_id"] for each in stored["versions"]] == [1, 2]
    registry = await desk.reader.json("meta/schema/registry.json")
    assert set(registry["entity"]["Thing"]["fields"]) == {"id", "size", "colour"}


async def test_the_platform_hands_out_sessions_with_its_settings() -> None:
    settings = Settings.model_validate({"ontology": {"s3_lease_ttl_ms": 9_000}})
    async with holdfast.open("memory:", settings=settings) as hf, hf.ontology(Customer) as onto:
        onto.ensure(Customer(id="c1", name="Ada"))
        await onto.commit()
        lock = json.loads((await hf.store.get("meta/locks/ontology_write.json")).body)
        assert lock["lease_ttl_ms"] == 9_000


def test_the_specifications_options_exist_with_its_defaults() -> None:
    ours = {"compaction", "compaction_threshold", "compaction_every_s"}
    assert Settings().ontology.model_dump(exclude=ours) == {
        "s3_region": None,
        "s3_endpoint_url": None,
        "s3_lock_timeout_ms": 5_000,
        "s3_lease_ttl_ms": 30_000,
        "s3_request_timeout_s": 10.0,
        "s3_duckdb_memory_limit": "256MB",
    }
    environ = {"HOLDFAST_ONTOLOGY__S3_REGION": "eu-1", "HOLDFAST_ONTOLOGY__S3_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert (load(environ=environ).s3.region, load(environ=environ).s3.endpoint) == ("eu-1", "http://127.0.0.1:1")
    assert load(environ={**environ, "HOLDFAST_S3__REGION": "us-1"}).s3.region == "us-1"


class NoIndexes(Layer):
    """Everything works but indexes and checkpoints."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith("meta/indices/"):
            raise Unavailable("503")
        return await super().put(key, body, mode)


async def test_after_the_head_nothing_fails_a_commit() -> None:
    desk = Desk(wrap=NoIndexes)
    async with session(desk) as onto:
        onto.ensure(Customer(id="c1", name="Ada"))
        assert await onto.commit() is not None
        assert not await onto.flush()
        assert (await onto.info()).last_index_warning == "503"
        onto.ensure(Customer(id="c1", name="Bea"))
        assert await onto.commit() is not None
        assert await onto.get(Customer, "c1") == Customer(id="c1", name="Bea")
    assert (await desk.reader.latest("entity", "Customer"))["c1"]["name"] == "Bea"


async def test_a_session_that_only_reads_touches_no_lock(desk: Desk) -> None:
    async with session(desk) as onto:
        assert await onto.all(Customer) == []
    assert desk.spent() == {"get": 1}
    assert list(desk.shelf.objects) == []
