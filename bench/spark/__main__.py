"""``python -m bench.spark [--quick] [--rows N] [--rounds N] [--out FILE]``

Spark reads the same rows from Holdfast, from a Delta table (delta-rs says which files count, Spark's own reader reads
them: Delta's own connector needs jars) and from one ideal Parquet file; then it writes. One session, in turns, medians.
"""

import argparse
import asyncio
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.lib import RESULTS, facts, write_results
from bench.spark import read
from holdfast.pipeline.engine.session import start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS / "spark.json")
    given = parser.parse_args()
    rows, rounds = (20_000, 1) if given.quick else (given.rows, given.rounds)
    found: dict[str, Any] = {"facts": facts("pyspark", "pyarrow", "duckdb")}
    if find_spec("deltalake") is not None:
        found["facts"] |= facts("deltalake")
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        started = start("local[2]", {"spark.driver.memory": "2g"})
        for name in ("read", "write"):
            Path(folder, name).mkdir()
        try:
            found["read"] = asyncio.run(read.bench(started.session, Path(folder, "read"), rows, rounds))
            print(read.shown(found["read"]))
            if find_spec("bench.spark.write") is not None:
                write = import_module("bench.spark.write")
                found["write"] = asyncio.run(write.bench(started.session, Path(folder, "write"), rows, rounds))
                print(write.shown(found["write"]))
        finally:
            started.stop()
    write_results(given.out, found)
    print(f"results: {given.out}")


if __name__ == "__main__":
    main()
