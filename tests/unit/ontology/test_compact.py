"""Compaction: the same rows from fewer files of any writer; proved, tiered, and never the head."""

import io
import json
import math
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Corrupt
from holdfast.objects.store import OVERWRITE
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.resolve import resolve
from holdfast.ontology.chain.state import read_latest, read_ledger
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.rows import partial_columns
from holdfast.ontology.format.index import Entry, read_index
from holdfast.ontology.maintain.compact import GRACE_NS, ORPHAN_NS, Compactor, superseded
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology import broken
from tests.unit.ontology.desk import CUSTOMER, OWNS, Desk, put

KEY = layout.index_key(*CUSTOMER)


async def ledger_of(desk: Desk) -> Ledger:
    return await read_ledger(desk.store, Chain(desk.store))


async def rows(desk: Desk, type_id: TypeId = CUSTOMER) -> list[Any]:
    """Every row of a type's history, by our own resolution."""
    resolved = await resolve(desk.store, Chain(desk.store), await ledger_of(desk), type_id)
    tables = [read(desk, ref.path) for ref in resolved.files()]
    found = [row for table in tables for row in table.to_pylist()]
    keys = ("entity_key",) if type_id.kind == "entity" else ("left_key", "right_key", "instance_key")
    return sorted(
        (row["commit_id"], *(row[key] for key in keys), row["fields_json"], bool(row.get("_retracted")))
        for row in found
    )


def read(desk: Desk, path: str) -> pa.Table:
    return pq.read_table(io.BytesIO(desk.shelf.objects[path].body))


def snapshots(desk: Desk) -> list[str]:
    return sorted(key for key in desk.shelf.objects if key.startswith("snapshots/"))


async def entries(desk: Desk, type_id: TypeId = CUSTOMER) -> list[tuple[int, int]]:
    return [(entry.first, entry.last) for entry in (await read_index(desk.store, type_id)).entries]


async def kinds(desk: Desk) -> set[str]:
    """What a deep check finds, besides indexes that are not written yet."""
    return {found.kind for found in (await verify(desk.store, deep=True)).findings} - {"index_absent"}


async def compact(desk: Desk, type_id: TypeId = CUSTOMER, **options: Any) -> Compactor:
    compactor = Compactor(desk.store, desk.ambient, **options)
    for done in await compactor.compact(type_id):
        assert done.published
    return compactor


async def test_the_same_rows_from_fewer_files() -> None:
    desk = Desk()
    await broken.sound(desk, commits=40)
    before = await rows(desk)
    latest = await desk.reader.latest("entity", "Customer")
    await compact(desk)
    assert await entries(desk) == [(1, 40)]
    assert len(snapshots(desk)) == 1
    assert await rows(desk) == before
    assert await desk.reader.latest("entity", "Customer") == latest
    assert (await verify(desk.store, deep=True)).findings == []
    resolved = await resolve(desk.store, Chain(desk.store), await ledger_of(desk), CUSTOMER)
    assert resolved.by_index
    assert await repair_indexes(desk.store, desk.ambient, apply=True) == []


async def test_every_commit_is_still_seen_as_it_was() -> None:
    desk = Desk()
    writer = await broken.sound(desk, commits=20)
    await put(writer, ("c0", None))
    then = {commit: await desk.reader.latest("entity", "Customer", as_of=commit) for commit in range(1, 23)}
    await compact(desk)
    for commit, state in then.items():
        assert await desk.reader.latest("entity", "Customer", as_of=commit) == state
        chain = Chain(desk.store)
        ledger = await chain.ledger(await chain.at((await ledger_of(desk)).place, commit))
        ours = await read_latest(desk.store, chain, ledger, CUSTOMER)
        expected = {key: fields for key, fields in state.items() if (commit, key) != (22, "c0")}
        assert {key: json.loads(row.fields_json) for (key,), (_, row) in ours.rows.items()} == expected


