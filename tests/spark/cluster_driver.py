"""A driver that reads commands from its standard input, a line of JSON each, and answers in a file.

python -m tests.spark.cluster_driver MASTER ANSWERS

``pipeline``, ``load`` and ``stream`` are done when they answer; ``streams`` goes on. Tasks wait in the folder ``gate``,
where there is one (see ``readings.wait``).
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.pipeline.engine import Progress, Task
from holdfast.pipeline.engine.protocol import Planner
from holdfast.pipeline.engine.session import Spark, start
from holdfast.pipeline.engine.spark import SparkEngine
from holdfast.pipeline.tables.datasource import frame as table
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
    "spark.executorEnv.PYTHONPATH": PYTHONPATH,
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.efficiency.enabled": "false",
}


@dataclass(frozen=True)
class GatedTask:
    task: Task
    gate: str

    async def __call__(self, store: Store, payload: bytes) -> list[Document]:
        wait(self.gate, "task")
        return await self.task(store, payload)


class GatedEngine:
    def __init__(self, engine: SparkEngine, gate: str) -> None:
        self._engine = engine
        self._gate = gate

    async def cores(self) -> int:
        return await self._engine.cores()

    async def run(self, name: str, task: Task, payloads: Sequence[bytes], progress: Progress) -> list[Document]:
        return await self._engine.run(name, GatedTask(task, self._gate), payloads, progress)

    def planner(self, name: str) -> AbstractAsyncContextManager[Planner]:
        return self._engine.planner(name)

    async def close(self) -> None:
        return


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


async def do_pipeline(spark: Spark, store: str, gate: str) -> Any:
    async with open_store(store) as opened:
        engine = GatedEngine(SparkEngine(spark, opened.spec), gate)
        ran = await pipeline.run(opened, ["reconcile", "derive"], engine=engine)
    rows = table(spark.session, store, "rollup").collect()
    return {"statuses": sorted({each.status for each in ran}), "rows": len(rows)}


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


def main(master: str, answers: str) -> None:
    spark = start(master, CONF)
    does: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {}
    does |= {"pipeline": do_pipeline, "load": do_load, "stream": do_stream, "streams": do_streams}
    for line in sys.stdin:
        words = json.loads(line)
        answer = asyncio.run(does[words.pop("do")](spark, **words))
        with Path(answers).open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
