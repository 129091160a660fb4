"""A driver that reads commands from its standard input, a line of JSON each, and answers in a file.

python -m tests.spark.cluster_driver MASTER ANSWERS

``reconcile``, ``load`` and ``stream`` are done when they answer; ``streams`` goes on. Tasks wait in the folder
``gate``, where there is one (see ``readings.wait``).
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from holdfast import pipeline
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.pipeline.engine import Progress
from holdfast.pipeline.engine.protocol import Kernel, Planner, Query, Spread
from holdfast.pipeline.engine.session import Spark, start
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.engine.staged import Part, Target
from holdfast.pipeline.write.frame import load
from tests.spark.readings import PYTHONPATH, Reading, frame, wait
from tests.spark.test_spark_write import written

CONF = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.sql.shuffle.partitions": "4",
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.efficiency.enabled": "false",
}


@dataclass(frozen=True)
class GatedKernel:
    """A kernel that waits before its first row."""

    kernel: Kernel
    gate: str

    @property
    def schema(self) -> pa.Schema:
        return self.kernel.schema

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        wait(self.gate, "task")
        async for batch in self.kernel.rows(store, given):
            yield batch


class GatedPlanner:
    def __init__(self, planner: Planner, gate: str) -> None:
        self._gate = gate
        self.scan, self.fetch, self.explain, self._map = planner.scan, planner.fetch, planner.explain, planner.map

    async def map(
        self, query: Query, kernel: Kernel, spread: Spread, target: Target, progress: Progress
    ) -> list[Part] | None:
        return await self._map(query, GatedKernel(kernel, self._gate), spread, target, progress)


class GatedEngine(SparkEngine):
    gate = ""

    @asynccontextmanager
    async def planner(self, store: Store, name: str) -> AsyncIterator[Any]:
        async with super().planner(store, name) as planner:
            yield GatedPlanner(planner, self.gate)


@dataclass(frozen=True)
class GatedRows:
    """Before a task stages anything. If the first partition goes on, Spark sees it end, and copies the others."""

    gate: str
    all: bool = False

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context: Any = TaskContext.get()
        if self.all or context.partitionId():
            wait(self.gate, "task")
        yield from batches


async def do_reconcile(spark: Spark, store: str, gate: str) -> Any:
    async with open_store(store) as opened:
        engine = GatedEngine(spark, opened.spec)
        engine.gate = gate
        return [each.status for each in await pipeline.run(opened, ["reconcile"], engine=engine)]


async def do_load(spark: Spark, store: str, gate: str) -> Any:
    rows = frame(spark.session, 0, 100, parts=2)
    async with open_store(store) as opened:
        landed = await load(rows.mapInArrow(GatedRows(gate), rows.schema), opened, Reading, load_id="load")
    return landed.tally.added


async def do_stream(spark: Spark, where: dict[str, str], gate: str) -> Any:
    query = written(spark.session, where, at_once=2, through=GatedRows(gate))
    query.awaitTermination()
    return str(query.exception() or "")


async def do_streams(spark: Spark, gated: dict[str, str], gate: str, others: list[dict[str, str]]) -> Any:
    first = written(spark.session, gated, through=GatedRows(gate, all=True))
    return [query.id for query in (first, *(written(spark.session, each) for each in others))]


def tell(answers: str, answer: Any) -> None:
    with Path(answers).open("a", encoding="utf-8") as file:
        file.write(json.dumps(answer) + "\n")


def main(master: str, answers: str) -> None:
    spark = start(master, CONF)
    does: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {}
    does |= {"reconcile": do_reconcile, "load": do_load, "stream": do_stream, "streams": do_streams}
    tell(answers, "ready")
    for line in sys.stdin:
        words = json.loads(line)
        tell(answers, asyncio.run(does[words.pop("do")](spark, **words)))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