async def test_the_head_is_never_covered() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(17):
        await put(writer, ("c", number))
    await compact(desk)
    assert await entries(desk) == [(1, 16), (17, 17)]
    path = await desk.reader.resolve("entity", "Customer", 17)
    table = [row for key in path for row in read(desk, key).to_pylist()]
    assert len(table) == 17  # the specification's reader sees each row of history once


async def test_it_is_sorted_with_statistics() -> None:
    desk = Desk()
    plain = [(f"k{number}", {"v": number}) for number in (3, 1, 2)]  # not in order
    for _ in range(9):
        await desk.plain.commit({("entity", "Customer"): plain})
    await compact(desk)
    table = read(desk, snapshots(desk)[0])
    columns = (table.column(name).to_pylist() for name in ("_until", "commit_id", "entity_key"))
    found = [(end is not None, commit, key) for end, commit, key in zip(*columns, strict=True)]
    assert found == sorted(found), "rows that have ended come after those that last"
    assert sorted(each[1:] for each in found) == [(commit, f"k{key}") for commit in range(1, 9) for key in (1, 2, 3)]
    file = pq.ParquetFile(io.BytesIO(desk.shelf.objects[snapshots(desk)[0]].body))
    group = file.metadata.row_group(0)
    stats = {
        group.column(number).path_in_schema: group.column(number).statistics for number in range(group.num_columns)
    }
    assert (stats["commit_id"].min, stats["commit_id"].max) == (1, 8)
    assert (stats["v"].min, stats["v"].max) == (1, 3)


async def test_files_of_commits_stay() -> None:
    desk = Desk()
    await broken.sound(desk, commits=20)
    before = {key for key in desk.shelf.objects if key.startswith("commits/")}
    await compact(desk)
    assert before <= desk.shelf.objects.keys()


# --- tiers ---


async def test_files_grow_with_the_logarithm_and_bytes_almost_with_the_commits() -> None:
    """Total bytes that compaction writes over commits: the slope of the log-log line is at most 1.2."""
    points: list[tuple[float, float]] = []
    desk = Desk()
    writer = desk.committer()
    compactor = Compactor(desk.store, desk.ambient)
    total = 0
    for number in range(1, 513):
        await put(writer, (f"c{number}", "x" * 2_000 + str(random.Random(number).random())))
        for done in await compactor.compact(CUSTOMER):
            assert done.published
        total = compactor.bytes_written
        if number in (64, 128, 256, 512):
            points.append((math.log(number), math.log(total)))
            listed = len(await entries(desk))
            assert listed <= 7 * (math.floor(math.log(number, 8)) + 1) + 1
    slope = (points[-1][1] - points[0][1]) / (points[-1][0] - points[0][0])
    assert slope <= 1.2
    await repair_indexes(desk.store, desk.ambient, apply=True)  # the last commit is not in it yet
    assert (await verify(desk.store, deep=True)).good


async def test_a_store_that_was_never_compacted_is_merged_in_one_go() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(75):
        await put(writer, (f"c{number}", number))
    desk.spent()
    compactor = await compact(desk)
    # in base 8: 64 and 8, which are written together, and two that are left; those and the head end rows, and are read
    assert await entries(desk) == [(1, 72), (73, 73), (74, 74), (75, 75)]
    assert compactor.bytes_read == sum(len(desk.shelf.objects[broken.data_file(desk, n)].body) for n in range(1, 76))
    spent = desk.spent()
    assert "head" not in spent  # manifests say how large the files are
    assert spent["put"] == 1 + 1


async def test_large_files_are_left_alone() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(1, 34):
        body = "".join(random.Random(number).choices("abcdefghij", k=20_000 if number == 10 else 10))
        await put(writer, (f"c{number}", body))
    compactor = await compact(desk, fan=4, limit=16_000)
    assert (10, 10) in await entries(desk)
    assert len(await entries(desk)) < 16
    assert all(len(desk.shelf.objects[key].body) < 16_000 for key in snapshots(desk))
    written = compactor.bytes_written
    assert (await compact(desk, fan=4, limit=16_000)).bytes_written == 0 < written
    assert (await verify(desk.store, deep=True)).good


# --- odd contents ---

