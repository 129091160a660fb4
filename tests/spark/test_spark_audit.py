"""An audit on Spark says what one in this process says."""

import hashlib
from pathlib import Path

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Engine, audited
from holdfast.pipeline.audited import Audited
from holdfast.telemetry.accept import layout
from tests.spark.conftest import Engines
from tests.unit.pipeline.audit_desk import wrong
from tests.unit.pipeline.field import Field

NOW = pipeline.Options(overlap_ns=0)


async def audit(store: Client, engine: Engine | None = None) -> Audited:
    request = {"scopes": ["ingest", "metrics"], "deep": True}
    (ran,) = await pipeline.run(store, ["audit"], engine=engine, options=NOW, request=request)
    assert ran.status == "success", ran.error
    return await audited.read(store, ran.summary["audit_id"])


async def test_spark_and_one_process_say_the_same(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(3, agents=2, batches=3)
        await pipeline.run(store)
        (lost, hidden, *_), stray = field.manifests, "accepted/v1/stray"
        await store.delete(lost.raw_blob_key)
        await store.delete(layout.accepted_by_blob_key(hidden.frame_sha256, hidden.identity))
        await store.put(stray, b"")
        await store.put(layout.blob_key(hashlib.sha256(b"hello").hexdigest()), b"hello")
        on_spark, here = await audit(store, engine(spec)), await audit(store)
        assert {("missing_blob", lost.key), ("missing_by_blob", hidden.key), ("foreign_object", stray)} <= wrong(here)
        assert wrong(on_spark) == wrong(here)
        assert on_spark.found == here.found
        assert on_spark.checked == here.checked
        assert here.checked["accepted"] == len(field.manifests)
