"""Spark and one process give the same answers, on random stores with overlaps, late data, conflicts and damage."""

import random
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.pipeline.generated import listed
from bench.pipeline.memory import watched
from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.objects.store import ADDRESSED, OVERWRITE
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Engine, Inline
from holdfast.pipeline import layout as pipeline_layout
from holdfast.pipeline.gc.options import GcOptions
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited
from holdfast.pipeline.jobs.gc import Gc
from holdfast.pipeline.options import Env
from holdfast.telemetry.accept import layout
from holdfast.telemetry.rollup import layout as rollup
from tests.spark.conftest import Engines
from tests.unit.pipeline.audit_desk import wrong
from tests.unit.pipeline.field import Field, agrees
from tests.unit.pipeline.gc_desk import frame

pytestmark = pytest.mark.usefixtures("without_duckdb")
NOW = replace(pipeline.Options(overlap_ns=0), gc=GcOptions(horizon_ns=0, grace_ns=0))
KINDS = ["orphans", "derived", "ontology", "runs"]


async def audit(store: Client, engine: Engine | None = None) -> Audited:
    request = {"scopes": ["ingest", "metrics"], "deep": True}
    (ran,) = await pipeline.run(store, ["audit"], engine=engine, options=NOW, request=request)
    assert ran.status == "success", ran.error
    return await audited.read(store, ran.summary["audit_id"])


async def planned(store: Client, engine: Engine) -> Document:
    found = await Gc(Env(store, store.ambient, engine, NOW)).preview({"kinds": KINDS})
    return dict(found["kinds"])


async def derived_twice(store: Client, rng: random.Random) -> Field:
    """Batches that overlap; more of them come when hours are derived already; frames that lost a conflict."""
    field = Field(store)
    await field.season(rng.randrange(1000), agents=2, batches=rng.randint(2, 5))
    await pipeline.run(store)
    await field.season(rng.randrange(1000), agents=2, batches=rng.randint(1, 4), gap=1_000)
    await pipeline.run(store, request={"full": True})
    for number in range(rng.randint(1, 4)):
        for variant in (0, 1):
            lost = frame(number, variant, agent="twice")
            await store.put(lost.blob_key, lost.body, ADDRESSED)
    return field


async def damage(store: Client, field: Field, rng: random.Random) -> None:
    lost, hidden, torn = rng.sample(field.manifests, 3)
    await store.delete(lost.raw_blob_key)
    await store.delete(layout.accepted_by_blob_key(hidden.frame_sha256, hidden.identity))
    await store.put(torn.key, b"{", OVERWRITE)
    await store.put(f"{layout.ACCEPTED}stray-{rng.randrange(9)}", b"")
    generations = [key async for key in store.keys(rollup.MANIFESTS) if rollup.generation_in(key) is not None]
    await store.put(rng.choice(generations), b"{", OVERWRITE)


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.soak)])
async def test_audit_and_gc_give_the_same_on_both_engines(engine: Engines, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        field = await derived_twice(store, rng)
        await damage(store, field, rng)
        on_spark, here = await audit(store, engine(spec)), await audit(store)
        assert {"missing_blob", "foreign_object", "corrupt_manifest"} <= here.found.keys()
        assert (wrong(on_spark), on_spark.found, on_spark.checked) == (wrong(here), here.found, here.checked)
        before = [key async for key in store.keys("")]
        there = await planned(store, engine(spec))
        assert there == await planned(store, Inline())
        assert there["derived"]["removed"]
        assert there["orphans"]["kept"] or there["orphans"]["did"]
        assert [key async for key in store.keys("")] == before


async def test_garbage_goes_by_tasks_on_spark_and_what_is_current_stays(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store:
        field = await derived_twice(store, random.Random(7))
        await audit(store)
        wanted = await planned(store, Inline())
        request = {"kinds": KINDS, "apply": True}
        [ran] = await pipeline.run(store, ["gc"], engine=engine(spec), options=NOW, request=request)
        assert ran.status == "success"
        assert {kind: found["removed"] for kind, found in ran.summary["kinds"].items()} == {
            kind: found["removed"] for kind, found in wanted.items()
        }
        assert ran.summary["removed"] > 10
        assert await agrees(store, field.batches) > 20
        assert (await planned(store, Inline()))["derived"]["removed"].keys() <= {
            "a later generation has taken its place"
        }


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.soak)])
async def test_reconcile_gives_the_same_on_both_engines(engine: Engines, tmp_path: Path, seed: int) -> None:
    """Overlaps, batches that were listed before, conflicts, and objects that cannot be read."""
    rng = random.Random(seed)
    spec = StoreSpec.parse(f"file:{tmp_path / 'store'}")
    async with open_store(spec) as store, open_store("memory:") as other:
        field = Field(store)
        await field.season(rng.randrange(1000), agents=2, batches=4)
        await pipeline.run(store)
        await field.season(rng.randrange(1000), agents=2, batches=3)
        await damage(store, field, rng)
        async for key in store.keys(""):
            await other.put(key, (await store.get(key)).body)
        full = {"full": True}
        (there,) = await pipeline.run(store, ["reconcile"], engine=engine(spec), request=full, takeover=True)
        (here,) = await pipeline.run(other, ["reconcile"], request=full, takeover=True)
        assert there.summary == here.summary
        assert here.summary["overlaps"] > 0
        for prefix in (rollup.BATCHES_BY_HOUR, pipeline_layout.PROBLEMS, pipeline_layout.DUE):
            assert [key async for key in store.keys(prefix)] == [key async for key in other.keys(prefix)]


async def test_the_memory_of_the_driver_does_not_grow_with_the_work(engine: Engines, tmp_path: Path) -> None:
    spec = StoreSpec.parse(f"file:{tmp_path}")
    async with open_store(spec) as store:
        assert await listed(store, engine(spec), 1_000) == 1
        before = psutil.Process().memory_info().rss
        with watched() as peak:
            assert await listed(store, engine(spec), 60_000) == 2
        assert peak.driver - before < 32 * 2**20
