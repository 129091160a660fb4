"""A standalone master with a worker, and a Spark Connect server, on the loopback: the pipeline runs on them, and tables
are read through them."""

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from holdfast.objects.stack import open_store
from holdfast.pipeline.tables import everything
from tests.tidy.tree import ROOT
from tests.unit.pipeline.field import Field, agrees

PATIENCE_S = 240
SPARK_HOME = Path(pyspark.__file__).parent


@contextmanager
def daemon(folder: Path, name: str, *words: str) -> "Iterator[Server]":
    """One of Spark's own servers."""
    log = folder / f"{name}.log"
    own = {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "600m", "SPARK_LOCAL_IP": "127.0.0.1"}
    environ = {**os.environ, **own, "PYSPARK_PYTHON": sys.executable}
    command = [str(SPARK_HOME / "bin" / "spark-class"), *words]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environ)
    try:
        yield Server(process, log)
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Server:
    process: "subprocess.Popen[bytes]"
    log: Path

    def told(self, pattern: str) -> str:
        """What it says of itself, once it has said it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            found = re.search(pattern, self.log.read_text(encoding="utf-8", errors="replace"))
            if found is not None:
                return found[1]
            time.sleep(0.1)
        text = self.log.read_text(encoding="utf-8", errors="replace")
        raise AssertionError(f"{self.log.name} never said {pattern}: {text[-3000:]}")


async def prepared(uri: str) -> Field:
    async with open_store(uri) as store:
        field = Field(store)
        await field.season(13, agents=3)
        return field


async def compared(uri: str, field: Field) -> int:
    async with open_store(uri) as store:
        assert await agrees(store, field.batches) > 20
        return len((await everything(store, {"table": "rollup"})).to_pylist())


def driven(uri: str, master: str) -> dict[str, Any]:
    """What a driver at this master says: it has run the pipeline, and read a table."""
    command = [sys.executable, "-m", "tests.spark.cluster_driver", uri, master, "rollup"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(3 * PATIENCE_S)
def test_a_standalone_cluster_runs_the_pipeline_and_reads_tables(tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    field = asyncio.run(prepared(uri))
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with daemon(tmp_path, "master", "org.apache.spark.deploy.master.Master", *anywhere) as head:
        master = head.told(r"Starting Spark master at (spark://\S+)")
        worker = ("org.apache.spark.deploy.worker.Worker", master, "-c", "1", "-m", "1g", "-d", str(tmp_path / "work"))
        with daemon(tmp_path, "worker", *worker, *anywhere) as hand:
            hand.told(r"(Successfully registered with master)")
            found = driven(uri, master)
    assert found == {"statuses": ["success"], "rows": asyncio.run(compared(uri, field))}


@pytest.mark.timeout(3 * PATIENCE_S)
def test_spark_connect_runs_the_pipeline_and_reads_tables(tmp_path: Path) -> None:
    uri = f"file:{tmp_path / 'store'}"
    field = asyncio.run(prepared(uri))
    conf = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.memory": "512m",
        "spark.ui.enabled": "false",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    what = ("--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[1]")
    with daemon(tmp_path, "connect", "org.apache.spark.deploy.SparkSubmit", *what, *words) as server:
        port = server.told(r"Spark Connect server started at: \S*?:(\d+)\s")
        found = driven(uri, f"sc://127.0.0.1:{port}")
    assert found == {"statuses": ["success"], "rows": asyncio.run(compared(uri, field))}
