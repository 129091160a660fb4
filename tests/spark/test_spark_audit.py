"""An audit on Spark says what one in this process says."""

from pathlib import Path

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Engine, audited
from holdfast.pipeline.audited import Audited
from tests.spark.conftest import Engines
from tests.unit.pipeline.audit_desk import wrong
from tests.unit.pipeline.field import Field

NOW = pipeline.Options(overlap_ns=0)


async def audit(store: Client, engine: Engine | None = None) -> Audited:
    (ran,) = await pipeline.run(store, ["audit"], engine=engine, options=NOW)
    assert ran.status == "success", ran.error
    return await audited.read(store, ran.summary["audit_id"])


async def test_spark_and_one_process_say_the_same(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(3, agents=2, batches=3)
        await pipeline.run(store)
        lost, stray = field.manifests[0], "accepted/v1/stray"
        await store.delete(lost.raw_blob_key)
        await store.put(stray, b"")
        on_spark, here = await audit(store, engine(spec)), await audit(store)
        assert wrong(on_spark) == wrong(here) == {("missing_blob", lost.key), ("foreign_object", stray)}
        assert on_spark.checked["accepted"] == here.checked["accepted"] == len(field.manifests)
