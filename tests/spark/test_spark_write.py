"""Writing with Spark: frames and streams become commits, each once, in a folder and over S3."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from holdfast.base.config import Settings
from holdfast.base.errors import Conflict
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.format import layout
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology, Options
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.model import Mixin
from holdfast.pipeline.engine.session import Spark
from holdfast.pipeline.jobs.compact import compact
from holdfast.pipeline.tables.datasource import frame as table
from holdfast.pipeline.write.frame import load
from holdfast.pipeline.write.sink import batch_writer, foreach_batch
from tests.spark.conftest import Engines, OnS3
from tests.spark.mortal_reading import mark
from tests.spark.readings import Reading, batches, frame, readings
from tests.unit.ontology.shop import Customer, Everything, everything

TYPE = "tests.spark.readings:Reading"


async def test_frames_become_commits(spark: Spark, engine: Engines, tmp_path: Path) -> None:
    # A session of its own: Spark finds the format by itself, and need not register it.
    uri, session = f"file:{tmp_path / 'store'}", spark.session.newSession()
    async with open_store(uri) as store:
        first = await load(frame(session, 0, 300), store, Reading, load_id="first")
        assert first.commit is not None
        assert (first.commit.commit_id, first.tally.added) == (1, 300)
        assert (await load(frame(session, 0, 300, note="later"), store, Reading, load_id="first")).replayed
        with pytest.raises(Conflict, match="100 objects are there already, with other fields"):
            await load(frame(session, 200, 150, note="x"), store, "Reading")
        with pytest.raises(InvalidValue, match=r"Reading\.value"):
            await load(frame(session, 0, 3).selectExpr("id", "'many' AS value"), store, Reading)

        writing = frame(session, 200, 150, note="x").write.format("holdfast").option("store", uri)
        writing.option("table", "Reading").option("on_conflict", "replace").mode("append").save()
        assert len(found := await readings(store)) == 350
        assert (found["r0000100"], found["r0000200"]) == ((200, None), (400, "x"))
        twice = frame(session, 400, 2, parts=1).union(frame(session, 401, 2, parts=1, note="other"))
        writing = twice.write.format("holdfast").option("store", uri).option("class", TYPE).mode("append")
        with pytest.raises(Exception, match="holdfast-error:conflict: Reading: 1 identities are in the load more than"):
            writing.save()
        frame(session, 340, 20).write.format("holdfast").option("store", uri).option("table", "Reading").mode(
            "overwrite"
        ).save()
        assert set(await readings(store)) == {f"r{each:07}" for each in range(340, 360)}
        assert [key async for key in store.keys(layout.LOADS)] == []
        assert (await verify(store, deep=True)).good

        async with Ontology(store, store.ambient, [Reading], Options(compaction=False)) as onto:
            for number in range(8):
                onto.ensure(Reading(id=f"s{number}", value=number))
                await onto.commit()
        before = await readings(store)
        done = await compact(store, engine=engine(StoreSpec.parse(uri)), apply=True)
        assert [each.published for each in done.done] == [True]
        assert await readings(store) == before
        assert (await verify(store, deep=True)).good


async def rows_of(store: Client, *types: type[Mixin]) -> dict[str, list[str]]:
    """What a store has of these types, as texts."""
    async with Ontology(store, store.ambient, types) as onto:
        return {each.__name__: sorted(map(repr, await onto.all(each))) for each in types}


async def test_what_was_read_is_written_back_and_changes_are_replayed(spark: Spark, tmp_path: Path) -> None:
    """Deletions included, by a stream; and maps, structs and JSON, by a batch."""
    session, uri, other = spark.session, f"file:{tmp_path / 'store'}", f"file:{tmp_path / 'other'}"
    complete = everything(amount=Decimal("1.5"), counts={"x": 2}, place={"lat": 1.0, "lng": 2.0}, either="3")
    async with open_store(uri) as store, open_store(other) as copy:
        async with Ontology(store, store.ambient, [Customer, Everything]) as onto:
            onto.ensure([complete, *(Customer(id=f"c{each}", name="first") for each in range(5))])
            await onto.commit()
            onto.ensure(Customer(id="c0", name="second", tier="Gold"))
            onto.retract(Customer, "c1")
            await onto.commit()
            onto.ensure(Customer(id="c1", name="again"))
            onto.retract(Customer, "c2")
            await onto.commit()

        read = table(session, uri, "Everything")
        assert (read.schema["counts"].dataType.simpleString(), read.schema["either"].metadata) == (
            "map<string,bigint>",
            {"holdfast": "json"},
        )
        for place in (uri, other):
            writing = read.write.format("holdfast").option("store", place).mode("append")
            writing.option("class", "tests.unit.ontology.shop:Everything").option("on_conflict", "replace").save()
        assert (await read_head(store)).commit_id == 3, "nothing differs from what was read"

        changes = session.readStream.format("holdfast").option("store", uri).option("table", "changes")
        changes = changes.option("type", "Customer").option("max_commits_per_trigger", "2").load()
        assert changes.schema["_commit_timestamp"].dataType.simpleString() == "timestamp"
        writing = changes.writeStream.format("holdfast").option("store", other)
        writing = writing.option("class", "tests.unit.ontology.shop:Customer")
        query = writing.option("checkpointLocation", str(tmp_path / "log")).trigger(availableNow=True).start()
        assert query.awaitTermination(240)
        assert query.exception() is None
        assert await rows_of(copy, Customer, Everything) == await rows_of(store, Customer, Everything)
        assert len((await rows_of(copy, Customer))["Customer"]) == 4


async def test_a_frame_is_refused_before_anything_is_committed(spark: Spark, tmp_path: Path) -> None:
    """A table of Spark's catalog that could not be read again, an empty frame in place of everything."""
    session, uri = spark.session, f"file:{tmp_path / 'store'}"
    async with open_store(uri) as store:
        await load(frame(session, 0, 3, parts=1), store, Reading)
        rows = frame(session, 3, 2, parts=1).write.format("holdfast").option("store", uri).option("table", "Reading")
        with pytest.raises(PySparkException, match="holdfast-error:invalid: saveAsTable and CREATE TABLE"):
            rows.mode("append").saveAsTable("readings")
        session.sql(f"CREATE TABLE readings USING holdfast OPTIONS (store '{uri}', table 'Reading')")
        try:
            assert session.table("readings").where("id = 'r0000001'").collect()[0]["value"] == 2
            with pytest.raises(PySparkException, match="holdfast-error:invalid: it is not said which store to write"):
                session.sql("INSERT INTO readings BY NAME SELECT 'r0000009' AS id, 18L AS value")
            assert (await read_head(store)).commit_id == 1
            rows.mode("append").saveAsTable("readings")
            assert session.table("readings").count() == 5
        finally:
            session.sql("DROP TABLE readings")
        nothing = frame(session, 0, 0, parts=1).write.format("holdfast").option("store", uri)
        nothing = nothing.option("table", "Reading").mode("overwrite")
        with pytest.raises(PySparkException, match="holdfast-error:invalid: there are no rows, and they would take"):
            nothing.save()
        assert len(await readings(store)) == 5
        gone = session.createDataFrame([("r0000001", True)], "id string, gone boolean").write.format("holdfast")
        gone.option("store", uri).option("table", "Reading").option("retract_column", "gone").mode("append").save()
        assert "r0000001" not in await readings(store)
        nothing.option("allow_empty", "true").save()
        assert await readings(store) == {}


