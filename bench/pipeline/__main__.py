"""``python -m bench.pipeline [--quick] [--only PART] [--out FILE]``

One hour of a fleet, rolled up into one-minute windows. *Ours* reads frames from a store, checks and decodes them,
counts each record once, computes all figures of a rollup with its sketch, and writes and publishes chunks. Plain Spark
and DuckDB read the same samples as ideal Parquet, compute count, sum, least and greatest value, and write Parquet. All
use two cores, in turns; starting Spark is not counted for anybody, and one unmeasured turn each comes first.

*Growth* is the same work at 1, 10 and 100 times the size: the slope of time over size on logarithmic scales, and the
most memory that driver, JVM and worker use. *Manifests* is the reconciler's full scan (list, read, verify and decode)
and the derivation of its hour, *generated* its relational steps over batches that no store holds: both for the memory
of the driver.
"""

import argparse
import asyncio
import math
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.lib import RESULTS, facts, table, write_results
from bench.pipeline import place
from bench.pipeline.fleet import HOUR, HOUR_NS, SCRAPES, Fleet
from bench.pipeline.generated import listed
from bench.pipeline.memory import cpu_seconds, watched
from bench.pipeline.peers import CORES, duckdb_seconds, plain_spark
from holdfast.objects.open import open_store
from holdfast.pipeline import drive
from holdfast.pipeline.engine import Engine
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.job import Ran
from holdfast.pipeline.options import Options
from holdfast.telemetry.rollup.layout import Windows

WINDOWS = ("1m",)
AIM = 1.0
"""Plain Spark's time over ours."""
SLOPE = 1.1


@dataclass(frozen=True)
class Sizes:
    samples: int
    growth: tuple[int, ...]
    manifests: int
    generated: int
    turns: int


FULL = Sizes(10_000_000, (100_000, 1_000_000, 10_000_000), 20_000, 1_000_000, 5)
QUICK = Sizes(100_000, (33_000, 100_000), 1_000, 10_000, 1)


async def run(engine: Engine, folder: Path, job: str, **request: Any) -> tuple[float, Ran]:
    """Seconds that the whole job took, and what it says."""
    options = Options(windows=Windows.of(WINDOWS))
    async with open_store(f"file:{folder}") as store:
        began = time.perf_counter()
        ran = await drive.run(store, [job], engine=engine, options=options, request=request)
        seconds = time.perf_counter() - began
    if not ran or any(each.status != "success" for each in ran):
        raise RuntimeError(f"{job} did not succeed: {[each.document() for each in ran]}")
    return seconds, ran[-1]


async def rolled(engine: Engine, folder: Path, fleet: Fleet) -> float:
    """Roll the hour up from nothing; the seconds that it took."""
    place.forget_rollups(folder)
    hour_ns = {"since_ns": HOUR * HOUR_NS, "until_ns": (HOUR + 1) * HOUR_NS}
    seconds, ran = await run(engine, folder, "derive", **hour_ns)
    if ran.summary["records"] != fleet.samples:
        raise RuntimeError(f"{fleet.samples} samples were sent, {ran.summary['records']} counted")
    return seconds


async def engine_for(folder: Path) -> SparkEngine:
    """Spark, started."""
    async with open_store(f"file:{folder}") as store:
        engine = SparkEngine.at(store.spec, f"local[{CORES}]")
    await engine.cores()
    return engine


@dataclass
class Side:
    """Seconds that each turn took, and processor seconds of all its processes."""

    took: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    @asynccontextmanager
    async def turn(self, pid: int) -> AsyncIterator[None]:
        before = cpu_seconds(pid)
        yield
        self.cpu.append(cpu_seconds(pid) - before)

    def figures(self, samples: int) -> dict[str, Any]:
        return {
            "seconds": [round(each, 3) for each in self.took],
            "cpu_seconds": [round(each, 2) for each in self.cpu],
            "samples_per_second_per_core": round(samples / median(self.took) / CORES),
            "samples_per_cpu_second": round(samples / median(self.cpu)),
        }


