"""The pipeline on Spark, in a folder and over S3: the rows that plain Python computes, and those of one process."""

from pathlib import Path

from holdfast import pipeline
from holdfast.base.config import Settings
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from tests.integration.servers import S3Server
from tests.spark.conftest import Engines
from tests.unit.pipeline.field import Field, agrees, derived_keys


async def test_rows_in_a_folder_are_those_of_plain_python_and_of_one_process(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store, open_store("memory:") as other:
        field, same = Field(store), Field(other)
        await field.season(3, agents=4)
        await same.season(3, agents=4)
        divided = pipeline.Options(records_per_unit=20, merge_after_ns=0)
        ran = await pipeline.run(store, engine=engine(spec), options=divided)
        await pipeline.run(other, options=divided)
        assert {each.status for each in ran} == {"success"}
        [merged] = [each.summary for each in ran if each.job == "merge"]
        assert merged["replaced"] > merged["chunks"] > 0
        assert await agrees(store, field.batches) > 20
        assert await derived_keys(store) == await derived_keys(other)


async def test_rows_over_s3_are_those_of_plain_python(engine: Engines, s3_server: S3Server, bucket: str) -> None:
    settings = Settings.model_validate(
        {
            "s3": {
                "endpoint": s3_server.endpoint,
                "region": "us-east-1",
                "access_key_id": s3_server.access_key,
                "secret_access_key": s3_server.secret_key,
                "allow_http": True,
            }
        }
    )
    spec = StoreSpec.parse(f"s3://{bucket}/some/prefix", settings)
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(4)
        await pipeline.run(store, engine=engine(spec))
        assert await agrees(store, field.batches) > 20


async def test_a_task_that_fails_names_the_error_and_its_run_is_on_record(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    nowhere = StoreSpec.parse("file:/proc/nowhere")
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(5)
        ran = await pipeline.run(store, engine=engine(nowhere))
        assert [each.status for each in ran] == ["failed"]
        assert "a task failed for good" in (ran[0].error or "")
        [(summary, _)] = await pipeline.history(store)
        assert summary.status == "failed"
