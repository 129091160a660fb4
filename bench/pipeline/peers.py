"""The other sides: plain Spark in a process of its own, and DuckDB, both on ideal Parquet."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

ROOT = Path(__file__).parents[2]
CORES = 2


class Floor:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.pid = process.pid

    def run(self) -> float:
        """Seconds that one aggregation took."""
        if self._process.stdin is None:
            raise RuntimeError("plain Spark cannot be spoken to")
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        return float(self.received())

    def received(self) -> str:
        line = "" if self._process.stdout is None else self._process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"plain Spark ended with code {self._process.wait()}")
        return line


@contextmanager
def plain_spark(source: Path, target: Path) -> Iterator[Floor]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.pipeline.floor", str(source), str(target)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        floor = Floor(process)
        if floor.received() != "ready":
            raise RuntimeError("plain Spark did not start")
        yield floor
    finally:
        process.kill()
        process.communicate()


def duckdb_seconds(source: Path, target: Path) -> float:
    with duckdb.connect(config={"threads": CORES}) as connection:
        began = time.perf_counter()
        connection.execute(
            "COPY (SELECT series, time_us // 60000000 AS minute, count(value), sum(value), min(value), max(value) "
            f"FROM read_parquet('{source}') GROUP BY ALL) TO '{target}' (FORMAT parquet)"
        )
        return time.perf_counter() - began