async def against(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Ours, plain Spark and DuckDB in turns."""
    fleet, ideal = Fleet.of(sizes.samples), folder / "ideal.parquet"
    fleet.write_ideal(ideal)
    batches = await place.fill(folder / "store", fleet)
    engine = await engine_for(folder / "store")
    sides: dict[str, Side] = {}
    try:
        first_s, _ = await run(engine, folder / "store", "reconcile", full=True)
        place.forget(folder / "store")
        second_s, _ = await run(engine, folder / "store", "reconcile", full=True)
        with plain_spark(ideal, folder / "spark-rows") as floor:
            for number in range(sizes.turns + 1):
                if number <= 1:  # the first turn is forgotten
                    sides = {name: Side() for name in ("holdfast", "plain Spark", "DuckDB")}
                async with sides["plain Spark"].turn(floor.pid):
                    sides["plain Spark"].took.append(floor.run())
                async with sides["holdfast"].turn(os.getpid()):
                    sides["holdfast"].took.append(await rolled(engine, folder / "store", fleet))
                async with sides["DuckDB"].turn(os.getpid()):
                    sides["DuckDB"].took.append(duckdb_seconds(ideal, folder / "duckdb-rows.parquet"))
    finally:
        await engine.close()
    ours, theirs = sides["holdfast"], sides["plain Spark"]
    rows = [
        (
            name,
            f"{median(side.took):.2f}",
            f"{min(side.took):.2f}-{max(side.took):.2f}",
            f"{fleet.samples / median(side.took) / CORES:,.0f}",
            f"{median(side.took) / median(ours.took):.2f}",
            f"{median(side.cpu):.2f}",
        )
        for name, side in sides.items()
    ]
    print(table((f"{fleet.samples:,} samples", *HEADER), rows), end="\n\n", flush=True)
    print(
        f"reconcile of {batches:,} batches: {first_s:.2f} s as the first job of a session, "
        f"{second_s:.2f} s as the second\n"
    )
    ratios = [floor / ours for floor, ours in zip(theirs.took, ours.took, strict=True)]
    return {
        "samples": fleet.samples,
        "batches": batches,
        "bytes_per_sample": round(_size(folder / "store" / "raw-blobs") / fleet.samples, 2),
        "ideal_bytes_per_sample": round(ideal.stat().st_size / fleet.samples, 2),
        "reconcile_seconds": {"first job": round(first_s, 3), "second job": round(second_s, 3)},
        "sides": {name: side.figures(fleet.samples) for name, side in sides.items()},
        "spark_over_ours": round(median(ratios), 3),
        "spark_over_ours_spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "spark_cpu_over_ours": round(median(theirs.cpu) / median(ours.cpu), 3),
    }


HEADER = ("seconds", "spread", "samples/s/core", "over ours", "CPU s")


async def growth(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Reconcile and rollup of growing fleets, each in a store and a Spark of its own."""
    found: list[dict[str, Any]] = []
    for samples in sizes.growth:
        fleet, store = Fleet.of(samples), folder / f"growth-{samples}"
        await place.fill(store, fleet)
        with watched() as peak:
            engine = await engine_for(store)
            try:
                reconcile_s, _ = await run(engine, store, "reconcile", full=True)
                times = [await rolled(engine, store, fleet) for _ in range(sizes.turns + 1)]
            finally:
                await engine.close()
        figures = {
            "samples": fleet.samples,
            "reconcile_s": round(reconcile_s, 3),
            "rollup_s": round(median(times[1:]), 3),
        }
        found.append({**figures, "peak_mib": peak.mib()})
    rows = [
        (
            f"{each['samples']:,} samples",
            f"{each['reconcile_s']:.2f}",
            f"{each['rollup_s']:.2f}",
            *(f"{each['peak_mib'][name]}" for name in ("driver", "jvm", "worker")),
        )
        for each in found
    ]
    print(
        table(("growth", "reconcile s", "rollup s", "driver MiB", "JVM MiB", "worker MiB"), rows),
        end="\n\n",
        flush=True,
    )
    slopes = {name: slope([each["samples"] for each in found], [each[name] for each in found]) for name in TIMES}
    return {"sizes": found, "slopes": slopes, "aim": SLOPE}


TIMES = ("reconcile_s", "rollup_s")


def slope(sizes: list[int], seconds: list[float]) -> float:
    """Of the straight line through the logarithms."""
    x, y = [math.log(each) for each in sizes], [math.log(each) for each in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    over = sum((one - mean_x) * (other - mean_y) for one, other in zip(x, y, strict=True))
    return round(over / sum((one - mean_x) ** 2 for one in x), 3)


async def manifests(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """A full scan of batches of one scrape each, and their hour derived, with the memory of the driver above that of a
    run over one host.
    """
    one, fleet = Fleet.of_batches(1), Fleet.of_batches(sizes.manifests)
    await place.fill(folder / "one", one)
    batches = await place.fill(folder / "store", fleet)
    base_mib, _ = await _reconciled_and_derived(folder / "one", one)
    peak_mib, seconds = await _reconciled_and_derived(folder / "store", fleet)
    above = peak_mib["driver"] - base_mib["driver"]
    print(
        f"{batches:,} manifests: verified in {seconds['reconcile']:.1f} s, derived in {seconds['derive']:.1f} s; "
        f"{above} MiB more in the driver than {SCRAPES} need\n",
        flush=True,
    )
    return {"manifests": batches, "seconds": seconds, "peak_mib": peak_mib, "driver_above_mib": above}


async def _reconciled_and_derived(folder: Path, fleet: Fleet) -> tuple[dict[str, int], dict[str, float]]:
    engine = await engine_for(folder)
    try:
        with watched() as peak:
            reconcile_s, _ = await run(engine, folder, "reconcile", full=True)
            derive_s = await rolled(engine, folder, fleet)
    finally:
        await engine.close()
    return peak.mib(), {"reconcile": round(reconcile_s, 3), "derive": round(derive_s, 3)}


async def generated(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """The relational steps of ``reconcile`` over verified batches of one hour that no store holds."""
    engine = await engine_for(folder)
    async with open_store(f"file:{folder}") as store:
        try:
            await listed(store, engine, 1_000)
            before = psutil.Process().memory_info().rss
            began = time.perf_counter()
            with watched() as peak:
                listings = await listed(store, engine, sizes.generated)
            seconds = time.perf_counter() - began
        finally:
            await engine.close()
    above = round((peak.driver - before) / 2**20)
    print(f"{sizes.generated:,} generated batches: {seconds:.1f} s, {above} MiB more in the driver\n", flush=True)
    return {
        "batches": sizes.generated,
        "listings": listings,
        "seconds": round(seconds, 3),
        "driver_above_mib": above,
        "peak_mib": peak.mib(),
    }


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


PARTS = {"against": against, "growth": growth, "manifests": manifests, "generated": generated}


async def bench(sizes: Sizes, parts: Iterable[str]) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name in parts:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            results[name] = await PARTS[name](Path(folder), sizes)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline", description=__doc__.partition("\n\n")[2])
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run? The figures mean little")
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--out", type=Path, help="where to write the JSON (default for a whole run: bench/results)")
    options = parser.parse_args()
    parts = [options.only] if options.only else list(PARTS)
    results = asyncio.run(bench(QUICK if options.quick else FULL, parts))
    out = options.out
    if out is None and not options.quick and options.only is None:
        out = RESULTS / "pipeline.json"
    if out is not None:
        write_results(out, {"facts": facts("holdfast", "pyspark", "pyarrow", "duckdb"), "aim": AIM, "results": results})
        print(f"written: {out.name}")


if __name__ == "__main__":
    main()
