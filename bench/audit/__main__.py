"""``python -m bench.audit [--quick] [--out FILE] [--master URL]``

Audits of accepted batches, five objects each, and plans of garbage collection over the same: of 100,000 and of
1,000,000 synthetic keys in one process, each in a process of its own, to see how memory grows; and of 100,000 real
objects in a folder, in one process and on Spark. A tenth of the real ones is garbage: payloads that came after their
run was deleted. It is collected in the end, on Spark if there is one.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil

from bench.audit.synthetic import Synthetic
from bench.lib import RESULTS, facts, table, write_results
from bench.pipeline.memory import watched
from holdfast import pipeline
from holdfast.base.clock import SystemClock
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline import Engine, Inline
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.gc import GcOptions
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.gc import Gc
from holdfast.pipeline.options import Env
from holdfast.runs.admin.delete import delete
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.payload import put_payload

T = TypeVar("T")

SIZES = (100_000, 1_000_000)
REAL = 100_000
PER_BATCH = 5
GARBAGE = 10
"""One real object in so many."""
OF_RUN = 500
"""Payloads that a deleted run has got."""
NOW = pipeline.Options(overlap_ns=0, gc=GcOptions(horizon_ns=0, grace_ns=0))
REQUEST = {"scopes": ["ingest"], "one_in": 10**9}
"""No bytes are read: synthetic ones are no frames."""


def wrap(backend: Synthetic) -> Client:
    ambient, usage, spec = Ambient(SystemClock(), random.Random(1)), Usage(), StoreSpec.parse("memory:")
    return Client(backend, ambient=ambient, retry=spec.retry, usage=usage, spec=spec)


async def measured(store: Client, keys: int, work: Callable[[], Awaitable[T]]) -> tuple[dict[str, Any], T]:
    """Time, requests, and how much memory it took on top of what was there."""
    before = dict(store.usage.by_verb)
    base = psutil.Process().memory_info().rss
    began = time.perf_counter()
    with watched() as peak:
        found = await work()
    seconds = time.perf_counter() - began
    spent = {verb: count - before.get(verb, 0) for verb, count in store.usage.by_verb.items()}
    figures = {
        "keys": keys,
        "seconds": round(seconds, 1),
        "keys_per_second": round(keys / seconds),
        "driver_growth_mib": round((peak.driver - base) / 2**20),
        "worker_mib": peak.mib()["worker"],
        "requests": {verb: count for verb, count in sorted(spent.items()) if count},
    }
    return figures, found


async def audit(store: Client, keys: int, batches: int, engine: Engine | None = None) -> dict[str, Any]:
    async def work() -> str:
        (ran,) = await pipeline.run(store, ["audit"], engine=engine, options=NOW, request=REQUEST)
        return str(ran.summary["audit_id"])

    figures, audit_id = await measured(store, keys, work)
    record = await audited.read(store, audit_id)
    assert record.good
    assert record.checked["accepted"] == batches
    return figures


async def plan(store: Client, keys: int, garbage: int, engine: Engine | None = None) -> dict[str, Any]:
    """What ``holdfast gc plan`` does."""
    env = Env(store, store.ambient, engine or Inline(), NOW)
    figures, found = await measured(store, keys, lambda: Gc(env).preview({}))
    assert sum(sum(kind["removed"].values()) for kind in found["kinds"].values()) == garbage
    return figures


async def collect(store: Client, keys: int, garbage: int, engine: Engine | None = None) -> dict[str, Any]:
    """What ``holdfast gc run --apply`` does."""

    async def work() -> int:
        (ran,) = await pipeline.run(store, ["gc"], engine=engine, options=NOW, request={"apply": True})
        return int(ran.summary["removed"])

    figures, removed = await measured(store, keys, work)
    assert removed == garbage
    return figures


async def synthetic(keys: int) -> dict[str, Any]:
    async with wrap(Synthetic(PER_BATCH)) as store:
        # What is imported and kept by the first is no growth of the second.
        await audit(store, PER_BATCH * PER_BATCH, PER_BATCH)
        await plan(store, PER_BATCH * PER_BATCH, 0)
    async with wrap(Synthetic(keys // PER_BATCH)) as store:
        return {"audit": await audit(store, keys, keys // PER_BATCH), "gc plan": await plan(store, keys, 0)}


async def real(keys: int, folder: Path, master: str | None) -> dict[str, dict[str, Any]]:
    spec = StoreSpec.parse(f"file:{folder / 'store'}")
    results: dict[str, dict[str, Any]] = {}
    garbage = keys // GARBAGE
    batches = (keys - garbage) // PER_BATCH
    async with open_store(spec) as store:
        await fill(store, batches, garbage)
        results["folder, one process"] = {
            "audit": await audit(store, keys, batches),
            "gc plan": await plan(store, keys, garbage),
        }
        engine = None if master is None else SparkEngine.at(spec, master)
        try:
            if engine is not None:
                await engine.cores()
                results[f"folder, Spark {master}"] = {
                    "audit": await audit(store, keys, batches, engine),
                    "gc plan": await plan(store, keys, garbage, engine),
                }
            last = list(results)[-1]
            results[last]["gc apply"] = await collect(store, keys, garbage, engine)
        finally:
            if engine is not None:
                await engine.close()
    return results


async def fill(store: Client, batches: int, garbage: int) -> None:
    waiting = iter(Synthetic(batches).every())

    async def put() -> None:
        for found in waiting:
            await store.put(found.key, found.body)

    await asyncio.gather(*(put() for _ in range(32)))
    for first in range(0, garbage, OF_RUN):
        run_id = f"run-{first}"
        journal = await Journal.begin(store, store.ambient, run_id, None, {"workflow": "bench"})
        await journal.append(Draft("complete", {}))
        await delete(store, run_id)
        for number in range(first, min(first + OF_RUN, garbage)):
            await put_payload(store, store.ambient, run_id, b"late %d" % number)
    await asyncio.sleep(1)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the keys")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    parser.add_argument("--master", default="local[2]", help="Spark's master; local: no Spark")
    parser.add_argument("--one", type=int, help="audit so many synthetic keys, print the result, and end")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(asyncio.run(synthetic(given.one))))
        return
    share = 100 if given.quick else 1
    results: dict[str, dict[str, Any]] = {}
    for keys in SIZES:
        command = [sys.executable, "-m", "bench.audit", "--one", str(keys // share)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[f"synthetic {keys // share:,}"] = json.loads(answer)
        print(answer, end="", flush=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        master = None if given.master == "local" else given.master
        results |= asyncio.run(real(REAL // share, Path(folder), master))
    columns = ("keys", "seconds", "keys_per_second", "driver_growth_mib", "worker_mib")
    rows = [
        (f"{what}: {name}", *(f"{found[each]:,}" for each in columns))
        for name, sides in results.items()
        for what, found in sides.items()
    ]
    print(table(("what", *columns), rows))
    target = given.out if given.out is not None else None if given.quick else RESULTS / "audit.json"
    if target is not None:
        write_results(target, {"facts": facts("pyarrow"), "results": results})


if __name__ == "__main__":
    main()