ODD: dict[str, list[dict[str, Any]]] = {
    "type drift": [{"v": 1}, {"v": "one"}, {"v": 2.5}, {"v": True}],
    "all null": [{"v": None}, {"v": None}],
    "null, then typed": [{"v": None}, {"v": 7}],
    "whole numbers and floats": [{"v": 1}, {"v": 0.5}],
    "beyond a float": [{"v": 2**53 + 1}, {"v": 0.5}],
    "lists": [{"v": [1, 2]}, {"v": ["a"]}, {"v": []}],
    "other structures": [{"v": {"a": 1}}, {"v": {"b": "x"}}],
    "other fields": [{"a": 1}, {"b": 2}, {}],
    "many fields": [{f"f{number}": number for number in range(60)}, {f"f{number}": "x" for number in range(30, 90)}],
    "odd names": [{"Entity_Type": "x", "select": 1, "ä ö": 2}],
    "empty texts and control characters": [{"v": ""}, {"v": "\x00\x01"}],
}


@pytest.mark.parametrize("name", ODD)
async def test_whatever_plain_writers_have_written(name: str) -> None:
    desk = Desk()
    for number in range(18):
        fields = ODD[name][number % len(ODD[name])]
        await desk.plain.commit({("entity", "Customer"): [(f"c{number}", fields), (f"d{number}", fields)]})
    before = await rows(desk)
    await compact(desk)
    assert await entries(desk) == [(1, 16), (17, 17), (18, 18)]
    assert await rows(desk) == before
    assert await kinds(desk) == set()


async def test_empty_dicts() -> None:
    """Arrow cannot even write them as a structure: a plain writer leaves the column out."""
    desk = Desk()
    for number in range(10):
        await desk.plain.commit({("entity", "Customer"): [(f"c{number}", {})]})
    await compact(desk)
    table = read(desk, snapshots(desk)[0])
    assert set(table.column("fields_json").to_pylist()) == {"{}"}


async def test_a_column_that_lacks_values_says_so() -> None:
    desk = Desk()
    for value in (1, 0.5, 2**53 + 1, None, 1, 1, 1, 1, 1):
        await desk.plain.commit({("entity", "Customer"): [("c", {"v": value})]})
    await compact(desk)
    (path,) = snapshots(desk)
    schema = pq.read_schema(io.BytesIO(desk.shelf.objects[path].body))
    assert "v" in partial_columns(schema)
    assert read(desk, path).sort_by("commit_id").column("v").to_pylist()[:4] == [1.0, 0.5, None, None]


async def test_relations_and_retractions() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(12):
        await put(writer, (f"a{number}|b|", number), ("x|y|", None if number % 2 else number), type_id=OWNS)
    before = await rows(desk, OWNS)
    await compact(desk, OWNS)
    assert await entries(desk, OWNS) == [(1, 8), (9, 9), (10, 10), (11, 11), (12, 12)]
    assert await rows(desk, OWNS) == before
    assert sum(row[-1] for row in before) == 6


# --- what must not be ---


@pytest.mark.parametrize("name", ["data_file_is_gone", "data_file_is_truncated", "data_file_is_another"])
async def test_nothing_is_made_of_damaged_files(name: str) -> None:
    desk = Desk()
    await broken.sound(desk, commits=20)
    await getattr(broken, name)(desk)
    before = set(desk.shelf.objects)
    with pytest.raises(Corrupt):
        await compact(desk)
    assert set(desk.shelf.objects) == before


LIES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "another file": lambda entry: {"path": "snapshots/entities/Customer-1-16-0123456789abcdef.parquet"},
    "a longer span": lambda entry: {"max_commit_id": 17},
    "a shorter span": lambda entry: {"min_commit_id": 2},
    "another head": lambda entry: {"type_head": [16, 15, entry["type_head"][2]]},
    "no head": lambda entry: {"type_head": None},
}


