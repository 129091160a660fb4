"""Garbage collection on Spark: tasks list their own shards, and give the same sums as one process."""

from dataclasses import replace
from pathlib import Path

from holdfast import pipeline
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.gc.options import GcOptions
from tests.spark.conftest import Engines
from tests.unit.pipeline.field import Field, agrees


async def test_what_is_superseded_goes_by_tasks_on_spark(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        field = Field(store)
        await field.season(3, agents=2)
        await pipeline.run(store, ["reconcile", "rollup", "index"])
        await field.season(4, agents=2, gap=1_000)
        await pipeline.run(store, ["reconcile", "rollup", "index"], request={"full": True})
        options = replace(pipeline.Options(), gc=GcOptions(grace_ns=0))
        request = {"kinds": ["orphans", "derived"], "apply": True}
        [ran] = await pipeline.run(store, ["gc"], engine=engine(spec), options=options, request=request)
        assert ran.status == "success"
        assert ran.summary["removed"] > 10
        assert await agrees(store, field.batches) > 20
        [again] = await pipeline.run(store, ["gc"], options=options, request={**request, "apply": False})
        assert set(again.summary["kinds"]["derived"]["removed"]) <= {"a later generation has taken its place"}
