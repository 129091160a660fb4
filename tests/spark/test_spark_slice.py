"""The pipeline on Spark, in a folder and over S3: the rows that plain Python computes, and those of one process."""

from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import pipeline
from holdfast.base.config import Settings
from holdfast.base.errors import Denied
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.tasks import InTask
from holdfast.telemetry.rollup.manifest import Kind
from tests.integration.servers import S3Server
from tests.spark.conftest import Engines
from tests.unit.pipeline.field import Field, agrees, derived_keys, generations

JOBS = ["reconcile", "derive"]


async def test_rows_in_a_folder_are_those_of_plain_python_and_of_one_process(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store, open_store("memory:") as other:
        field, same = Field(store), Field(other)
        for each in (field, same):
            await each.season(3, agents=3, batches=3)
        divided = pipeline.Options(records_per_unit=20)
        ran = await pipeline.run(store, JOBS, engine=engine(spec), options=divided)
        await pipeline.run(other, JOBS, options=divided)
        assert {each.status for each in ran} == {"success"}
        assert max(each.buckets for each in await generations(store, Kind.ROLLUP)) > 1
        assert await agrees(store, field.batches) > 20
        assert await derived_keys(store) == await derived_keys(other)


async def test_rows_over_s3_with_keys_that_only_the_driver_has(
    engine: Engines, s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)  # the JVM and its workers were started before this
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    s3 = {"endpoint": s3_server.endpoint, "region": "us-east-1", "allow_http": True}
    spec = StoreSpec.parse(f"s3://{bucket}/some/prefix", Settings.model_validate({"s3": s3}))
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(4, agents=2, batches=2)
        [ran] = await pipeline.run(store, ["reconcile"], engine=engine(spec))
        assert ran.summary["batches"] == len(field.batches)
        await pipeline.run(store, ["derive"])
        assert await agrees(store, field.batches) > 5


def test_a_task_without_keys_says_what_to_set(tmp_path: Path) -> None:
    async def work(store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for _ in given:
            raise Denied("the store refuses: no credentials")
        yield pa.RecordBatch.from_pylist([{"n": 1}])

    rows = iter([pa.RecordBatch.from_pylist([{"n": 1}])])
    with pytest.raises(RuntimeError, match=r"^holdfast-error:denied: the store refuses.*spark.executorEnv.NAME"):
        list(InTask(StoreSpec.parse(f"file:{tmp_path}"), work)(rows))


async def test_a_task_that_fails_names_the_error_and_its_run_is_on_record(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    nowhere = StoreSpec.parse("file:/proc/nowhere")
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(5)
        ran = await pipeline.run(store, engine=engine(nowhere))
        assert [each.status for each in ran] == ["failed"]
        assert "a task failed for good" in (ran[0].error or "")
        assert "no store at" in (ran[0].error or "")
        [(summary, _)] = await pipeline.history(store)
        assert summary.status == "failed"
