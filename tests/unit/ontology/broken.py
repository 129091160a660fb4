"""A library of broken stores: each starts from the same sound one, and is broken in one way."""

import hashlib
import json
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from holdfast.objects.store import OVERWRITE
from holdfast.ontology.commit.commit import Committer
from holdfast.ontology.commit.lock import CommitLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.rows import encode
from holdfast.ontology.format.redactions import Redaction
from holdfast.ontology.maintain import erase
from holdfast.ontology.maintain.upkeep import Upkeep
from tests.unit.ontology.desk import CUSTOMER, PRODUCT, TYPES, Desk, put

EXCESS = {"min_commit_id": 7, "max_commit_id": 7}
INDEX, PRODUCTS = layout.index_key(*CUSTOMER), layout.index_key(*PRODUCT)
OTHER = {"path": "commits/6-00000000/entities/Customer.parquet"}


async def sound(desk: Desk, commits: int = 6) -> Committer:
    """So many commits of customers, then one of products; indexes and schema objects are up to date."""
    view = View(desk.store)
    upkeep = Upkeep(desk.store, desk.ambient, view, CommitLock(), "w")
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
    kind: str
    """The finding that names it."""
    name: str
    breaks: Callable[[Desk], Awaitable[Any]]
    deep: bool = False
    mends: bool = False
    """Repair of the indexes is enough."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def listing(made: Callable[[list[dict[str, Any]]], Any], **changes: Any) -> Callable[[Desk], Awaitable[Any]]:
    """Another list of files in the index."""
    return lambda desk: change(desk, INDEX, entries=made(read(desk, INDEX)["entries"]), **changes)


async def manifest(desk: Desk, number: int, **changes: Any) -> None:
    await change(desk, manifests(desk)[number], **changes)


async def amend(desk: Desk, number: int, **changes: Any) -> None:
    """What a manifest says of its file."""
    document = read(desk, manifests(desk)[number])
    document["files"][0] |= changes
    await write(desk, manifests(desk)[number], document)


async def amend_stats(desk: Desk, **changes: Any) -> None:
    await amend(desk, 3, stats={**read(desk, manifests(desk)[3])["files"][0]["stats"], **changes})


async def truncate(desk: Desk) -> None:
    await desk.bare.put(data_file(desk, 2), desk.shelf.objects[data_file(desk, 2)].body[:-100], OVERWRITE)


async def swap(desk: Desk) -> None:
    await desk.bare.put(data_file(desk, 2), encode(TYPES[CUSTOMER], [], 2, 1), OVERWRITE)


async def copy_another_commit(desk: Desk) -> None:
    body = desk.shelf.objects[data_file(desk, 3)].body
    await desk.bare.put(data_file(desk, 2), body, OVERWRITE)
    await amend(desk, 2, content_sha256=hashlib.sha256(body).hexdigest())


async def name_a_snapshot(desk: Desk, body: bytes | None = None) -> None:
    path = "snapshots/entities/Customer-1-3.parquet"
    await change(
        desk, INDEX, entries=[{"min_commit_id": 1, "max_commit_id": 3, "path": path}, *read(desk, INDEX)["entries"][3:]]
    )
    if body is not None:
        await desk.bare.put(path, body, OVERWRITE)


async def attempt_that_lost(desk: Desk, commit_id: int = 2) -> None:
    await desk.bare.put(f"commits/{commit_id}-0badcafe/entities/Customer.parquet", b"whatever", OVERWRITE)


async def migration_that_was_not_published(desk: Desk) -> None:
    changed = {"commit_id": 8, "parent_commit_id": 7, "parent_manifest_path": manifests(desk)[7]}
    await write(desk, "commits/8-0badcafe/manifest.json", read(desk, manifests(desk)[7]) | changed)


async def versions(desk: Desk, *, keep: bool, **changes: Any) -> None:
    key = layout.versions_key(*CUSTOMER)
    (first,) = read(desk, key)["versions"]
    await change(desk, key, versions=[*([first] if keep else []), {**first, **changes}])


async def leave_what_was_erased(desk: Desk) -> None:
    found = await erase.preview(desk.store, "Customer", "c1")
    await erase.apply(desk.store, desk.ambient, found, found.token, by="x", why="")
    body = encode(TYPES[CUSTOMER], [Row(("c1",), '{"v":1}')], 4, 1)
    await desk.bare.put("commits/4-0badcafe/entities/Customer.parquet", body, OVERWRITE)


def put_at(key: str, body: bytes) -> Callable[[Desk], Awaitable[Any]]:
    return lambda desk: desk.bare.put(key, body, OVERWRITE)


LIBRARY = [
    # the chain
    Broken("head_missing", "head is gone", lambda desk: desk.bare.delete(layout.HEAD)),
    Broken("head_unreadable", "head is garbage", put_at(layout.HEAD, b"{")),
    Broken("head_unreadable", "head names no manifest", lambda desk: change(desk, layout.HEAD, manifest_path=None)),
    Broken("manifest_missing", "in the middle", lambda desk: desk.bare.delete(manifests(desk)[3])),
    Broken("manifest_missing", "the head's", lambda desk: desk.bare.delete(manifests(desk)[7])),
    Broken("manifest_unreadable", "garbage", lambda desk: desk.bare.put(manifests(desk)[3], b"not json", OVERWRITE)),
    Broken(
        "manifest_unreadable",
        "a later parent",
        lambda desk: manifest(desk, 3, parent_commit_id=5, parent_manifest_path=manifests(desk)[5]),
    ),
    Broken("chain_break", "circle", lambda desk: manifest(desk, 3, parent_manifest_path=manifests(desk)[5])),
    Broken("chain_break", "skips its parent", lambda desk: manifest(desk, 5, parent_manifest_path=manifests(desk)[2])),
    Broken(
        "summary_wrong",
        "files so far",
        lambda desk: manifest(
            desk, 4, type_heads=read(desk, manifests(desk)[4])["type_heads"] | {"entity/Customer": [4, 9, "00"]}
        ),
    ),
    Broken("summary_wrong", "recent files", lambda desk: manifest(desk, 4, recent=[])),
    Broken("summary_wrong", "skips", lambda desk: manifest(desk, 4, skips=[[1, "commits/1-gone/manifest.json"]])),
    Broken("time_backwards", "clock", lambda desk: manifest(desk, 4, created_at="1999-01-01T00:00:00+00:00")),
    # files
    Broken("file_missing", "gone", lambda desk: desk.bare.delete(data_file(desk, 2))),
    Broken("file_unreadable", "empty", lambda desk: desk.bare.put(data_file(desk, 2), b"", OVERWRITE)),
    Broken("file_unreadable", "shorter", truncate, deep=True),
    Broken("hash_mismatch", "another file", swap, deep=True),
    Broken("rows_wrong", "count", lambda desk: amend(desk, 2, row_count=99), deep=True),
    Broken("rows_wrong", "of another commit", copy_another_commit, deep=True),
    Broken("stats_wrong", "denies a key", lambda desk: amend_stats(desk, keys=[["zzz", "zzzz"]]), deep=True),
    Broken("stats_wrong", "sketch", lambda desk: amend_stats(desk, sketches=["AAAAAAAAAAA="]), deep=True),
    # indexes
    Broken("index_missing_rows", "behind rows", listing(lambda found: found[:3], max_indexed_commit=3), mends=True),
    Broken("index_lag", "behind nothing", lambda desk: change(desk, INDEX, max_indexed_commit=6), mends=True),
    Broken("index_wrong", "the head", lambda desk: change(desk, PRODUCTS, entries=[]), mends=True),
    Broken("index_wrong", "hole", listing(lambda found: [*found[:2], *found[3:]]), mends=True),
    Broken("index_wrong", "another attempt", listing(lambda found: [*found[:-1], found[-1] | OTHER]), mends=True),
    Broken("index_wrong", "another store", listing(lambda found: [each | OTHER for each in found]), mends=True),
    Broken("index_wrong", "too many", listing(lambda found: [*found, found[0] | EXCESS]), mends=True),
    Broken("index_wrong", "ahead", lambda desk: change(desk, INDEX, max_indexed_commit=99), mends=True),
    Broken("index_wrong", "garbage", put_at(INDEX, b"[]"), mends=True),
    Broken("index_wrong", "twice", listing(lambda found: [*found, found[0]]), mends=True),
    Broken("index_absent", "gone", lambda desk: desk.bare.delete(INDEX), mends=True),
    Broken("snapshot_missing", "gone", name_a_snapshot, mends=True),
    Broken("snapshot_unproved", "plain", lambda desk: name_a_snapshot(desk, b"whatever it is"), mends=True),
    Broken(
        "index_of_no_type",
        "ghost",
        put_at("meta/indices/entities/Ghost.json", b'{"type_name":"Ghost","max_indexed_commit":1,"entries":[]}'),
    ),
    # what is there besides
    Broken("foreign_object", "file", put_at("commits/notes.txt", b"hello")),
    Broken(
        "foreign_object",
        "file with a commit",
        lambda desk: desk.bare.put(data_file(desk, 2).replace("Customer", "Customer.bak"), b"hello", OVERWRITE),
    ),
    Broken("orphan_attempt", "lost", attempt_that_lost),
    Broken("open_attempt", "migration", migration_that_was_not_published),
    Broken(
        "schema_objects_differ", "number", lambda desk: versions(desk, keep=False, schema_json="{}", schema_hash="h1")
    ),
    Broken("schema_objects_differ", "types unreadable", put_at(layout.TYPES, b"{")),
    Broken(
        "schema_version_ahead",
        "half a migration",
        lambda desk: versions(desk, keep=True, schema_version_id=2, schema_hash="h2"),
    ),
    Broken("orphan_snapshot", "unnamed", put_at("snapshots/entities/Customer-1-3-0badcafe.parquet", b"PAR1")),
    Broken("other_engine", "mark", put_at(layout.ENGINE, b'{"engine":"other"}')),
    # what destroys, and what migrates
    Broken(
        "redaction_unfinished",
        "purge",
        lambda desk: manifest(
            desk, 7, redacts=Redaction(CUSTOMER, None, 1, 6).document(), redacted=[7, manifests(desk)[7]]
        ),
    ),
    Broken("staged_load", "killed", put_at(layout.load_key("0a", *CUSTOMER, "rows", "0b"), b"PAR1")),
    Broken("erased_payload", "lost attempt", leave_what_was_erased),
]


def first(kind: str) -> Broken:
    return next(each for each in LIBRARY if each.kind == kind)
