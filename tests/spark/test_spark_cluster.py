"""A standalone master with a worker, on the loopback: the pipeline runs on it, and tables are read through it."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from holdfast.objects.stack import open_store
from holdfast.pipeline.tables import everything
from tests.tidy.tree import ROOT
from tests.unit.pipeline.field import Field, agrees

PATIENCE_S = 240
SPARK_HOME = Path(pyspark.__file__).parent


@contextmanager
def daemon(folder: Path, name: str, *words: str) -> Iterator[Path]:
    """One of Spark's own servers, and the file that it logs to."""
    log = folder / f"{name}.log"
    command = [
        str(SPARK_HOME / "bin" / "spark-class"),
        *words,
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--webui-port",
        "0",
    ]
    environ = {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environ)
    try:
        yield log
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def told(log: Path, pattern: str) -> str:
    """What a server says of itself, once it has said it."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = re.search(pattern, log.read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return found[1]
        time.sleep(0.1)
    raise AssertionError(f"{log.name} never said {pattern}: {log.read_text(errors='replace')[-2000:]}")


async def prepared(uri: str) -> Field:
    async with open_store(uri) as store:
        field = Field(store)
        await field.season(13, agents=3)
        return field


async def compared(uri: str, field: Field) -> int:
    async with open_store(uri) as store:
        assert await agrees(store, field.batches) > 20
        return len((await everything(store, {"table": "rollup"})).to_pylist())


@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_standalone_cluster_runs_the_pipeline_and_reads_tables(tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    field = asyncio.run(prepared(uri))
    with daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master") as master_log:
        master = told(master_log, r"Starting Spark master at (spark://\S+)")
        worker = ("org.apache.spark.deploy.worker.Worker", master, "-c", "1", "-m", "1g", "-d", str(tmp_path / "work"))
        with daemon(tmp_path, "worker", *worker) as worker_log:
            told(worker_log, r"(Successfully registered with master)")
            command = [sys.executable, "-m", "tests.spark.cluster_driver", uri, master, "rollup"]
            done = subprocess.run(
                command, capture_output=True, text=True, cwd=ROOT, timeout=2 * PATIENCE_S, check=False
            )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "statuses": ["success"],
        "rows": asyncio.run(compared(uri, field)),
    }
