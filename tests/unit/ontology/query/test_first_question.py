"""A first question: nothing is copied from a folder, and an index is read beside the manifest."""

import asyncio
from pathlib import Path

import holdfast
from holdfast.objects.layer import Layer
from holdfast.objects.local.store import LocalStore
from holdfast.objects.store import Object, Store
from holdfast.ontology import Entity, Field
from holdfast.ontology.session import Ontology
from tests.unit.ontology.desk import Desk
from tests.unit.ontology.plain import PlainWriter


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]


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


async def test_an_index_is_read_beside_the_manifest_and_once(desk: Desk) -> None:
    async with desk.session(Customer) as onto:
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
