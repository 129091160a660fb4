"""Rough treatment: what callers get wrong, and objects that were damaged. Named errors, and intents survive."""

import json
from typing import Any

import pytest

import holdfast
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import Store
from holdfast.ontology import Entity, Field
from holdfast.ontology.commit.lock import break_lock, show
from holdfast.ontology.format import layout
from holdfast.ontology.session import Ontology


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str] = Field(default="Ada")


async def filled(hf: holdfast.Holdfast, count: int = 3) -> None:
    async with hf.ontology(Customer) as onto:
        for number in range(count):
            onto.ensure(Customer(id=f"c{number}"))
            await onto.commit()


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ("text", "not a mapping"),
        ([1], "not a mapping"),
        ({1: 2}, "not a mapping"),
        ({"a": object()}, "metadata: .*object"),
        ({"a": float("nan")}, "metadata: "),
        ({"a": "\ud800"}, "metadata: "),
    ],
)
async def test_metadata_that_is_no_json(metadata: Any, complaint: str) -> None:
    async with holdfast.open("memory:") as hf, hf.ontology(Customer) as onto:
        onto.ensure(Customer(id="c1"))
        with pytest.raises(Invalid, match=complaint):
            await onto.commit(metadata=metadata)
        assert onto.pending == 1
        assert await onto.commit(metadata={"why": ["it", 1, None]}) is not None


@pytest.mark.parametrize("body", [b"nope", b"[]", b'{"owner_id": 3, "expires_at": "never"}', b"{}"])
async def test_an_unreadable_lock_does_not_stop_writers(body: bytes) -> None:
    async with holdfast.open("memory:") as hf:
        await filled(hf)
        await hf.store.put(layout.LOCK, body)
        found = await show(hf.store, hf.ambient)
        assert found is not None
        assert found.expired
        async with hf.ontology(Customer) as onto:
            assert (await onto.info()).lock is not None
            onto.ensure(Customer(id="new"))
            assert await onto.commit() is not None
        await hf.store.put(layout.LOCK, body)
        assert await break_lock(hf.store, hf.ambient) is not None


@pytest.mark.parametrize("body", [b"nope", b"[]", b'{"entities": 3}', b'{"schemas_commit": "x"}'])
async def test_a_damaged_catalog_is_written_anew_and_keeps_no_index_back(body: bytes) -> None:
    async with holdfast.open("memory:") as hf:
        await filled(hf)
        await hf.store.put(layout.TYPES, body)
        await filled(hf, 4)
        assert (await hf.ontology(Customer).info()).index_lag == 0
        assert json.loads((await hf.store.get(layout.TYPES)).body)["entities"] == ["Customer"]


async def damage(store: Store, key: str, **changes: Any) -> None:
    found = json.loads((await store.get(key)).body)
    await store.put(key, json.dumps({**found, **changes}).encode())


async def check_refused(onto: Ontology, complaint: str) -> None:
    onto.ensure(Customer(id="new"))
    with pytest.raises(Corrupt, match=complaint):
        await onto.commit()
    assert onto.discard() == 1


async def test_paths_that_are_no_keys_are_corrupt_not_a_mistake_of_the_caller() -> None:
    async with holdfast.open("memory:") as hf:
        await filled(hf)
        head = json.loads((await hf.store.get(layout.HEAD)).body)
        await damage(hf.store, layout.HEAD, manifest_path="../../elsewhere")
        async with hf.ontology(Customer) as onto:
            await check_refused(onto, "the chain names '../../elsewhere' for commit 3")
        await hf.store.put(layout.HEAD, json.dumps(head).encode())
        manifest = json.loads((await hf.store.get(head["manifest_path"])).body)
        plain = {name: value for name, value in manifest.items() if name in PLAIN}
        plain["files"][0]["path"] = "commits//x"
        await hf.store.put(head["manifest_path"], json.dumps(plain).encode())
        async with hf.ontology(Customer) as onto:
            await check_refused(onto, "names 'commits//x' as a data file")


PLAIN = ("commit_id", "parent_commit_id", "parent_manifest_path", "created_at", "runtime_id", "metadata", "files")
