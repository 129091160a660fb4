"""Indexes: kept as the specification says, believed only where the chain proves them."""

import json
from typing import Any

import pytest

from holdfast.objects.store import OVERWRITE
from holdfast.ontology.chain.resolve import Resolved, resolve
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.lock import Open
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.format.index import Entry, Index, read_index, well_formed
from holdfast.ontology.maintain.upkeep import Upkeep
from tests.unit.ontology.desk import CUSTOMER, OWNS, PRODUCT, TYPES, Desk, put

KEY = layout.index_key(*CUSTOMER)


def indexed(desk: Desk) -> tuple[Committer, Upkeep]:
    """A committer whose upkeep runs only when the test starts it."""
    view = View(desk.store)
    upkeep = Upkeep(desk.store, desk.ambient, view, Open(), "w")
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


def lie(desk: Desk, **changes: Any) -> dict[str, Any]:
    return {**json.loads(desk.shelf.objects[KEY].body), **changes}


async def test_an_index_is_what_the_specification_says() -> None:
    desk = Desk()
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


LIES: dict[str, dict[str, Any] | None] = {
    "missing": None,
    "lags": {"max_indexed_commit": 2, "entries": "first two"},
    "a hole": {"entries": "without the second"},
    "wrong head entry": {"entries": "another file for the last"},
    "wrong old entry": {"entries": "another file for the first"},
    "ahead": {"max_indexed_commit": 99},
    "an entry too many": {"entries": "one for a commit to come"},
    "empty": {"entries": []},
    "overlapping": {"entries": "twice"},
    "garbage": {"entries": 7},
    "another life": {"entries": "of another store"},
}


async def answer(desk: Desk, name: str) -> None:
    """Leave the index in the state that ``name`` says."""
    changes = LIES[name]
    if changes is None:
        desk.shelf.remove(KEY)
        return
    entries = json.loads(desk.shelf.objects[KEY].body)["entries"]
    other = {"path": "commits/9-dead/entities/Customer.parquet"}
    variants: dict[str, Any] = {
        "first two": entries[:2],
        "without the second": [entries[0], *entries[2:]],
        "another file for the last": [*entries[:-1], entries[-1] | other],
        "another file for the first": [entries[0] | other, *entries[1:]],
        "one for a commit to come": [*entries, {"min_commit_id": 50, "max_commit_id": 50, **other}],
        "twice": [*entries, *entries],
        "of another store": [{**entry, **other} for entry in entries],
    }
    chosen = {key: variants.get(value, value) if isinstance(value, str) else value for key, value in changes.items()}
    await desk.bare.put(KEY, json.dumps(lie(desk, **chosen)).encode(), OVERWRITE)


@pytest.mark.parametrize("name", LIES)
async def test_whatever_an_index_says_the_files_are_the_same(name: str) -> None:
    desk = Desk()
    await history(desk)
    truth = (await resolved(desk)).files()
    assert len(truth) == 5
    await answer(desk, name)
    assert (await resolved(desk)).files() == truth


@pytest.mark.parametrize("name", LIES)
async def test_a_flush_mends_whatever_is_there(name: str) -> None:
    desk = Desk()
    writer, _ = await history(desk)
    whole = json.loads(desk.shelf.objects[KEY].body)["entries"]
    await answer(desk, name)
    other = Upkeep(desk.store, desk.ambient, writer._view, Open(), "other")
    assert await other.flush(everything=True), other.warning
    index = await read_index(desk.store, CUSTOMER)
    assert well_formed(index) is None
    assert [entry.document() for entry in index.entries] == whole
    assert index.watermark == 6
    assert await desk.reader.latest("entity", "Customer") == {"c0": {"v": 4}, "c1": {"v": 3}}


async def test_a_delta_rests_on_the_chain_whatever_the_index_says() -> None:
    desk = Desk()
    await history(desk)
    await answer(desk, "a hole")
    assert await put(desk.committer(), ("c0", 4), ("c1", 3)) is None


async def test_upkeep_takes_commits_together_and_costs_one_write_when_warm() -> None:
    desk = Desk()
    writer, upkeep = await history(desk)
    for number in range(10):
        await put(writer, ("c9", number))
    desk.spent()
    assert await upkeep.flush(everything=False)
    assert desk.spent() == {"put": 1}
    assert await upkeep.flush(everything=False)
    assert desk.spent() == {}


async def test_an_index_that_somebody_else_wrote_meanwhile_is_read_again() -> None:
    desk = Desk()
    writer, upkeep = await history(desk)
    await put(writer, ("c9", 1))
    await desk.plain.commit({("entity", "Customer"): [("c8", {"v": 8})]})
    assert (await read_index(desk.store, CUSTOMER)).watermark == 8
    assert await upkeep.flush(everything=False)
    index = await read_index(desk.store, CUSTOMER)
    assert (index.watermark, len(index.entries)) == (8, 7)
    assert (await resolved(desk)).by_index


async def test_beside_a_plain_writer_that_keeps_indexes_both_read_all() -> None:
    desk = Desk()
    writer, upkeep = await history(desk)
    for number in range(4):
        await desk.plain.commit({("entity", "Customer"): [(f"x{number}", {"v": number})]})
        await put(writer, (f"y{number}", number))
        if number % 2:
            await upkeep.flush(everything=True)
    latest = await desk.reader.latest("entity", "Customer")
    assert {key for key in latest if key[0] in "xy"} == {f"{who}{number}" for who in "xy" for number in range(4)}
    assert len((await resolved(desk)).files()) == 13


def test_invariants_are_named() -> None:
    def fault(*entries: Entry, watermark: int = 9) -> str | None:
        return well_formed(Index(CUSTOMER, watermark, entries))

    assert fault(Entry(1, 4, "s"), Entry(5, 5, "a")) is None
    assert "overlap" in str(fault(Entry(1, 4, "s"), Entry(4, 4, "a")))
    assert "ordered" in str(fault(Entry(4, 1, "s")))
    assert "watermark" in str(fault(Entry(1, 1, "a"), watermark=0))
