"""Writing with Spark: frames and streams become commits, each once, in a folder and over S3."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from holdfast.base.config import Settings
from holdfast.base.errors import Conflict
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.format import layout
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.errors import InvalidValue
from holdfast.pipeline.compaction import compact
from holdfast.pipeline.frameload import load
from holdfast.pipeline.session import Spark
from holdfast.pipeline.sink import batch_writer, foreach_batch
from tests.integration.servers import S3Server
from tests.spark.conftest import Engines
from tests.spark.readings import Reading, batches, frame, readings

TYPE = "tests.spark.readings:Reading"


async def test_frames_become_commits(spark: Spark, engine: Engines, tmp_path: Path) -> None:
    # A session of its own: Spark finds the format by itself, and nobody has to register it.
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
        twice = frame(session, 400, 2, parts=1).union(frame(session, 401, 2, parts=1))
        writing = twice.write.format("holdfast").option("store", uri).option("class", TYPE).mode("append")
        with pytest.raises(Exception, match="holdfast-error:conflict: Reading: 1 identities are in the load more than"):
            writing.save()
        frame(session, 340, 20).write.format("holdfast").option("store", uri).option("table", "Reading").mode(
            "overwrite"
        ).save()
        assert set(await readings(store)) == {f"r{each:07}" for each in range(340, 360)}
        assert [key async for key in store.keys(layout.LOADS)] == []
        assert (await verify(store, deep=True)).good

        async with Ontology(store, store.ambient, [Reading]) as onto:
            for number in range(8):
                onto.ensure(Reading(id=f"s{number}", value=number))
                await onto.commit()
        before = await readings(store)
        done = await compact(store, engine=engine(StoreSpec.parse(uri)), apply=True)
        assert [each.published for each in done.done] == [True]
        assert await readings(store) == before
        assert (await verify(store, deep=True)).good


async def test_frames_become_commits_over_s3(spark: Spark, s3_server: S3Server, bucket: str) -> None:
    section = {"endpoint": s3_server.endpoint, "region": "us-east-1", "allow_http": True}
    section |= {"access_key_id": s3_server.access_key, "secret_access_key": s3_server.secret_key}
    spec = StoreSpec.parse(f"s3://{bucket}/some/prefix", Settings.model_validate({"s3": section}))
    async with open_store(spec) as store:
        landed = await load(frame(spark.session, 0, 100), store, Reading, load_id="once")
        again = await load(frame(spark.session, 0, 100, note="later"), store, Reading, load_id="once")
        assert landed.commit is not None
        assert again.commit == landed.commit
        assert len(await readings(store)) == 100
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
    return writing.trigger(availableNow=True).start()


@pytest.mark.parametrize("through", ["format", "function"])
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
    ("option", "value", "told"),
    [
        ("if_head", "abc", "holdfast-error:invalid: option if_head: 'abc' is no commit"),
        ("class", "no.such.module:Customer", "holdfast-error:invalid: no.such.module:Customer: No module named 'no'"),
        ("class", "Customer", "holdfast-error:invalid: 'Customer' is no entity or relation type"),
        ("table", "Product", "holdfast-error:invalid: both class and table say what to write"),
    ],
)
def test_an_option_that_means_nothing_is_told_before_a_task_starts(
    tmp_path: Path, option: str, value: str, told: str
) -> None:
    given = {"store": f"file:{tmp_path}", "class": TYPE, option: value}
    with pytest.raises(RuntimeError, match=re.escape(told)):
        batch_writer(given, StructType(), overwrite=False)
