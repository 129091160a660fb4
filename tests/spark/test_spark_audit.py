"""An audit on Spark says what one in this process says: of a store in a folder, and of one over S3."""

from pathlib import Path

import pytest

from holdfast import pipeline
from holdfast.base.config import Settings
from holdfast.objects.spec import StoreSpec
from holdfast.objects.stack import OpenStore, open_store
from holdfast.pipeline import Engine, audited
from holdfast.pipeline.audited import Audited
from tests.integration.servers import S3Server
from tests.spark.conftest import Engines
from tests.unit.pipeline.audit_desk import wrong
from tests.unit.pipeline.field import Field

NOW = pipeline.Options(overlap_ns=0)


async def audit(store: OpenStore, engine: Engine | None = None) -> Audited:
    (ran,) = await pipeline.run(store, ["audit"], engine=engine, options=NOW, request={"deep": True})
    assert ran.status == "success", ran.error
    return await audited.read(store, ran.summary["audit_id"])


@pytest.fixture(params=["file", "s3"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSpec:
    if request.param == "file":
        return StoreSpec.parse(f"file:{tmp_path / 'store'}")
    server: S3Server = request.getfixturevalue("s3_server")
    settings = Settings.model_validate(
        {
            "s3": {
                "endpoint": server.endpoint,
                "region": "us-east-1",
                "access_key_id": server.access_key,
                "secret_access_key": server.secret_key,
                "allow_http": True,
            }
        }
    )
    return StoreSpec.parse(f"s3://{request.getfixturevalue('bucket')}/some/prefix", settings)


async def test_spark_and_one_process_say_the_same(engine: Engines, spec: StoreSpec) -> None:
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(3, agents=4)
        await pipeline.run(store)
        lost, stray = field.manifests[0], "accepted/v1/stray"
        await store.delete(lost.raw_blob_key)
        await store.put(stray, b"")
        # A store that keeps seconds judges what is a second old.
        while not {("foreign_object", stray)} <= wrong(on_spark := await audit(store, engine(spec))):
            assert on_spark.through_unix_ns
        here = await audit(store)
        assert wrong(on_spark) == wrong(here) == {("missing_blob", lost.key), ("foreign_object", stray)}
        assert on_spark.checked["accepted"] == here.checked["accepted"] == len(field.manifests)
