"""A driver on Spark is killed: the next one goes on with its run, and the rows stay those of plain Python. Its JVM is
killed: it says so, and ends.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from holdfast import pipeline
from holdfast.base.scratch import sweep
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.session import FOLDER, Spark
from tests.integration.run_places import folder
from tests.integration.test_pipeline_kill import QUICK, killed
from tests.spark.cluster import java_options
from tests.spark.conftest import Engines
from tests.spark.test_spark_cluster import compared, prepared

PATIENCE_S = 240


@pytest.mark.soak
@pytest.mark.timeout(2 * PATIENCE_S)
async def test_a_run_of_a_killed_driver_is_continued(engine: Engines, tmp_path: Path) -> None:
    place = folder(tmp_path / "store")
    field = await prepared(place.uri)
    await asyncio.to_thread(killed, place, "manifests/v1/", 2, "before", "local[2]")
    spec = StoreSpec.parse(place.uri)
    async with open_store(spec) as store:
        ran = await pipeline.run(store, engine=engine(spec), options=QUICK)
        assert [(each.job, each.resumed) for each in ran] == [("derive", True), ("feed", False)]
    await compared(place.uri, field)
    while not (swept := sweep(FOLDER, Path(tempfile.gettempdir()))):
        await asyncio.sleep(0.05)  # its JVM is about to end
    assert len(swept) == 1  # and not that of the session that is alive


@pytest.mark.timeout(2 * PATIENCE_S)
@pytest.mark.parametrize("when", [pytest.param("idle", marks=pytest.mark.soak), "working"])
async def test_a_jvm_that_dies_ends_a_service_with_one_line(when: str, tmp_path: Path) -> None:
    """PySpark has no public way to another JVM in the same process: whatever started the service starts it again."""
    place = folder(tmp_path / "store")
    command = [sys.executable, "-m", "tests.spark.mortal_driver", place.uri, when]
    ended = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("the Spark session is gone: it, its JVM or its server has ended")
    assert ended.stdout.count("\n") == 1


FINDS = """
from pyspark.sql import SparkSession
from holdfast.pipeline.tables.datasource import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
try:
    register(spark)
except Exception as error:
    print(type(error).__name__, error, error.remedy)
"""


@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_python_of_an_environment_that_is_not_activated_is_to_be_named(tmp_path: Path) -> None:
    """Spark runs the ``python3`` of the PATH, which has no Holdfast."""
    other = tmp_path / "bin"
    other.mkdir()
    (other / "python3").symlink_to(Path(sys.executable).resolve())
    environ = {**os.environ, **java_options(tmp_path), "PATH": f"{other}:/usr/bin:/bin"}
    environ.pop("PYSPARK_PYTHON", None)

    done = subprocess.run(
        [sys.executable, "-c", FINDS],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert done.stdout.strip() == (
        f"NoSpark Spark runs {other / 'python3'}, and Holdfast is installed for {sys.executable} "
        f"set PYSPARK_PYTHON={sys.executable} before the session begins"
    )


def test_whatever_spark_writes_is_in_a_folder_of_ours(spark: Spark) -> None:
    assert spark.folder is not None
    assert spark.session.range(100).repartition(3).count() == 100
    asked = spark.session.sparkContext._jvm.java.lang.System.getProperty
    assert Path(asked("java.io.tmpdir")) == spark.folder
    assert {"blockmgr", "spark"} <= {each.name.partition("-")[0] for each in spark.folder.iterdir()}
    assert spark.folder.parent == Path(tempfile.gettempdir())
