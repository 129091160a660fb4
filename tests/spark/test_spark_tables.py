"""Tables of a store as DataFrames and streams of Spark: two engines, one answer; nothing twice, nothing left out."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

from holdfast import pipeline
from holdfast.bus import Bus
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.types.refs import TypeId
from holdfast.pipeline.engine.session import PUSHDOWN, Spark
from holdfast.pipeline.tables import everything
from holdfast.pipeline.tables.datasource import frame
from holdfast.telemetry.accept import references
from holdfast.telemetry.records import Gauge
from tests.spark.conftest import OnS3
from tests.unit.pipeline.field import START, Field
from tests.unit.pipeline.test_tables import trade

pytestmark = pytest.mark.timeout(600)  # a machine with much else to do starts Spark's processes slowly
TABLES = ("Customer", "Everything", "changes", "samples", "rollup", "accepted", "runs", "events")
"""One of each kind of part. What rows they have is proved without Spark, in ``tests/unit/pipeline/test_tables.py``."""


def bag(table: pa.Table) -> list[str]:
    return sorted(map(_row, table.to_pylist()))


def _row(row: dict[str, Any]) -> str:
    return repr({name: sorted(value) if name == "labels" else value for name, value in row.items()})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store with everything in it."""
    uri = f"file:{tmp_path_factory.mktemp('tables') / 'store'}"

    async def fill() -> None:
        async with open_store(uri) as store:
            await trade(store, 9)
            await Compactor(store, store.ambient).compact(TypeId("entity", "Customer"))
            await trade(store, 2, seed=2)
            await Field(store).season(3, agents=3)
            await Bus(store, store.ambient, "shop").publish_raw("order.placed", {"number": 1})
            await pipeline.run(store)

    asyncio.run(fill())
    return uri


@pytest.mark.parametrize("name", TABLES)
async def test_tables_are_the_same_in_tasks_and_in_this_process(spark: Spark, place: str, name: str) -> None:
    async with open_store(place) as store:
        ours = await everything(store, {"table": name})
        assert bag(frame(spark.session, store, name, partitions=2).toArrow()) == bag(ours)
        assert ours.num_rows


def test_filters_leave_out_files_before_a_task_starts(spark: Spark, place: str) -> None:
    session = spark.session
    whole = frame(session, place, "Customer__history", partitions=100)
    late = whole.where("commit_id > 9 AND id >= 'c05'")
    as_of = frame(session, place, "Customer", as_of=3, columns=["id", "commit_id"]).where("commit_id > 1")
    metric = frame(session, place, "rollup").where("metric = 'load'")
    session.conf.set(PUSHDOWN, "false")
    try:
        expected = [each.toArrow() for each in (late, as_of, metric)]
        unpruned = late.rdd.getNumPartitions()
    finally:
        session.conf.set(PUSHDOWN, "true")
    again = whole.where("commit_id > 9 AND id >= 'c05'")
    assert again.rdd.getNumPartitions() < unpruned
    assert [bag(each.toArrow()) for each in (again, as_of, metric)] == [bag(each) for each in expected]
    assert all(each.num_rows for each in expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"table": "Custommer"},
            "not_found: there is no table 'Custommer' in this store (hint: did you mean Customer?",
        ),
        ({"table": "runs", "store": "file:./no-such-store"}, "not_found: there is no folder"),
        (
            {"table": "Customer", "schema": "id STRING, name INT"},
            "invalid: table Customer: column name is of type string, and the schema that was given says int (hint:",
        ),
    ],
)
def test_errors_are_one_line_that_is_found(spark: Spark, place: str, options: dict[str, str], said: str) -> None:
    given = {name: value for name, value in options.items() if name != "schema"}
    reading = spark.session.read.format("holdfast").option("store", place).options(**given)
    with pytest.raises(PySparkException) as caught:
        (reading.schema(options["schema"]) if "schema" in options else reading).load().collect()
    lines = [line for line in str(caught.value).splitlines() if "RuntimeError: holdfast-error:" in line]
    assert len(lines) == 1
    assert f"holdfast-error:{said}" in lines[0]


