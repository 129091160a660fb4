"""The batches that the golden files of derived data were made from, and what is derived from them today."""

import math

from holdfast.telemetry.frame import Batch
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import kernel, layout
from holdfast.telemetry.rollup.kernel import Derived
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import ChunkRef, Generation, Input, Kind, Table, Unit, UnitRef
from tests.unit.telemetry.rollup.rolled import SECOND, batch

HOUR_NUMBER = 490_000
START = layout.hour_start_ns(HOUR_NUMBER)
WINDOWS = Windows.of(["1m", "1h"])


def _web() -> Batch:
    values = (1.5, math.nan, -3.0, math.inf, 2.25, 1e300, 0.0, 7.125)
    gauges = {n: Gauge("load", value, START + n * 20 * SECOND, {"cpu": "0"}) for n, value in enumerate(values)}
    counters = {10 + n: Counter("requests", n * 7 % 20, START + n * 30 * SECOND, {"ü": "/x y"}) for n in range(8)}
    logs = {30: Log("Connection refused: retry 3", START, 17, {"unit": "nginx"}), 31: Log("", START + SECOND, 0)}
    return batch("web-1", "boot-a", {**gauges, **counters, **logs})


def _db() -> Batch:
    first = Histogram("latency", (0.1, 0.5, 1.0), (3, 2, 1, 0), 1.75, START)
    second = Histogram("latency", (0.1, 1.0), (1, 1, 4), 9.5, START + SECOND)
    return batch(
        "db-1", "boot-b", {0: first, 1: second, 2: Histogram("latency", (0.1,), (0, 2), 3.0, START + 90 * SECOND)}
    )


BATCHES = [_web(), _db()]


def derived() -> dict[str, bytes]:
    """Every object that one hour of them gives, by the name of its golden file."""
    inputs = tuple(Input(each.identity.manifest_id, f"{number}" * 64) for number, each in enumerate(BATCHES))
    version = kernel.version_of(Kind.ROLLUP, WINDOWS)
    hour = Derived(Unit(Kind.ROLLUP, HOUR_NUMBER, 1, 0, inputs, version), WINDOWS)
    hour.add(BATCHES)
    made = list(hour.chunks())
    manifest = hour.manifest([each.ref for each in made])
    generation = Generation(Kind.ROLLUP, HOUR_NUMBER, 3, 1, version, (UnitRef.of_manifest(manifest),), ("e" * 64,))
    found = {f"{_name(each.ref)}.parquet": each.body for each in made}
    return {**found, "rollup-unit.json": manifest.encode(), "rollup-generation.json": generation.encode()}


def _name(ref: ChunkRef) -> str:
    if ref.table is not Table.ROLLUP:
        return str(ref.table)
    return f"{ref.metric}-{layout.window_name(ref.window_ns)}"
