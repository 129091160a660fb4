"""Spark in trouble: executors killed, tasks speculated, drivers killed. The rows stay those of plain Python."""

import asyncio
import os
import subprocess
import sys
import time
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
from tests.tidy.tree import ROOT
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
    uri, gate = f"file:{tmp_path / 'store'}", tmp_path / "gate"
    gate.mkdir()
    field = asyncio.run(prepared(uri, 21))
    command = [sys.executable, "-m", "tests.spark.gated_driver", uri, str(gate), *SPECULATION]
    with (tmp_path / "errors").open("wb") as errors:
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, cwd=ROOT, env=dict(os.environ))
    try:
        executor_of(first_worker(gate, driver)).kill()
        (gate / "go").touch()
        assert driver.wait(timeout=PATIENCE_S) == 0, (tmp_path / "errors").read_text()
    finally:
        if driver.poll() is None:
            driver.kill()
            driver.wait()
    asyncio.run(compared(uri, field))


def first_worker(gate: Path, driver: "subprocess.Popen[bytes]") -> int:
    """The pid of a worker that has a task, and waits."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline and driver.poll() is None:
        for path in gate.glob("*.worker"):
            return int(path.stem)
        time.sleep(0.02)
    raise AssertionError(f"no task began; the driver ended with {driver.poll()}")


def executor_of(worker: int) -> psutil.Process:
    """The JVM above a worker and its daemon."""
    for process in psutil.Process(worker).parents():
        if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
            return process
    raise AssertionError(f"worker {worker} is no executor's")


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