@pytest.mark.parametrize("name", LIES)
async def test_a_snapshot_is_believed_only_if_its_key_proves_it(name: str) -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(20):
        await put(writer, ("c", number), (f"d{number}", number))
    before = await rows(desk)
    await compact(desk)
    index = broken.read(desk, KEY)
    index["entries"][0] |= LIES[name](index["entries"][0])
    await desk.bare.put(index["entries"][0]["path"], desk.shelf.objects[snapshots(desk)[0]].body, OVERWRITE)
    await broken.write(desk, KEY, index)
    assert await rows(desk) == before
    assert not (await resolve(desk.store, Chain(desk.store), await ledger_of(desk), CUSTOMER)).by_index
    await repair_indexes(desk.store, desk.ambient, apply=True)
    assert (await verify(desk.store, deep=True)).good


async def test_a_snapshot_of_another_type_or_place_proves_nothing() -> None:
    """The key of an honest snapshot under another entry: after other files, or of another type of equal numbers."""
    desk = Desk()
    writer = desk.committer()
    for number in range(24):
        await put(writer, (f"c{number}", number))
    before = await rows(desk)
    await compact(desk, fan=8)
    index = broken.read(desk, KEY)
    index["entries"] = index["entries"][1:]  # the rest is honest, and what it rests on is gone
    await broken.write(desk, KEY, index)
    assert await rows(desk) == before


async def test_wrong_bytes_in_a_snapshot_are_found_by_a_deep_check() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(20):
        await put(writer, ("c", number))
    await compact(desk)
    (path,) = snapshots(desk)
    table = read(desk, path)
    sink = io.BytesIO()
    pq.write_table(table.slice(1), sink)
    await desk.bare.put(path, sink.getvalue(), OVERWRITE)
    assert (await verify(desk.store)).good
    assert await kinds(desk) == {"snapshot_wrong"}


async def test_a_reader_that_misses_a_snapshot_resolves_again() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(20):
        await put(writer, ("c", number), (f"d{number}", number))
    await compact(desk)
    await desk.bare.delete(snapshots(desk)[0])
    chain = Chain(desk.store)
    latest = await read_latest(desk.store, chain, await ledger_of(desk), CUSTOMER)
    assert len(latest.rows) == 21
    fresh = desk.committer()
    assert await put(fresh, ("c", 19), ("d3", 3)) is None
    assert (await put(fresh, ("c", None))).commit_id == 21


async def test_two_compactors_one_snapshot() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(20):
        await put(writer, ("c", number))
    one, other = Compactor(desk.store, desk.ambient), Compactor(desk.store, desk.ambient)
    (first,), (second,) = (await one.outlook(CUSTOMER)).merges, (await other.outlook(CUSTOMER)).merges
    assert (await one.perform(first)).published
    assert not (await other.perform(second)).published
    assert len(snapshots(desk)) == 1
    assert await kinds(desk) == set()


async def test_what_is_superseded_goes_when_it_is_old() -> None:
    desk = Desk()
    writer = desk.committer()
    for number in range(70):
        await put(writer, ("c", number))
        await compact(desk)
    assert len(snapshots(desk)) == 17
    compactor = Compactor(desk.store, desk.ambient)
    assert await compactor.sweep([CUSTOMER]) == []  # too young
    index = await read_index(desk.store, CUSTOMER)
    old = dict.fromkeys(snapshots(desk), 0)
    assert superseded(CUSTOMER, index.entries, old, GRACE_NS - 1) == []
    gone = superseded(CUSTOMER, index.entries, old, GRACE_NS)
    assert set(gone) == set(old) - {entry.path for entry in index.entries}
    stray = layout.snapshot_key(*CUSTOMER, 66, 69, "0badcafe")
    plain = "snapshots/entities/Customer-66-69.parquet"
    other = layout.snapshot_key("entity", "CustomerX", 66, 69, "0badcafe")
    rest = {stray: 0, plain: 0, other: 0}
    assert superseded(CUSTOMER, index.entries, rest, ORPHAN_NS - 1) == []
    assert superseded(CUSTOMER, index.entries, rest, ORPHAN_NS) == [stray]


def test_an_entry_says_what_it_weighs() -> None:
    assert Entry(1, 2, "x").document() == {"min_commit_id": 1, "max_commit_id": 2, "path": "x"}
