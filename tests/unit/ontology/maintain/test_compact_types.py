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
from holdfast.ontology.format.index import read_index
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk

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
async def test_a_session_compacts_a_type_of_many_files_unless_it_is_told_not_to(
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
