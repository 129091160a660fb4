"""A standalone cluster: executors are killed below the pipeline, a load and a stream, under speculation; then its
driver, with a stream at every stage. What comes of it is what comes without trouble, once. And Spark Connect.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.ontology.format import layout
from holdfast.ontology.maintain import leftovers
from holdfast.ontology.maintain.verify.verify import verify
from holdfast.pipeline.engine.session import Spark
from holdfast.pipeline.gc import ontology as garbage
from holdfast.pipeline.gc.sweep import intents
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup.manifest import Kind
from tests.spark.cluster import PATIENCE_S, SPARK_HOME, Driver, driver_at_a_cluster, executor_of, java_options
from tests.spark.conftest import forget_sessions
from tests.spark.readings import batches, readings, waiting
from tests.spark.test_spark_jobs import audit
from tests.spark.test_spark_write import arrived, written
from tests.tidy.tree import ROOT
from tests.unit.pipeline.audit_desk import remarks
from tests.unit.pipeline.field import SECOND, START, Field, agrees, generations

DAY_S = 24 * 3600


@pytest.fixture(scope="module")
def driver(private_temporary_folder: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with driver_at_a_cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


async def prepared(uri: str) -> Field:
    """Batches that share no numbers: steps for those that do would take longer, and are no other kind of step."""
    async with open_store(uri) as store:
        field = Field(store)
        for number in range(8):
            begin = number // 2 * 10
            records = {n: Gauge("load", float(n), START + n * 60 * SECOND) for n in range(begin, begin + 5)}
            await field.accept(f"agent-{number % 2}", "boot", records)
        return field


async def compared(uri: str, field: Field) -> None:
    """What is not derived yet is derived here."""
    async with open_store(uri) as store:
        await pipeline.run(store, ["derive"])
        assert {summary.status for summary, _ in await pipeline.history(store)} == {"success"}
        assert await agrees(store, field.batches) > 10
        assert all(each.number == 1 for each in await generations(store, Kind.ROLLUP))


async def seen(uri: str, numbers: list[int], rows: int) -> None:
    """These batches, each once, and nothing wrong; what is left of loads is reported, and can be swept."""
    async with open_store(uri) as store:
        assert await batches(store) == numbers
        assert len(await readings(store)) == rows
        report = await verify(store, deep=True)
        assert report.good
        left = await leftovers.staged_loads(store)
        assert {each.key for each in report.findings if each.rule.name == "staged_load"} == {
            layout.load_prefix(each.load) for each in left
        }
        assert len(await leftovers.sweep(store, age_ns=-(10**15))) == sum(len(each.keys) for each in left)


@pytest.mark.timeout(5 * PATIENCE_S)
def test_an_executor_is_killed_below_the_pipeline(driver: Driver, tmp_path: Path, gate: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    field = asyncio.run(prepared(uri))
    driver.tell("reconcile", store=uri, gate=str(gate))
    driver.until(lambda: bool(waiting(gate, "task")))
    executor_of(waiting(gate, "task")[0]).kill()
    (gate / "go").touch()
    assert driver.answer() == ["success"]
    asyncio.run(compared(uri, field))


def one_of_two_killed(driver: Driver, gate: Path) -> None:
    """A task waits, and so does its copy on the other host: one of their executors is killed."""
    driver.until(lambda: len(waiting(gate, "task")) > 1)
    executor_of(waiting(gate, "task")[0]).kill()
    (gate / "go").touch()


@pytest.mark.soak
@pytest.mark.timeout(5 * PATIENCE_S)
def test_an_executor_is_killed_while_a_load_is_speculated(driver: Driver, tmp_path: Path, gate: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    driver.tell("load", store=uri, gate=str(gate))
    one_of_two_killed(driver, gate)
    assert driver.answer() == 100
    asyncio.run(seen(uri, [0], 100))


@pytest.mark.soak
@pytest.mark.timeout(5 * PATIENCE_S)
def test_an_executor_is_killed_while_a_stream_is_speculated(driver: Driver, tmp_path: Path, gate: Path) -> None:
    where = streamed(tmp_path, "stream", files=2)
    driver.tell("stream", where=where, gate=str(gate))
    one_of_two_killed(driver, gate)
    assert driver.answer() == ""
    asyncio.run(seen(where["store"], [0], 20))


def streamed(folder: Path, name: str, files: int) -> dict[str, str]:
    """Where a stream reads and writes."""
    place = folder / name
    place.mkdir()
    for number in range(files):
        arrived(place / "files", number, 10)
    return {"store": f"file:{place / 'store'}", "files": str(place / "files"), "log": str(place / "log")}


@pytest.mark.soak
@pytest.mark.timeout(5 * PATIENCE_S)
def test_a_driver_is_killed_with_streams_at_every_stage(
    driver: Driver, spark: Spark, tmp_path: Path, gate: Path
) -> None:
    """Before anything is staged; when all is staged; when it is committed, and Spark may not know."""
    before, staged = streamed(tmp_path, "before", files=1), streamed(tmp_path, "staged", files=1)
    committed = streamed(tmp_path, "committed", files=2)
    waits = {**staged, "class": "tests.spark.gated_reading:Reading"}
    driver.tell("streams", gated=before, gate=str(gate), others=[waits, committed])
    driver.answer()
    head = Path(committed["store"].removeprefix("file:"), layout.HEAD)
    driver.until(lambda: bool(waiting(gate, "task") and waiting(driver.commits, "commit")) and head.exists())
    driver.kill()
    asyncio.run(left_behind(before, staged))
    streams = [written(spark.session, each) for each in (before, staged, committed)]
    for each in streams:
        assert each.awaitTermination(PATIENCE_S)
        assert each.exception() is None
    asyncio.run(orphans_are_told_and_go(staged["store"]))
    for place, numbers in ((before, [0]), (staged, [0]), (committed, [0, 1])):
        asyncio.run(seen(place["store"], numbers, 10 * len(numbers)))


async def left_behind(before: dict[str, str], staged: dict[str, str]) -> None:
    async with open_store(before["store"]) as store:
        assert [key async for key in store.keys("")] == []
    async with open_store(staged["store"]) as store:
        assert [each.load for each in await leftovers.staged_loads(store)] != []
        assert await store.find(layout.HEAD) is None


async def orphans_are_told_and_go(uri: str) -> None:
    """What a killed sink has staged: the audit tells it, gc keeps it for a day, and takes it then, on record."""
    async with open_store(uri) as store:
        [left] = await leftovers.staged_loads(store)
        prefix = layout.load_prefix(left.load)
        record = await audit(store)
        assert record.good
        assert ("ontology_staged_load", prefix) in remarks(record)
        assert (await collected(store))["kept"] == {garbage.ALIVE: 1}
        for key in left.keys:
            path = Path(uri.removeprefix("file:"), key)
            os.utime(path, (long_ago := time.time() - 2 * DAY_S, long_ago))
        done = await collected(store)
        assert (done["removed"], done["kept"]) == ({garbage.LOAD: len(left.keys)}, {})
        gone = {key async for each in intents(store, done["run_id"]) for key, _, _ in each.objects}
        assert gone == set(left.keys)
        assert [key async for key in store.keys(layout.LOADS)] == []
        assert ("ontology_staged_load", prefix) not in remarks(await audit(store))


async def collected(store: Client) -> dict[str, Any]:
    (ran,) = await pipeline.run(store, ["gc"], request={"kinds": ["ontology"], "apply": True})
    assert ran.status == "success", ran.error
    return {**ran.summary["kinds"]["ontology"], "run_id": ran.run_id}


@pytest.mark.soak
@pytest.mark.timeout(5 * PATIENCE_S)
def test_spark_submit_runs_jobs_on_executors_whose_python_has_nothing(driver: Driver, tmp_path: Path) -> None:
    """With the entry file and the packed environment that ``deploy/spark`` has."""
    driver.kill()  # it holds all cores
    uri, bare, packed = f"file:{tmp_path / 'store'}", tmp_path / "bare", tmp_path / "holdfast-env.zip"
    field = asyncio.run(prepared(uri))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    subprocess.run([sys.executable, str(ROOT / "deploy/spark/pack.py"), str(packed)], check=True, capture_output=True)
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": "holdfast_env",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": str(bare / "bin" / "python"),
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command = [str(SPARK_HOME / "bin/spark-submit"), "--master", driver.master, *options]
    command += ["--archives", f"{packed}#holdfast_env", str(ROOT / "deploy/spark/submit.py")]
    done = subprocess.run(
        [*command, "--store", uri, "pipeline", "run", "reconcile", "derive", "--json"],
        env={**os.environ, **java_options(tmp_path), "SPARK_HOME": str(SPARK_HOME)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert {each["status"] for each in json.loads(done.stdout)} == {"success"}
    asyncio.run(compared(uri, field))


@pytest.mark.timeout(3 * PATIENCE_S)
def test_spark_connect_runs_the_pipeline_and_reads_tables(spark: Spark, connect: str, tmp_path: Path) -> None:
    """And when the server does not know its session any more, it says so."""
    uri = f"file:{tmp_path / 'store'}"
    field = asyncio.run(prepared(uri))
    command = [sys.executable, "-m", "tests.spark.connect_driver", uri, connect]
    with (
        (tmp_path / "errors").open("w") as errors,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=errors, text=True, cwd=ROOT) as driver,
    ):
        assert driver.stdin is not None
        assert driver.stdout is not None
        line = driver.stdout.readline()
        forget_sessions(spark)
        rest, _ = driver.communicate("go on\n", timeout=2 * PATIENCE_S)
    assert driver.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    found: dict[str, Any] = json.loads(line)
    assert found == {"statuses": ["success"], "rows": len(field.manifests)}
    asyncio.run(compared(uri, field))
    assert json.loads(rest).startswith("the Spark session is gone: it, its JVM or its server has ended")
