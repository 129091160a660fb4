"""Spark in trouble: executors killed, tasks speculated, drivers killed. The rows stay those of plain Python."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from holdfast import pipeline
from holdfast.metrics.manifest import Kind
from holdfast.objects.spec import StoreSpec
from holdfast.objects.stack import open_store
from tests.integration.run_places import folder
from tests.integration.test_pipeline_kill import QUICK, killed
from tests.spark.conftest import Engines
from tests.unit.pipeline.field import Field, agrees, generations

PATIENCE_S = 240
SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=50ms",
    "spark.speculation.multiplier=1.01",
    "spark.speculation.quantile=0.1",
    "spark.executor.memory=512m",
)


async def prepared(uri: str, seed: int) -> Field:
    async with open_store(uri) as store:
        field = Field(store)
        await field.season(seed, agents=4, hours=6)
        return field


async def compared(uri: str, field: Field) -> None:
    async with open_store(uri) as store:
        assert await agrees(store, field.batches) > 20
        assert all(each.number == 1 for each in await generations(store, Kind.ROLLUP))
        assert {summary.status for summary, _ in await pipeline.history(store)} == {"success"}


@pytest.mark.timeout(2 * PATIENCE_S)
def test_an_executor_is_killed_while_tasks_are_speculated(tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    field = asyncio.run(prepared(uri, 21))
    options = [word for each in SPECULATION for word in ("--conf", each)]
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "pipeline",
        "run",
        "reconcile",
        "rollup",
        "--store",
        uri,
        "--master",
        "local-cluster[2,1,512]",
    ]
    with (tmp_path / "errors").open("wb") as errors:
        driver = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL, stderr=errors, env=dict(os.environ))
    try:
        # The first executor that has a Python worker, which is one that has a task.
        victim = awaited(lambda: _busy_executor(driver.pid), driver)
        victim.kill()
        assert driver.wait(timeout=PATIENCE_S) == 0, (tmp_path / "errors").read_text()
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
    asyncio.run(compared(uri, field))


def awaited(look: "Callable[[], psutil.Process | None]", driver: "subprocess.Popen[bytes]") -> psutil.Process:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and driver.poll() is None:
        found = look()
        if found is not None:
            return found
        time.sleep(0.02)
    raise AssertionError(f"no executor had a task; the driver ended with {driver.poll()}")


def _busy_executor(driver: int) -> psutil.Process | None:
    try:
        for process in psutil.Process(driver).children(recursive=True):
            if "pyspark.daemon" in process.cmdline():
                parent = process.parent()
                if parent is not None and any("CoarseGrainedExecutorBackend" in word for word in parent.cmdline()):
                    return parent
    except psutil.Error:  # one of them has just ended
        return None
    return None


@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_run_of_a_killed_driver_is_gone_on_with(engine: Engines, tmp_path: Path) -> None:
    place = folder(tmp_path / "store")
    field = await prepared(place.uri, 22)
    await asyncio.to_thread(killed, place, "manifests/v1/", 2, "before", "local[2]")
    spec = StoreSpec.parse(place.uri)
    async with open_store(spec) as store:
        ran = await pipeline.run(store, engine=engine(spec), options=QUICK)
        assert [(each.job, each.resumed) for each in ran] == [("rollup", True), ("index", False)]
    await compared(place.uri, field)