async def test_frames_become_commits_over_s3(spark: Spark, on_s3: OnS3, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come from the environment of the driver alone, or from a file that an option names."""
    s3 = on_s3.settings.s3
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", str(s3.access_key_id))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", Path(str(s3.secret_access_key_file)).read_text())
    by_environment = {"endpoint": s3.endpoint, "region": s3.region, "allow_http": True}
    async with open_store(StoreSpec.parse(on_s3.uri, Settings.model_validate({"s3": by_environment}))) as store:
        landed = await load(frame(spark.session, 0, 100), store, Reading, load_id="once")
        assert landed.commit is not None
        rows = frame(spark.session, 100, 10).write.format("holdfast").option("store", on_s3.uri)
        rows.option("table", "Reading").option("config", str(on_s3.config)).mode("append").save()
        assert len(await readings(store)) == 110
        assert (await verify(store, deep=True)).good


def arrived(folder: Path, number: int, count: int) -> None:
    """A file of rows, as a stream finds it."""
    folder.mkdir(exist_ok=True)
    rows = [{"id": f"r{each:04}", "value": each} for each in range(number * count, number * count + count)]
    (folder / f"{number}.json").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")


def stream(session: Any, folder: Path, at_once: int = 1) -> Any:
    reading = session.readStream.schema("id STRING, value BIGINT").option("maxFilesPerTrigger", at_once)
    return reading.json(str(folder))


def written(session: Any, where: Mapping[str, str], at_once: int = 1, through: Any = None) -> Any:
    """A stream of all ``files`` that are there into a ``store``, with its ``log`` and perhaps a ``class``."""
    frame = stream(session, Path(where["files"]), at_once)
    if through is not None:
        frame = frame.mapInArrow(through, frame.schema)
    writing = frame.writeStream.format("holdfast").option("store", where["store"])
    writing = writing.option("class", where.get("class", TYPE)).option("checkpointLocation", where["log"])
    if "config" in where:
        writing = writing.option("config", where["config"])
    return writing.trigger(availableNow=True).start()


@pytest.mark.parametrize("how", ["batch", "stream"])
async def test_a_kill_between_data_files_and_head_leaves_nothing_visible_and_the_next_attempt_commits_once(
    spark: Spark, tmp_path: Path, how: str
) -> None:
    where = {"store": f"file:{tmp_path / 'store'}", "files": str(tmp_path / "files"), "log": str(tmp_path / "log")}
    where["class"], where["config"] = "tests.spark.mortal_reading:Reading", str(tmp_path / "holdfast.toml")
    Path(where["config"]).write_text("[ontology]\ns3_lease_ttl_ms = 1000\n", encoding="utf-8")  # of the dead one's lock
    arrived(Path(where["files"]), 0, 10)

    def write() -> None:
        if how == "stream":
            written(spark.session, where).awaitTermination()
            return
        rows = frame(spark.session, 0, 10).write.format("holdfast").option("store", where["store"])
        rows = rows.option("class", where["class"]).option("config", where["config"])
        rows.option("load_id", "once").mode("append").save()

    mark().touch()
    with pytest.raises((PySparkException, Py4JError)):
        write()
    assert not mark().exists()  # it came that far
    async with open_store(where["store"]) as store:
        assert await store.find(layout.HEAD) is None
        assert [key async for key in store.keys(layout.COMMITS) if key.endswith("/entities/Reading.parquet")]
        write()
        assert await batches(store) == [0]
        assert len(await readings(store)) == 10
        assert (await verify(store, deep=True)).good


@pytest.mark.parametrize("through", ["format", pytest.param("function", marks=pytest.mark.soak)])
async def test_a_micro_batch_that_is_replayed_writes_nothing(spark: Spark, tmp_path: Path, through: str) -> None:
    """What a driver leaves that was killed when the batch was committed, and Spark had not written that down."""
    uri, files, log = f"file:{tmp_path / 'store'}", tmp_path / "files", tmp_path / "log"
    async with open_store(uri) as store:
        await load(frame(spark.session, 0, 1, parts=1), store, Reading)

        def run() -> None:
            writing = stream(spark.session, files).writeStream.option("checkpointLocation", str(log))
            if through == "format":
                writing = writing.format("holdfast").option("store", uri).option("table", "Reading")
            else:
                writing = writing.foreachBatch(foreach_batch(uri, "Reading"))
            query = writing.trigger(availableNow=True).start()
            assert query.awaitTermination(240)
            assert query.exception() is None

        for number in range(2):
            arrived(files, number, 10)
        run()
        assert await batches(store) == [0, 1]
        await load(frame(spark.session, 0, 1, parts=1, note="since"), store, Reading, on_conflict="replace")
        (log / "commits" / "1").unlink()
        (log / "commits" / ".1.crc").unlink(missing_ok=True)
        arrived(files, 2, 10)
        run()
        assert await batches(store) == [0, 1, 2]
        assert len(await readings(store)) == 31
        assert [key async for key in store.keys(layout.LOADS)] == []


@pytest.mark.parametrize(
    ("option", "value", "answer"),
    [
        ("if_head", "abc", "holdfast-error:invalid: option if_head: 'abc' is no whole number from 0 on"),
        ("class", "no.such.module:Customer", "holdfast-error:invalid: no.such.module:Customer: No module named 'no'"),
        ("class", "Customer", "holdfast-error:invalid: 'Customer' is no entity or relation type"),
        ("table", "Product", "holdfast-error:invalid: both class and table say what to write"),
        (
            "latest_bye",
            "value",
            "holdfast-error:invalid: a write has no option 'latest_bye' (hint: did you mean latest_by",
        ),
        ("retract_column", "op", "holdfast-error:invalid: retract_column is 'op', and there is no such column"),
        ("on_conflict", "skip", "holdfast-error:invalid: Reading.id is missing among the columns"),
    ],
)
def test_an_unknown_option_is_an_error_before_a_task_starts(
    tmp_path: Path, option: str, value: str, answer: str
) -> None:
    given = {"store": f"file:{tmp_path}", "class": TYPE, option: value}
    with pytest.raises(RuntimeError, match=re.escape(answer)):
        batch_writer(given, StructType(), overwrite=False)