class Follower:
    """A streaming query over one table that is stopped and started again."""

    def __init__(self, session: Any, uri: str, folder: Path, **options: str) -> None:
        self._session, self._uri, self._folder, self._options = session, uri, folder, options
        self.batches: list[tuple[int, list[dict[str, Any]]]] = []

    def run(self, failing: Callable[[int], bool] = lambda _: False) -> list[list[dict[str, Any]]]:
        """All that is available now; the rows of each micro-batch that was done."""
        found: list[list[dict[str, Any]]] = []

        def each(batch: Any, number: int) -> None:
            rows = batch.toArrow().to_pylist()
            self.batches.append((number, rows))
            if failing(number):
                raise RuntimeError("the sink is broken")
            found.append(rows)

        reading = self._session.readStream.format("holdfast").option("store", self._uri).options(**self._options)
        writing = reading.load().writeStream.foreachBatch(each).trigger(availableNow=True)
        query = writing.option("checkpointLocation", str(self._folder)).start()
        try:
            query.awaitTermination()
        finally:
            query.stop()
        return found


async def test_a_stream_of_changes_goes_on_where_it_stopped(spark: Spark, tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    options = {"table": "changes", "max_commits_per_trigger": "2"}
    follower = Follower(spark.session, uri, tmp_path / "checkpoint", **options)
    async with open_store(uri) as store:
        await trade(store, 3)
        first = await asyncio.to_thread(follower.run)
        assert [{row["_commit_version"] for row in rows} for rows in first] == [{1, 2}, {3}]
        await trade(store, 2, seed=5)
        with pytest.raises(PySparkException, match="the sink is broken"):
            await asyncio.to_thread(follower.run, lambda _: True)
        rest = await asyncio.to_thread(follower.run)
        failed, done = (rows for number, rows in follower.batches if number == 2)
        assert sorted(map(repr, failed)) == sorted(map(repr, done)), "a micro-batch that is done again has its rows"
        whole = await everything(store, {"table": "changes"})
        assert sorted(_row(row) for rows in (*first, *rest) for row in rows) == bag(whole)
        assert await asyncio.to_thread(follower.run) == []


async def test_a_stream_of_samples_gives_each_number_once_however_late(spark: Spark, tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    options = {"max_batches_per_trigger": "4", "late": "all"}
    samples = Follower(spark.session, uri, tmp_path / "samples", table="samples", **options)
    async with open_store(uri) as store:
        field = Field(store)
        await field.season(4, agents=2)
        records = {n: Gauge("load", float(n), START + n * 10**9) for n in range(900, 910)}
        hidden = await field.accept("agent-0", "boot-0", records, refer=False)
        first = await asyncio.to_thread(samples.run)
        assert len(first) > 1
        # Numbers of the first are repeated, and those of one whose reference was not written yet; it is written now.
        more = {n: Gauge("load", float(n), START + n * 10**9) for n in range(905, 915)}
        await field.accept("agent-0", "boot-0", more)
        await references.write(store, references.by_time(hidden))
        rest = await asyncio.to_thread(samples.run)
        found = [(row["agent"], row["boot"], row["seq"]) for rows in (*first, *rest) for row in rows]
        assert len(found) == len(set(found))
        whole = (await everything(store, {"table": "samples"})).to_pylist()
        assert sorted(found) == sorted((row["agent"], row["boot"], row["seq"]) for row in whole)
        assert sum(number[2] >= 900 for number in found) == 15


async def test_tables_and_streams_over_s3(spark: Spark, on_s3: OnS3, tmp_path: Path) -> None:
    async with open_store(StoreSpec.parse(on_s3.uri, on_s3.settings)) as store:
        await trade(store, 1)
        await Field(store).season(3, agents=1)
        ours = await everything(store, {"table": "Customer"})
        assert bag(frame(spark.session, on_s3.uri, "Customer", config=on_s3.config).toArrow()) == bag(ours)
        options = {"config": str(on_s3.config), "late": "all"}
        follower = Follower(spark.session, on_s3.uri, tmp_path / "checkpoint", table="accepted", **options)
        [rows] = await asyncio.to_thread(follower.run)
        whole = await everything(store, {"table": "accepted"})
        assert sorted(map(_row, rows)) == bag(whole)
