"""Indexes: kept as the specification says, believed only where the chain proves them."""

import json

import pytest

from holdfast.ontology.chain.resolve import Resolved, resolve
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.lock import CommitLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import read_index, well_formed
from holdfast.ontology.maintain.upkeep import Upkeep
from tests.unit.ontology.broken import LIBRARY, Broken, sound
from tests.unit.ontology.desk import CUSTOMER, OWNS, PRODUCT, TYPES, Desk, put

KEY = layout.index_key(*CUSTOMER)


def indexed(desk: Desk) -> tuple[Committer, Upkeep]:
    """A committer whose upkeep runs only when the test starts it."""
    view = View(desk.store)
    upkeep = Upkeep(desk.store, desk.ambient, view, CommitLock(), "w")
    writer = desk.committer(on_commit=upkeep.note)
    writer._view = view
    return writer, upkeep


async def history(desk: Desk) -> tuple[Committer, Upkeep]:
    writer, upkeep = indexed(desk)
    for number in range(5):
        await put(writer, (f"c{number % 2}", number))
    await put(writer, ("p1", 1), type_id=PRODUCT)
    assert await upkeep.flush(everything=True), upkeep.warning
    return writer, upkeep


async def resolved(desk: Desk) -> Resolved:
    view = View(desk.store)
    await view.move_to(await read_head(desk.store))
    return await resolve(desk.store, view.chain, view.ledger, CUSTOMER)


async def test_an_index_is_what_the_specification_says(desk: Desk) -> None:
    await history(desk)
    document = json.loads(desk.shelf.objects[KEY].body)
    assert document["type_name"] == "Customer"
    assert document["max_indexed_commit"] == 6
    assert [(entry["min_commit_id"], entry["max_commit_id"]) for entry in document["entries"]] == [
        (number, number) for number in range(1, 6)
    ]
    catalog = json.loads(desk.shelf.objects["meta/schema/types.json"].body)
    assert (catalog["entities"], catalog["relations"]) == (["Customer", "Product"], ["Owns"])
    versions = json.loads(desk.shelf.objects["meta/schema/versions/entity/Customer.json"].body)
    assert (versions["type_kind"], versions["type_name"]) == ("entity", "Customer")
    assert [(v["schema_version_id"], v["schema_hash"], json.loads(v["schema_json"])) for v in versions["versions"]] == [
        (1, TYPES[CUSTOMER].schema_hash, {"entity_name": "Customer", "fields": {}})
    ]
    registry = json.loads(desk.shelf.objects["meta/schema/registry.json"].body)
    assert registry["relation"]["Owns"] == {"relation_name": "Owns", "fields": {}}
    assert await desk.reader.latest("entity", "Customer") == {"c0": {"v": 4}, "c1": {"v": 3}}
    assert (await read_index(desk.store, OWNS)).watermark == 6


@pytest.mark.parametrize("case", [each for each in LIBRARY if each.kind.startswith("index_") and each.mends], ids=str)
async def test_whatever_an_index_says_the_files_are_the_same_and_a_flush_mends_it(case: Broken, desk: Desk) -> None:
    writer = await sound(desk)
    truth, whole = (await resolved(desk)).files(), await read_index(desk.store, CUSTOMER)
    assert len(truth) == 6
    await case.breaks(desk)
    assert (await resolved(desk)).files() == truth
    other = Upkeep(desk.store, desk.ambient, writer._view, CommitLock(), "other")
    assert await other.flush(everything=True), other.warning
    index = await read_index(desk.store, CUSTOMER)
    assert well_formed(index) is None
    assert (index.entries, index.watermark) == (whole.entries, 7)


async def test_upkeep_takes_commits_together_and_costs_one_write_when_warm(desk: Desk) -> None:
    writer, upkeep = await history(desk)
    for number in range(10):
        await put(writer, ("c9", number))
    desk.spent()
    assert await upkeep.flush(everything=False)
    assert desk.spent() == {"put": 1}
    assert await upkeep.flush(everything=False)
    assert desk.spent() == {}


async def test_an_index_that_another_writer_changed_is_read_again(desk: Desk) -> None:
    writer, upkeep = await history(desk)
    await put(writer, ("c9", 1))
    await desk.plain.commit({("entity", "Customer"): [("c8", {"v": 8})]})
    assert (await read_index(desk.store, CUSTOMER)).watermark == 8
    assert await upkeep.flush(everything=False)
    index = await read_index(desk.store, CUSTOMER)
    assert (index.watermark, len(index.entries)) == (8, 7)
    assert (await resolved(desk)).by_index
