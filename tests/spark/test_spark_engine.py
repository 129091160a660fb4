"""Both engines give the same rows for the same steps; on Spark, the number of tasks follows the number of rows."""

import random
import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Engine, Inline
from holdfast.pipeline.drive import explain
from holdfast.pipeline.engine import unwatched
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import Relations, relations
from holdfast.pipeline.engine.session import Spark
from holdfast.pipeline.tables.objects import ObjectsTable
from tests.spark.conftest import Engines

NUMBERS = [(name, pa.int64()) for name in ("seq_start", "seq_end", "size")]
RANGES = pa.schema([("agent", pa.string()), *NUMBERS, ("at", pa.string())])
TASKS = pa.schema([("folder", pa.string()), ("task", pa.string()), ("rows", pa.int64())])
STEPS = {
    "unlisted": "SELECT r.agent, r.seq_start FROM ranges r ANTI JOIN objects o ON r.at = o.key",
    "other_size": "SELECT r.agent, r.seq_start FROM ranges r JOIN objects o ON r.at = o.key WHERE r.size <> o.size",
    "overlapping": """
        SELECT agent, seq_start, seq_end FROM (
            SELECT *, max(seq_end) OVER (
                PARTITION BY agent ORDER BY seq_start, seq_end ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS before FROM ranges
        ) WHERE seq_start <= before""",
    "by_folder": """
        SELECT split_part(key, '/', 2) AS folder, count(*) AS n, sum(size) AS bytes, min(key) AS first
        FROM objects WHERE key LIKE 'data/%' GROUP BY split_part(key, '/', 2)""",
    "latest": """
        SELECT agent, seq_end FROM (
            SELECT *, row_number() OVER (PARTITION BY agent ORDER BY seq_end DESC, seq_start DESC) AS place FROM ranges
        ) WHERE place <= 2""",
}


@dataclass(frozen=True)
class Ranges:
    """Makes rows of the objects that it reads."""

    schema: pa.Schema = RANGES

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            for key in batch.column("key").to_pylist():
                start, end, size = map(int, (await store.get(key)).body.split())
                found = {"agent": key.split("/")[1], "seq_start": start, "seq_end": end, "size": size}
                yield pa.RecordBatch.from_pylist([{**found, "at": f"data/{key.split('/')[2]}/0"}], RANGES)


@dataclass(frozen=True)
class Tasks:
    """Says which keys came to one task together."""

    schema: pa.Schema = TASKS

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        folders = [folder async for batch in given for folder in batch.column("folder").to_pylist()]
        assert folders == sorted(folders)
        for folder in set(folders):
            row = {"folder": folder, "task": folders[0] + str(len(folders)), "rows": folders.count(folder)}
            yield pa.RecordBatch.from_pylist([row], self.schema)


async def fill(store: Store, seed: int) -> None:
    rng = random.Random(seed)
    for number in range(60):
        start = rng.randrange(100)
        body = f"{start} {start + rng.randrange(20)} {rng.randrange(3)}"
        await store.put(f"ranges/agent-{rng.randrange(4)}/{number}", body.encode())
    for number in rng.sample(range(60), 40):
        await store.put(f"data/{number}/0", b"x" * rng.randrange(3))


async def steps(work: Relations) -> dict[str, list[tuple[object, ...]]]:
    await work.scan("objects", ObjectsTable(("data/", "ranges/", "none/")))
    await work.map("ranges", "SELECT key FROM objects WHERE key LIKE 'ranges/%'", Ranges(), Spread(("key",), 10))
    for name, select in STEPS.items():
        work.view(name, select)
    found = {name: await work.rows(f"SELECT * FROM {name}") for name in STEPS}
    return {name: sorted(tuple(row.values()) for row in rows) for name, rows in found.items()}


def working(store: Client, engine: Engine, run_id: str) -> AbstractAsyncContextManager[Relations]:
    return relations(store, engine, run_id, lambda name: unwatched)


@pytest.mark.usefixtures("without_duckdb")
async def test_both_engines_give_the_same_rows(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        await fill(store, 7)
        spark = engine(spec)
        async with working(store, Inline(), "local") as here, working(store, spark, "spark") as there:
            on_duckdb, on_spark = await steps(here), await steps(there)
        assert all(on_duckdb.values())
        assert on_spark == on_duckdb


async def test_spark_knows_how_large_a_staged_table_is(engine: Engines, spark: Spark, tmp_path: Path) -> None:
    """Or it would send any table to all executors, through the driver."""
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    limit = "spark.sql.autoBroadcastJoinThreshold"
    before = spark.session.conf.get(limit)
    async with open_store(spec) as store:
        for number in range(300):
            await store.put(f"data/{number}/0", b"")
        async with working(store, engine(spec), "run") as work:
            await work.scan("objects", ObjectsTable(("data/",)))
            joined = "SELECT a.key FROM objects a ANTI JOIN objects b ON a.key = concat(b.key, '0')"
            small = await work.explain("joined", "", joined)
            spark.session.conf.set(limit, "1000")
            try:
                large = await work.explain("joined", "", joined)
            finally:
                spark.session.conf.set(limit, str(before))
    assert "BroadcastHashJoin" in small.plan
    assert "SortMergeJoin" in large.plan


@pytest.mark.parametrize("small", [True, False])
async def test_tasks_follow_records_and_equal_rows_stay_together(
    engine: Engines, tmp_path: Path, small: bool, request: pytest.FixtureRequest
) -> None:
    if not small:
        request.getfixturevalue("without_duckdb")
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        for number in range(120):
            await store.put(f"data/{number % 12}/{number}", b"")
        select = "SELECT split_part(key, '/', 2) AS folder, key FROM objects"
        async with working(store, engine(spec), "run") as work:
            await work.scan("objects", ObjectsTable(("data/",)))
            await work.map("few", select, Tasks(), Spread(("folder",), 1000, ("key",)))
            await work.map("many", select, Tasks(), Spread(("folder",), 10, ("key",)))
            few, many = [await work.rows(f"SELECT * FROM {name}") for name in ("few", "many")]
            assert {row["task"] for row in few} == {"0120"}
            assert len({row["task"] for row in many}) > 4
            assert all(len(rows) == 12 and {row["rows"] for row in rows} == {10} for rows in (few, many))
            step = await work.explain("few", "", "SELECT key FROM objects WHERE key LIKE 'data/1/%' AND size > 3")
            audit = await explain(store, "audit", engine=engine(spec))
        assert "LocalTableScan" in step.plan  # a small table is passed as rows
        assert any("StartsWith(key" in each.plan for each in audit)
        plans = {each.step: set(re.findall(r"\w+", each.plan)) for each in audit}
        assert {"InMemoryTableScan", "LeftAnti", "Exchange"} <= plans["findings"]
        assert {"InMemoryTableScan", "Window", "Exchange"} <= plans["record"]
