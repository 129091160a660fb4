"""A library of broken stores: each starts from the same sound one, and is broken in one way."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.objects.store import OVERWRITE
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.lock import Open
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.rows import encode
from holdfast.ontology.format.redactions import Redaction
from holdfast.ontology.maintain import erase
from holdfast.ontology.maintain.upkeep import Upkeep
from tests.unit.ontology.desk import CUSTOMER, PRODUCT, TYPES, Desk, put

INDEX = layout.index_key(*CUSTOMER)


async def sound(desk: Desk, commits: int = 6) -> Committer:
    """So many commits of customers, then one of products; indexes and schema objects are up to date."""
    view = View(desk.store)
    upkeep = Upkeep(desk.store, desk.ambient, view, Open(), "w")
    writer = Committer(desk.store, desk.ambient, view, TYPES, runtime_id="w", on_commit=upkeep.note)
    for number in range(commits):
        await put(writer, (f"c{number % 3}", number), (f"d{number}", number))
    await put(writer, ("p1", 1), type_id=PRODUCT)
    assert await upkeep.flush(everything=True), upkeep.warning
    return writer


def manifests(desk: Desk) -> dict[int, str]:
    """Commit -> the key of its manifest."""
    found = {layout.commit_of_manifest(key): key for key in desk.shelf.objects}
    return {number: key for number, key in found.items() if number is not None}


def data_file(desk: Desk, commit_id: int) -> str:
    return str(read(desk, manifests(desk)[commit_id])["files"][0]["path"])


def read(desk: Desk, key: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(desk.shelf.objects[key].body)
    return document


async def write(desk: Desk, key: str, document: dict[str, Any]) -> None:
    await desk.bare.put(key, json.dumps(document).encode(), OVERWRITE)


async def change(desk: Desk, key: str, **changes: Any) -> None:
    await write(desk, key, read(desk, key) | changes)


class Broken(NamedTuple):
    name: str
    kind: str
    """The finding that names it."""
    breaks: Callable[[Desk], Awaitable[None]]
    deep: bool = False
    mends: bool = False
    """Repair of the indexes is enough."""


LIBRARY: list[Broken] = []


def broken(kind: str, *, deep: bool = False, mends: bool = False) -> Callable[[Any], Any]:
    def add(breaks: Callable[[Desk], Awaitable[None]]) -> Any:
        LIBRARY.append(Broken(breaks.__name__, kind, breaks, deep, mends))
        return breaks

    return add


# --- the chain ---


@broken("head_missing")
async def head_is_gone(desk: Desk) -> None:
    await desk.bare.delete(layout.HEAD)


@broken("head_unreadable")
async def head_is_garbage(desk: Desk) -> None:
    await desk.bare.put(layout.HEAD, b"{", OVERWRITE)


@broken("head_unreadable")
async def head_names_no_manifest(desk: Desk) -> None:
    await change(desk, layout.HEAD, manifest_path=None)


@broken("head_without_manifest")
async def manifest_of_the_head_is_gone(desk: Desk) -> None:
    await desk.bare.delete(manifests(desk)[7])


@broken("manifest_missing")
async def manifest_in_the_middle_is_gone(desk: Desk) -> None:
    await desk.bare.delete(manifests(desk)[3])


@broken("manifest_unreadable")
async def manifest_is_garbage(desk: Desk) -> None:
    await desk.bare.put(manifests(desk)[3], b"not json", OVERWRITE)


@broken("chain_cycle")
async def chain_runs_in_a_circle(desk: Desk) -> None:
    await change(desk, manifests(desk)[3], parent_manifest_path=manifests(desk)[5])


@broken("chain_cycle")
async def manifest_names_a_later_one_as_its_parent(desk: Desk) -> None:
    await change(desk, manifests(desk)[3], parent_commit_id=5, parent_manifest_path=manifests(desk)[5])


@broken("chain_break")
async def manifest_skips_its_parent(desk: Desk) -> None:
    await change(desk, manifests(desk)[5], parent_manifest_path=manifests(desk)[2])


@broken("summary_wrong")
async def manifest_lies_about_the_files_so_far(desk: Desk) -> None:
    heads = read(desk, manifests(desk)[4])["type_heads"]
    await change(desk, manifests(desk)[4], type_heads=heads | {"entity/Customer": [4, 9, "00"]})


@broken("summary_wrong")
async def manifest_forgets_recent_files(desk: Desk) -> None:
    await change(desk, manifests(desk)[4], recent=[])


@broken("summary_wrong")
async def manifest_skips_to_nowhere(desk: Desk) -> None:
    await change(desk, manifests(desk)[4], skips=[[1, "commits/1-gone/manifest.json"]])


@broken("time_backwards")
async def clock_ran_backwards(desk: Desk) -> None:
    await change(desk, manifests(desk)[4], created_at="1999-01-01T00:00:00+00:00")


# --- files ---


@broken("file_missing")
async def data_file_is_gone(desk: Desk) -> None:
    await desk.bare.delete(data_file(desk, 2))


@broken("file_truncated")
async def data_file_is_empty(desk: Desk) -> None:
    await desk.bare.put(data_file(desk, 2), b"", OVERWRITE)


@broken("file_truncated", deep=True)
async def data_file_is_truncated(desk: Desk) -> None:
    key = data_file(desk, 2)
    await desk.bare.put(key, desk.shelf.objects[key].body[:-100], OVERWRITE)


@broken("hash_mismatch", deep=True)
async def data_file_is_another(desk: Desk) -> None:
    rows = encode(TYPES[CUSTOMER], [], 2, 1)
    await desk.bare.put(data_file(desk, 2), rows, OVERWRITE)


@broken("row_count_mismatch", deep=True)
async def manifest_counts_wrongly(desk: Desk) -> None:
    await _amend(desk, 2, row_count=99)


@broken("rows_wrong", deep=True)
async def data_file_is_of_another_commit(desk: Desk) -> None:
    body = desk.shelf.objects[data_file(desk, 3)].body
    await desk.bare.put(data_file(desk, 2), body, OVERWRITE)
    await _amend(desk, 2, content_sha256=hashlib.sha256(body).hexdigest())


@broken("stats_wrong", deep=True)
async def manifest_denies_a_key(desk: Desk) -> None:
    """Key ranges that leave a key out: a lookup would not find it."""
    entry = read(desk, manifests(desk)[3])["files"][0]
    await _amend(desk, 3, stats={**entry["stats"], "keys": [["zzz", "zzzz"]]})


@broken("stats_wrong", deep=True)
async def manifest_has_the_sketch_of_other_keys(desk: Desk) -> None:
    entry = read(desk, manifests(desk)[3])["files"][0]
    await _amend(desk, 3, stats={**entry["stats"], "sketches": ["AAAAAAAAAAA="]})


async def _amend(desk: Desk, commit_id: int, **changes: Any) -> None:
    key = manifests(desk)[commit_id]
    document = read(desk, key)
    document["files"][0] |= changes
    await write(desk, key, document)


# --- indexes ---


@broken("index_missing_rows", mends=True)
async def index_lags_behind_rows(desk: Desk) -> None:
    entries = read(desk, INDEX)["entries"]
    await change(desk, INDEX, max_indexed_commit=3, entries=entries[:3])


@broken("index_lag", mends=True)
async def index_lags_behind_nothing(desk: Desk) -> None:
    await change(desk, INDEX, max_indexed_commit=6)


@broken("index_missing_latest", mends=True)
async def index_lacks_the_head(desk: Desk) -> None:
    await change(desk, layout.index_key(*PRODUCT), entries=[])


@broken("index_hole", mends=True)
async def index_has_a_hole(desk: Desk) -> None:
    entries = read(desk, INDEX)["entries"]
    await change(desk, INDEX, entries=[*entries[:2], *entries[3:]])


@broken("index_path_mismatch", mends=True)
async def index_names_another_attempt(desk: Desk) -> None:
    entries = read(desk, INDEX)["entries"]
    entries[-1]["path"] = "commits/6-00000000/entities/Customer.parquet"
    await change(desk, INDEX, entries=entries)


@broken("index_excess", mends=True)
async def index_has_an_entry_too_many(desk: Desk) -> None:
    entries = read(desk, INDEX)["entries"]
    await change(desk, INDEX, entries=[*entries, {**entries[0], "min_commit_id": 7, "max_commit_id": 7}])


@broken("index_ahead", mends=True)
async def index_is_ahead(desk: Desk) -> None:
    await change(desk, INDEX, max_indexed_commit=99)


@broken("index_unreadable", mends=True)
async def index_is_garbage(desk: Desk) -> None:
    await desk.bare.put(INDEX, b"[]", OVERWRITE)


@broken("index_overlap", mends=True)
async def index_overlaps(desk: Desk) -> None:
    entries = read(desk, INDEX)["entries"]
    await change(desk, INDEX, entries=[*entries, entries[0]])


@broken("index_absent", mends=True)
async def index_is_gone(desk: Desk) -> None:
    await desk.bare.delete(INDEX)


@broken("snapshot_missing", mends=True)
async def snapshot_is_gone(desk: Desk) -> None:
    entries = read(desk, INDEX)["entries"]
    path = "snapshots/entities/Customer-1-3.parquet"
    await change(desk, INDEX, entries=[{"min_commit_id": 1, "max_commit_id": 3, "path": path}, *entries[3:]])


@broken("snapshot_unproved", mends=True)
async def snapshot_of_a_plain_writer(desk: Desk) -> None:
    await snapshot_is_gone(desk)
    await desk.bare.put("snapshots/entities/Customer-1-3.parquet", b"whatever it is", OVERWRITE)


@broken("index_of_no_type")
async def index_of_nothing(desk: Desk) -> None:
    await write(
        desk, "meta/indices/entities/Ghost.json", {"type_name": "Ghost", "max_indexed_commit": 1, "entries": []}
    )


# --- what is there besides ---


@broken("foreign_object")
async def somebody_left_a_file(desk: Desk) -> None:
    await desk.bare.put("commits/notes.txt", b"hello", OVERWRITE)


@broken("foreign_object")
async def somebody_left_a_file_with_a_commit(desk: Desk) -> None:
    await desk.bare.put(data_file(desk, 2).replace("Customer", "Customer.bak"), b"hello", OVERWRITE)


@broken("orphan_attempt")
async def attempt_that_lost(desk: Desk, commit_id: int = 2) -> None:
    await desk.bare.put(f"commits/{commit_id}-0badcafe/entities/Customer.parquet", b"whatever", OVERWRITE)


@broken("open_attempt")
async def migration_that_was_not_published(desk: Desk) -> None:
    manifest = read(desk, manifests(desk)[7])
    manifest |= {"commit_id": 8, "parent_commit_id": 7, "parent_manifest_path": manifests(desk)[7]}
    await write(desk, "commits/8-0badcafe/manifest.json", manifest)


@broken("schema_objects_differ")
async def another_schema_under_our_number(desk: Desk) -> None:
    key = layout.versions_key(*CUSTOMER)
    versions = read(desk, key)["versions"]
    await change(desk, key, versions=[{**versions[0], "schema_json": "{}", "schema_hash": "h1"}])


@broken("schema_version_ahead")
async def half_a_migration(desk: Desk) -> None:
    """By other means: the new version was written down, the rows and the chain know nothing of it."""
    key = layout.versions_key(*CUSTOMER)
    versions = read(desk, key)["versions"]
    await change(desk, key, versions=[*versions, {**versions[0], "schema_version_id": 2, "schema_hash": "h2"}])


@broken("orphan_snapshot")
async def snapshot_that_nobody_names(desk: Desk) -> None:
    await desk.bare.put("snapshots/entities/Customer-1-3-0badcafe.parquet", b"PAR1", OVERWRITE)


@broken("other_engine")
async def mark_of_another_engine(desk: Desk) -> None:
    await write(desk, layout.ENGINE, {"engine": "other"})


# --- what destroys, and what migrates ---


@broken("redaction_unfinished")
async def purge_ended_half_way(desk: Desk) -> None:
    record = Redaction(CUSTOMER, None, 1, 6).document()
    await change(desk, manifests(desk)[7], redacts=record)


@broken("staged_load")
async def load_was_killed(desk: Desk) -> None:
    await desk.bare.put(layout.load_key("0a", *CUSTOMER, "rows", "0b"), b"PAR1", OVERWRITE)


@broken("erased_payload")
async def attempt_that_lost_has_what_was_erased(desk: Desk) -> None:
    found = await erase.preview(desk.store, "Customer", "c1")
    await erase.apply(desk.store, desk.ambient, found, found.token, turn=Open(), by="x", why="")
    body = encode(TYPES[CUSTOMER], [Row(("c1",), '{"v":1}')], 4, 1)
    await desk.bare.put("commits/4-0badcafe/entities/Customer.parquet", body, OVERWRITE)
