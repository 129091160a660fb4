"""A first question: nothing is copied from a folder, and an index is read beside the manifest."""

import asyncio
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import holdfast
from holdfast.objects.layer import Layer
from holdfast.objects.local.store import LocalStore
from holdfast.objects.store import Object, Store
from holdfast.ontology import Entity, Field
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.plain import PlainWriter


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]


async def test_an_object_of_a_folder_gets_another_name_which_keeps_its_bytes(tmp_path: Path) -> None:
    async with LocalStore(tmp_path / "store") as store:
        await store.put("a/b", b"first")
        assert await store.link("a/b", tmp_path / "linked") == 5
        await store.put("a/b", b"second")
        assert ((tmp_path / "linked").read_bytes(), (await store.get("a/b")).body) == (b"first", b"second")
        assert await store.link("none", tmp_path / "other") is None
        assert await store.link("a", tmp_path / "other") is None
        assert await store.link("a/b", tmp_path / "linked") is None
    assert await Desk().store.link("a/b", tmp_path / "other") is None
    assert not (tmp_path / "other").exists()


class Patient(Layer):
    """Manifests come after an index was asked for."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.asked: list[str] = []
        self._index = asyncio.Event()

    async def get(self, key: str) -> Object:
        self.asked.append(key)
        if "indices/" in key:
            self._index.set()
        elif key.endswith("manifest.json"):
            await self._index.wait()
        return await self.inner.get(key)


async def test_an_index_is_read_beside_the_manifest_and_once() -> None:
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Customer]) as onto:
        onto.ensure(Customer(id="c1", age=1))
        await onto.commit()
    store = Patient(desk.store)
    async with asyncio.timeout(60), Ontology(store, desk.ambient, [Customer]) as onto:
        assert await onto.query(Customer).where(Customer.id == "c1").count() == 1
        kinds = [key.rpartition("/")[2] for key in store.asked]
        assert sorted(kinds) == ["Customer.json", "Customer.parquet", "head.json", "manifest.json"]


async def test_files_of_the_store_are_not_written_into(tmp_path: Path) -> None:
    """Two rows of one identity and commit are made one in a file of the session's own."""
    uri = f"file:{tmp_path / 'store'}"
    async with LocalStore(tmp_path / "store") as store:
        rows = [("c1", {"id": "c1", "age": 1}), ("c1", {"id": "c1", "age": 2}), ("c2", {"id": "c2", "age": 3})]
        await PlainWriter(store).commit({("entity", "Customer"): rows})
    (path,) = (tmp_path / "store").rglob("Customer.parquet")
    before = path.read_bytes()
    async with holdfast.open(uri) as hf, hf.ontology(Customer) as onto:
        for _ in range(2):
            assert {one.id: one.age for one in await onto.query(Customer).all()} == {"c1": 2, "c2": 3}
        assert await onto.query(Customer).with_history().count() == 2
    assert path.read_bytes() == before


async def test_keys_of_a_snapshot_are_not_written_twice() -> None:
    """A dictionary of values that do not repeat takes room and time; one of few values saves both."""
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Customer]) as onto:
        for number in range(3):
            keys = [f"key {number} {n:06d}" for n in range(4_000)]
            onto.ensure(pa.table({"id": keys, "age": np.arange(4_000) % 7}), Customer)
            await onto.commit()
    await Compactor(desk.store, desk.ambient, fan=2).compact(type_info(Customer).type_id)
    (body,) = [each.body for key, each in desk.shelf.objects.items() if key.startswith("snapshots/")]
    group = pq.ParquetFile(pa.BufferReader(body)).metadata.row_group(0)
    columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
    assert not columns["entity_key"].has_dictionary_page
    assert columns["age"].has_dictionary_page
    assert columns["entity_key"].statistics.max == "key 1 003999"
