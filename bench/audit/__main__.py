"""``python -m bench.audit [--quick] [--out FILE] [--master URL]``

Audits of accepted batches, five objects each: of 100,000 and of 1,000,000 synthetic keys in one process, each in a
process of its own, to see how memory grows; and of 100,000 real objects in a folder, in one process and on Spark.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from bench.audit.synthetic import Synthetic
from bench.lib import RESULTS, facts, table, write_results
from bench.pipeline.memory import watched
from holdfast import pipeline
from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.observe import Usage
from holdfast.objects.spec import StoreSpec
from holdfast.objects.stack import OpenStore, compose, open_store
from holdfast.pipeline import Engine, audited
from holdfast.pipeline.spark import SparkEngine

SIZES = (100_000, 1_000_000)
REAL = 100_000
PER_BATCH = 5
NOW = pipeline.Options(overlap_ns=0)
REQUEST = {"scopes": ["ingest"], "one_in": 10**9}
"""No bytes are read: synthetic ones are no frames."""


def wrap(backend: Synthetic) -> OpenStore:
    ambient, usage, spec = Ambient(SystemClock(), random.Random(1)), Usage(), StoreSpec.parse("memory:")
    return OpenStore(compose(backend, ambient=ambient, retry=spec.retry, usage=usage), spec, usage, ambient)


async def audit(store: OpenStore, keys: int, engine: Engine | None = None) -> dict[str, Any]:
    """One audit: its time, its requests, and how much memory it took on top of what was there."""
    before = dict(store.usage.by_verb)
    base = psutil.Process().memory_info().rss
    began = time.perf_counter()
    with watched() as peak:
        (ran,) = await pipeline.run(store, ["audit"], engine=engine, options=NOW, request=REQUEST)
    seconds = time.perf_counter() - began
    record = await audited.read(store, ran.summary["audit_id"])
    assert record.good
    assert record.checked["accepted"] == keys // PER_BATCH
    spent = {verb: count - before.get(verb, 0) for verb, count in store.usage.by_verb.items()}
    return {
        "keys": keys,
        "seconds": round(seconds, 1),
        "keys_per_second": round(keys / seconds),
        "driver_growth_mib": round((peak.driver - base) / 2**20),
        "worker_mib": peak.mib()["worker"],
        "requests": {verb: count for verb, count in sorted(spent.items()) if count},
    }


async def synthetic(keys: int) -> dict[str, Any]:
    async with wrap(Synthetic(PER_BATCH)) as store:
        await audit(store, PER_BATCH * PER_BATCH)  # what is imported and kept by the first is no growth of the second
    async with wrap(Synthetic(keys // PER_BATCH)) as store:
        return await audit(store, keys)


async def real(keys: int, folder: Path, master: str | None) -> dict[str, dict[str, Any]]:
    spec = StoreSpec.parse(f"file:{folder / 'store'}")
    results: dict[str, dict[str, Any]] = {}
    async with open_store(spec) as store:
        waiting = iter(Synthetic(keys // PER_BATCH).every())

        async def put() -> None:
            for found in waiting:
                await store.put(found.key, found.body)

        await asyncio.gather(*(put() for _ in range(32)))
        await asyncio.sleep(1)
        results["folder, one process"] = await audit(store, keys)
        if master is not None:
            engine = SparkEngine.at(spec, master)
            try:
                await engine.cores()
                results[f"folder, Spark {master}"] = await audit(store, keys, engine)
            finally:
                await engine.close()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the keys")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    parser.add_argument("--master", default="local[2]", help="Spark's master; inline: no Spark")
    parser.add_argument("--one", type=int, help="audit so many synthetic keys, print the result, and end")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(asyncio.run(synthetic(given.one))))
        return
    share = 100 if given.quick else 1
    results: dict[str, dict[str, Any]] = {}
    for keys in SIZES:
        command = [sys.executable, "-m", "bench.audit", "--one", str(keys // share)]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[f"synthetic {keys // share:,}"] = json.loads(told)
        print(told, end="", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        master = None if given.master == "inline" else given.master
        results |= asyncio.run(real(REAL // share, Path(folder), master))
    columns = ("keys", "seconds", "keys_per_second", "driver_growth_mib", "worker_mib")
    rows = [(name, *(f"{found[each]:,}" for each in columns)) for name, found in results.items()]
    print(table(("audit", *columns), rows))
    target = given.out if given.out is not None else None if given.quick else RESULTS / "audit.json"
    if target is not None:
        write_results(target, {"facts": facts("pyarrow"), "audits": results})


if __name__ == "__main__":
    main()
