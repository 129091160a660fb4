"""Compaction of declared types: columns by the schema of now; sessions that compact by policy."""

import io
import logging
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.ontology import Entity, Field
from holdfast.ontology.format import layout
from holdfast.ontology.format.data.rows import partial_columns
from holdfast.ontology.format.index import read_index
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.merge import Source, _Layout, merge
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import of_schema
from tests.unit.ontology.desk import Desk

READING = TypeId("entity", "Reading")
OFF = Options(compaction=False)


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


def wide() -> type[Any]:
    fields: dict[str, Any] = {"id": Field(primary_key=True)}
    annotations: dict[str, Any] = {"id": Field[str]}
    for number in range(500):
        annotations[f"f{number}"] = Field[int | None]
        fields[f"f{number}"] = Field(default=None)
    return type("Reading", (Entity,), {"__annotations__": annotations, "__module__": __name__, **fields})


def table_of(desk: Desk, path: str) -> pa.Table:
    return pq.read_table(io.BytesIO(desk.shelf.objects[path].body))


async def the_snapshot(desk: Desk) -> str:
    compactor = Compactor(desk.store, desk.ambient)
    (done,) = await compactor.compact(READING)
    assert done.published
    return done.entry.path


async def test_columns_follow_the_schema_of_now() -> None:
    desk = Desk()
    old, new = first_version(), second_version()
    async with Ontology(desk.store, desk.ambient, [old], OFF) as onto:
        for number in range(5):
            onto.ensure(old(id=f"r{number}", value=number, tags=["a"]))
            await onto.commit()
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    async with Ontology(desk.store, desk.ambient, [new], OFF) as onto:
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
    async with Ontology(desk.store, desk.ambient, [new], OFF) as onto:
        assert await onto.all(new) == before
    assert (await verify(desk.store, deep=True)).good


async def test_a_column_that_cannot_hold_a_value_of_another_writer_stays_partial() -> None:
    desk = Desk()
    kind = first_version()
    async with Ontology(desk.store, desk.ambient, [kind], OFF) as onto:
        for number in range(10):
            if number == 3:
                await desk.plain.commit({("entity", "Reading"): [("r", {"id": "r", "value": 2**70})]})
                continue
            onto.ensure(kind(id="r", value=number))
            await onto.commit()
    path = await the_snapshot(desk)
    schema = pq.read_schema(io.BytesIO(desk.shelf.objects[path].body))
    assert partial_columns(schema) == {"value"}
    assert table_of(desk, path).column("value").to_pylist() == [0, 1, 2, None, 4, 5, 6, 7]


async def test_five_hundred_fields() -> None:
    desk = Desk()
    kind = wide()
    async with Ontology(desk.store, desk.ambient, [kind], OFF) as onto:
        for number in range(10):
            onto.ensure(kind(id=f"r{number}", f7=number))
            await onto.commit()
    table = table_of(desk, await the_snapshot(desk))
    assert table.num_columns == 5 + 501 + 1, "and until when"
    assert table.column("f7").to_pylist() == list(range(8))


async def committed(commits: int, options: Options) -> list[tuple[int, int]]:
    """By one session; the spans of the type's files afterwards."""
    desk, kind = Desk(), first_version()
    async with Ontology(desk.store, desk.ambient, [kind], options) as onto:
        for number in range(commits):
            onto.ensure(kind(id=f"r{number}", value=number))
            await onto.commit()
        await onto.flush()
    assert (await verify(desk.store, deep=True)).findings == []
    return [(entry.first, entry.last) for entry in (await read_index(desk.store, READING)).entries]


async def test_a_session_compacts_a_type_of_many_files() -> None:
    spans = await committed(12, Options())
    assert spans[0][1] - spans[0][0] > 1
    assert len(spans) < 10


async def test_a_session_does_not_compact_a_type_of_few_files() -> None:
    assert await committed(9, Options()) == [(n, n) for n in range(1, 10)]


async def test_a_session_without_compaction() -> None:
    assert await committed(22, OFF) == [(n, n) for n in range(1, 23)]


async def test_a_compaction_that_fails_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
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
    async with Ontology(desk.store, desk.ambient, [kind], OFF) as onto:
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


def in_any_order(commit: int, keys: list[int]) -> Source:
    """A plain writer's file in many row groups."""
    columns = {"commit_id": pa.array([commit] * len(keys), pa.int64()), "entity_key": [f"k{key:03d}" for key in keys]}
    table = pa.table({**columns, "fields_json": [f'{{"v":{commit * 1000 + key}}}' for key in keys]})
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=4)
    return Source(f"{commit}.parquet", sink.getvalue(), commit, commit, len(keys), ours=False)


def test_rows_in_no_order_are_decoded_once_for_each_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.ontology.maintain.merge.ROW_GROUP", 4)
    monkeypatch.setattr("holdfast.ontology.maintain.merge.HELD_BYTES", 1)
    monkeypatch.setattr("holdfast.ontology.maintain.merge.SMALL_BYTES", 0)
    decoded: list[str] = []
    table = _Layout.table

    def counted(self: _Layout, file: pa.Table, source: Source) -> pa.Table:
        decoded.append(source.path)
        return table(self, file, source)

    monkeypatch.setattr(_Layout, "table", counted)
    keys = [number * 37 % 100 for number in range(100)]
    made = merge(
        [in_any_order(1, keys), in_any_order(2, keys[:50]), in_any_order(3, sorted(keys))], of_schema(READING, {}), {}
    )
    found = pq.read_table(io.BytesIO(made.body))
    rows = zip(*(found.column(name).to_pylist() for name in ("commit_id", "entity_key", "fields_json")), strict=True)
    ended = {(1, key) for key in keys} | {(2, key) for key in keys[:50]}
    wanted = [*((3, key) for key in sorted(keys)), *sorted(ended)]
    assert list(rows) == [(commit, f"k{key:03d}", f'{{"v":{commit * 1000 + key}}}') for commit, key in wanted]
    assert [decoded.count(f"{commit}.parquet") for commit in (1, 2, 3)] == [1, 1, 25]
