"""Compaction: the same rows from fewer files of any writer; proved, tiered, and never the head."""

import asyncio
import io
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Corrupt, Unavailable
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.ontology import Entity, Field
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.resolve import resolve
from holdfast.ontology.chain.state import read_latest, read_ledger
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.index import read_index
from holdfast.ontology.maintain.compact import GRACE_NS, ORPHAN_NS, Compactor, superseded
from holdfast.ontology.maintain.reindex import repair_indexes
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology import broken
from tests.unit.ontology.desk import CUSTOMER, Desk, put

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


async def compact(desk: Desk, type_id: TypeId = CUSTOMER, **options: Any) -> Compactor:
    compactor = Compactor(desk.store, desk.ambient, **options)
    for done in await compactor.compact(type_id):
        assert done.published
    return compactor


# --- tiers ---


async def test_a_store_that_was_never_compacted_is_merged_in_one_go(desk: Desk) -> None:
    writer = desk.committer()
    for number in range(75):
        await put(writer, (f"c{number}", number))
    desk.spent()
    compactor = await compact(desk)
    # in base 8: 64 and 8, which are written together, and two that are left; those and the head end rows, and are read
    assert await entries(desk) == [(1, 72), (73, 73), (74, 74), (75, 75)]
    assert compactor.bytes_read == sum(len(desk.shelf.objects[broken.data_file(desk, n)].body) for n in range(1, 73))
    spent = desk.spent()
    assert "head" not in spent  # manifests say how large the files are
    assert spent["put"] == 1 + 1


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
async def test_whatever_plain_writers_have_written(name: str, desk: Desk) -> None:
    for number in range(18):
        fields = ODD[name][number % len(ODD[name])]
        await desk.plain.commit({("entity", "Customer"): [(f"c{number}", fields), (f"d{number}", fields)]})
    before = await rows(desk)
    await compact(desk)
    assert await entries(desk) == [(1, 16), (17, 17), (18, 18)]
    assert await rows(desk) == before
    assert (await verify(desk.store, deep=True)).good


# --- what must not be ---


@pytest.mark.parametrize("kind", ["file_missing", "file_unreadable", "hash_mismatch"])
async def test_nothing_is_made_of_damaged_files(kind: str, desk: Desk) -> None:
    await broken.sound(desk, commits=20)
    await broken.first(kind).breaks(desk)
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
async def test_a_snapshot_is_believed_only_if_its_key_proves_it(name: str, desk: Desk) -> None:
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


async def test_what_is_superseded_goes_when_it_is_old(desk: Desk) -> None:
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


READING = TypeId("entity", "Reading")


def first_version() -> type[Any]:
    class Reading(Entity):
        id: Field[str] = Field(primary_key=True)
        value: Field[int]
        tags: Field[list[str]] = Field(default_factory=list)

    return Reading


def second_version() -> type[Any]:
    class Reading(Entity):
        id: Field[str] = Field(primary_key=True)
        value: Field[float]
        tags: Field[list[str]] = Field(default_factory=list)
        at: Field[datetime | None] = Field(default=None)
        price: Field[Decimal | None] = Field(default=None)
        more: Field[dict[str, int]] = Field(default_factory=dict)

    return Reading


def table_of(desk: Desk, path: str) -> pa.Table:
    return pq.read_table(io.BytesIO(desk.shelf.objects[path].body))


async def the_snapshot(desk: Desk) -> str:
    compactor = Compactor(desk.store, desk.ambient)
    (done,) = await compactor.compact(READING)
    assert done.published
    return done.entry.path


