"""Chunks are read in place by Spark itself, and it says what answers say: two engines, one answer."""

import math
from itertools import product
from pathlib import Path

from holdfast import pipeline
from holdfast.pipeline.engine.session import Spark
from holdfast.platform.open import open_platform
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Kind, Table
from tests.unit.pipeline.field import HOUR, START, Field, generations
from tests.unit.telemetry.query.plain_answers import agree, answers

UNTIL = START + 3 * HOUR
STEP = HOUR // 6
FIGURES = {
    "avg": "try_divide(sum(sum), sum(count))",
    "sum": "sum(sum)",
    "min": "min(min)",
    "max": "max(max)",
    "count": "sum(count)",
}


async def test_spark_and_duckdb_agree(spark: Spark, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with open_platform(f"file:{folder}") as hf:
        field = Field(hf.store)
        await field.season(9, agents=4, batches=8)
        await pipeline.run(hf.store, ["reconcile", "derive"])
        for metric, aggregate in (("load", "last"), ("requests", "increase"), ("latency", "rate")):
            reported = await hf.metrics().query(metric, since=START, until=UNTIL, step=STEP, aggregate=aggregate)
            assert reported.read.batches == 0
            agree(reported, answers(field.batches, metric, START, UNTIL, STEP, aggregate))
        current = [unit for each in await generations(hf.store, Kind.ROLLUP) for unit in each.units]
        size = layout.window_of("1m")
        refs = [ref for unit in current for ref in unit.chunks if ref.table is Table.ROLLUP and ref.window_ns == size]
        spark.session.read.parquet(*[str(folder / ref.key) for ref in refs]).createOrReplaceTempView("rows")
        figures = ", ".join(f"{figure} AS {name}" for name, figure in FIGURES.items())
        text = (
            "SELECT metric, labels['cpu'] AS cpu, CAST(FLOOR(UNIX_SECONDS(window_start) / 600) AS LONG) * 600 AS step, "
            f"{figures} FROM rows GROUP BY 1, 2, 3"
        )
        rows = [row.asDict() for row in spark.session.sql(text).collect()]
        compared = 0
        for metric, aggregate in product(("load", "requests", "latency"), FIGURES):
            ours = await hf.metrics().query(
                metric, since=START, until=UNTIL, step="10m", aggregate=aggregate, by=["cpu"]
            )
            assert ours.read.batches == 0
            found = {
                (each.labels["cpu"], at // 10**9): value
                for each in ours.series
                for at, value in zip(each.times_ns, each.values, strict=True)
            }
            own = [row for row in rows if row["metric"] == metric and row[aggregate] is not None]
            theirs = {(row["cpu"] or "", row["step"]): row[aggregate] for row in own}
            # Steps that have only NaN: a sum of nothing, and a count of none.
            empty = {key for key, value in theirs.items() if aggregate in ("sum", "count") and not value} - found.keys()
            assert found.keys() == theirs.keys() - empty, (metric, aggregate)
            assert all(math.isclose(found[key], theirs[key], rel_tol=1e-9, abs_tol=1e-9) for key in found)
            compared += len(found)
        assert compared > 100
