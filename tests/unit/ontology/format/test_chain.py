"""Walking the chain: few reads over our own history, the right answer over anybody's, errors that name the object."""

import json
import math

import pytest

from holdfast.base.errors import Corrupt
from holdfast.objects.store import OVERWRITE
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.resolve import resolve, resolve_by_chain
from holdfast.ontology.commit.lock import CommitLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import EMPTY, followed, next_summary
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.manifest import Manifest, compose, parse
from holdfast.ontology.maintain.upkeep import Upkeep
from holdfast.ontology.types.refs import FileRef, Place
from tests.unit.ontology.desk import CUSTOMER, PRODUCT, Desk, put


async def long_history(desk: Desk, commits: int) -> list[Place]:
    """Manifests alone, as our writer makes them: of every ten commits one touches Product, the others Customer."""
    ledger = EMPTY
    places: list[Place] = []
    for number in range(1, commits + 1):
        mark = f"{number:08x}"
        type_id = PRODUCT if number % 10 == 0 else CUSTOMER
        ref = FileRef(number, type_id, layout.data_key(number, mark, *type_id))
        manifest = Manifest(
            commit_id=number,
            path=layout.manifest_key(number, mark),
            parent=ledger.place,
            created_at="2026-02-10T12:34:56.789012+00:00",
            runtime_id="w",
            metadata={},
            files=(),
            summary=next_summary(ledger, [ref], mark),
        )
        body = json.loads(compose(manifest))
        body["files"] = [{"kind": type_id.kind, "type_name": type_id.name, "path": ref.path}]
        await desk.bare.put(manifest.path, json.dumps(body).encode(), OVERWRITE)
        manifest = parse(json.dumps(body).encode(), manifest.path)
        ledger = followed(ledger, manifest)
        places.append(manifest.place)
    head = {"commit_id": commits, "manifest_path": places[-1].path, "updated_at": "", "runtime_id": "w"}
    await desk.bare.put(layout.HEAD, json.dumps(head).encode(), OVERWRITE)
    return places


COMMITS = 2_500


async def test_thousands_of_commits_are_opened_and_resolved_in_few_reads(desk: Desk) -> None:
    places = await long_history(desk, COMMITS)
    chain = Chain(desk.store)
    for number in range(256, COMMITS + 1, 256):
        await chain.write_checkpoint(places[number - 1])
    few = 2 * math.ceil(math.log2(COMMITS))

    desk.spent()
    view = View(desk.store)
    await view.move_to(await read_head(desk.store))
    assert desk.spent()["get"] <= 3
    by_chain = await resolve_by_chain(view.chain, view.ledger, CUSTOMER)
    assert len(by_chain.entries) == 9 * COMMITS // 10
    assert desk.spent()["get"] <= few

    upkeep = Upkeep(desk.store, desk.ambient, view, CommitLock(), "w")
    assert await upkeep.flush(everything=True), upkeep.warning
    desk.spent()
    fresh = View(desk.store)
    await fresh.move_to(await read_head(desk.store))
    resolved = await resolve(desk.store, fresh.chain, fresh.ledger, CUSTOMER)
    assert resolved.by_index
    assert resolved.entries == by_chain.entries
    assert desk.spent() == {"get": 4}

    for wanted in (1, 2, 777, 2_048, 2_499):
        desk.spent()
        assert await Chain(desk.store).at(places[-1], wanted) == places[wanted - 1]
        assert desk.spent()["get"] <= math.ceil(math.log2(COMMITS)) + 1


async def test_a_checkpoint_that_lies_is_found_out(desk: Desk) -> None:
    places = await long_history(desk, 300)
    chain = Chain(desk.store)
    await chain.write_checkpoint(places[255])
    key = layout.checkpoint_key(places[255].path)
    document = json.loads(desk.shelf.objects[key].body)
    document["files"] = document["files"][1:]
    await desk.bare.put(key, json.dumps(document).encode(), OVERWRITE)
    view = View(desk.store)
    await view.move_to(await read_head(desk.store))
    assert len((await resolve_by_chain(view.chain, view.ledger, CUSTOMER)).entries) == 270


async def test_a_long_stretch_of_a_plain_writer_is_read_all_at_once(desk: Desk) -> None:
    await put(desk.committer(), ("c1", 0))
    for number in range(60):
        await desk.plain.commit({("entity", "Customer"): [("c1", {"v": number})]})
    view = View(desk.store)
    desk.spent()
    await view.move_to(await read_head(desk.store))
    spent = desk.spent()
    assert spent["list"] == 1
    assert view.ledger.head_of(CUSTOMER).files == 61
    assert view.ledger.head_of(CUSTOMER).commit_id == 61
    writer = desk.committer()
    commit = await put(writer, ("c2", 0))
    manifest = json.loads(desk.shelf.objects[commit.manifest_path].body)
    assert manifest["full"]
    assert len(manifest["recent"]) == 62
    fresh = View(desk.store)
    desk.spent()
    await fresh.move_to(await read_head(desk.store))
    assert len((await resolve_by_chain(fresh.chain, fresh.ledger, CUSTOMER)).entries) == 62
    assert desk.spent() == {"get": 2}


async def test_a_missing_or_broken_manifest_is_named(desk: Desk) -> None:
    writer = desk.committer()
    await put(writer, ("c1", 0))
    commit = await put(writer, ("c1", 1))
    whole = desk.shelf.objects[commit.manifest_path].body
    for body, complaint in (
        (b"{", "not JSON"),
        (b"{}", "not a manifest"),
        (whole.replace(b'"parent_commit_id":1', b'"parent_commit_id":2'), "the parent of commit 2 is 2"),
        (whole.replace(b'"commit_id":2', b'"commit_id":3'), "the parent of commit 3 is 1"),
    ):
        await desk.bare.put(commit.manifest_path, body, OVERWRITE)
        with pytest.raises(Corrupt, match=complaint) as caught:
            await put(desk.committer(), ("c1", 2))
        assert commit.manifest_path in str(caught.value)
    desk.shelf.remove(commit.manifest_path)
    with pytest.raises(Corrupt, match="it is missing"):
        await put(desk.committer(), ("c1", 2))