async def test_columns_follow_the_schema_of_now(desk: Desk) -> None:
    old, new = first_version(), second_version()
    async with desk.session(old, compaction=False) as onto:
        for number in range(5):
            onto.ensure(old(id=f"r{number}", value=number, tags=["a"]))
            await onto.commit()
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    async with desk.session(new, compaction=False) as onto:
        await onto.register()
        for number in range(5, 9):
            onto.ensure(new(id=f"r{number}", value=0.5, at=moment, price=Decimal("1.25"), more={"n": number}))
            await onto.commit()
        before = await onto.all(new)
    table = table_of(desk, await the_snapshot(desk))
    assert table.column_names == [
        *("commit_id", "entity_type", "entity_key", "schema_version_id", "_until"),
        *("at", "id", "more", "price", "tags", "value", "fields_json"),
    ]
    assert table.column("value").to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0, 0.5, 0.5, 0.5]
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert table.column("price").to_pylist()[:6] == [None] * 5 + [Decimal("1.25")]
    assert table.column("more").to_pylist()[4:6] == [None, '{"n":5}']
    assert set(table.column("schema_version_id").to_pylist()) == {1, 2}
    async with desk.session(new, compaction=False) as onto:
        assert await onto.all(new) == before
    assert (await verify(desk.store, deep=True)).good


@pytest.mark.parametrize(("commits", "on"), [(12, True), (9, True), (22, False)])
async def test_a_session_compacts_a_type_of_many_files_unless_compaction_is_off(
    commits: int, on: bool, desk: Desk
) -> None:
    kind = first_version()
    async with desk.session(kind, compaction=on) as onto:
        for number in range(commits):
            onto.ensure(kind(id=f"r{number}", value=number))
            await onto.commit()
        await onto.flush()
    assert (await verify(desk.store, deep=True)).findings == []
    spans = [(entry.first, entry.last) for entry in (await read_index(desk.store, READING)).entries]
    assert len(spans) < 10 if on and commits > 9 else spans == [(n, n) for n in range(1, commits + 1)]


async def test_a_compaction_that_fails_does_not_disturb_writers(caplog: pytest.LogCaptureFixture) -> None:
    class NoSnapshots(MemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if key.startswith(layout.SNAPSHOTS):
                raise Unavailable(f"{key}: no room")
            return await super().put(key, body, mode)

    desk = Desk()
    kind = first_version()
    broken = NoSnapshots(desk.shelf)
    with caplog.at_level(logging.WARNING):
        async with Ontology(broken, desk.ambient, [kind]) as onto:
            for number in range(24):
                onto.ensure(kind(id=f"r{number}", value=number))
                await onto.commit()
            assert len(await onto.all(kind)) == 24
    assert "entity/Reading was not compacted" in caplog.text
    assert (await verify(desk.store, deep=True)).good


async def peak_of_compacting(commits: int) -> int:
    """Bytes that Arrow held at most, with snapshots of at most 64 KiB."""
    desk = Desk()
    kind = first_version()
    async with desk.session(kind, compaction=False) as onto:
        for number in range(commits):
            onto.ensure([kind(id=f"{number}-{row}", value=row, tags=[f"{number * row}"]) for row in range(300)])
            await onto.commit()
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        done = await Compactor(desk.store, desk.ambient, limit=64 << 10, reads=1).compact(READING)
    finally:
        pa.set_memory_pool(before)
    assert sum(each.rows for each in done) >= 300 * (commits // 2)
    return int(pool.max_memory())


async def test_memory_is_bounded_whatever_the_size_of_a_type() -> None:
    small, large = await peak_of_compacting(32), await peak_of_compacting(128)
    assert 0 < large < 2 * small


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


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)


class SlowUpkeep(Layer):
    """Commits take no time; indexes and snapshots are written slowly."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if key.startswith(("meta/indices/", "snapshots/")):
            await asyncio.sleep(0.05)
        return await super().put(key, body, mode)


async def test_a_writer_that_never_pauses_waits_for_upkeep_and_questions_stay_cheap() -> None:
    desk = Desk(wrap=SlowUpkeep)
    async with desk.session(Thing, compaction=True) as onto:
        for number in range(60):
            onto.ensure(Thing(id=f"{number:02d}"))
            await onto.commit()
            if number % 20 < 19:
                continue  # a question would give upkeep time
            asked = Client(desk.bare, ambient=desk.ambient)
            async with Ontology(asked, desk.ambient, [Thing], Options(compaction=False)) as new:
                assert len(await new.query(Thing).all()) == number + 1
            assert asked.usage.requests() <= 30
