"""Tasks on Spark: one partition per payload, rows back as Arrow.

The DataFrame API alone, so that the same code runs on one machine, on a cluster and through Spark Connect. A task opens
the store from its spec after the fork, on a loop of its own, and closes it whatever happens.

Errors: ``SparkFailed``, in one line, for a task that failed for good, and for a session that is gone (a JVM that was
killed, a cluster that gave up). Of such a session nothing is kept: the next who asks starts another.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from holdfast.base import codec
from holdfast.base.aio import blocking
from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError
from holdfast.base.telemetry import logger
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine import Progress, Task
from holdfast.pipeline.errors import SparkFailed
from holdfast.pipeline.session import Spark, check_master, start, unanswered

_log = logger("pipeline")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.schema([pa.field("row", pa.binary(), nullable=False)])
WATCH_S = 0.2
MORE_MEMORY = "the next job starts another; if that goes too, give it more: --conf spark.driver.memory=2g"
T = TypeVar("T")
FAILED = "holdfast-task-failed:"
"""Before a named error in what Spark says of a failed task."""


@dataclass(frozen=True)
class Remote:
    """What a task needs besides its payload. Picklable."""

    spec: StoreSpec
    task: Task
    payloads: tuple[bytes, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                rows = asyncio.run(self._work(self.payloads[number]))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([codec.encode(row) for row in rows], pa.binary())], schema=ROWS
                )

    async def _work(self, payload: bytes) -> list[Document]:
        store = await open_store(self.spec)
        try:
            return await self.task(store, payload)
        except HoldfastError as error:
            raise RuntimeError(f"{FAILED}{error.kind}:{error}") from error
        finally:
            await store.close()


class SparkEngine:
    """``spark`` is a session, or what starts one when the first task is due: hours without work cost no JVM."""

    def __init__(self, spark: Spark | Callable[[], Spark], spec: StoreSpec) -> None:
        self._started = spark if isinstance(spark, Spark) else None
        self._start = spark if not isinstance(spark, Spark) else None
        self._spec = spec

    @classmethod
    def at(
        cls, spec: StoreSpec, master: str | None = None, conf: Mapping[str, str] | None = None, *, verbose: bool = False
    ) -> "SparkEngine":
        """Spark at this master, started when it is needed. A master that cannot be one is refused now."""
        check_master(master)
        return cls(lambda: start(master, conf, verbose=verbose), spec)

    async def cores(self) -> int:
        spark = await self.spark()
        return await self._asked(spark, lambda: spark.cores)

    async def spark(self) -> Spark:
        """The session, which is started by the first who asks."""
        if self._started is None and self._start is not None:
            self._started = await blocking(self._start)
        if self._started is None:
            raise SparkFailed("this engine was closed")
        return self._started

    async def run(self, name: str, task: Task, payloads: Sequence[bytes], progress: Progress) -> list[Document]:
        if not payloads:
            return []
        spark = await self.spark()
        group = f"holdfast {name} {os.getpid()} {id(payloads)}"
        work = Remote(self._spec, task, tuple(payloads))
        working = asyncio.ensure_future(self._asked(spark, lambda: _run(spark, group, name, work)))
        try:
            while not working.done():
                await asyncio.wait({working}, timeout=WATCH_S)
                ended = len(payloads) if working.done() else await blocking(_ended, spark, group)
                progress(min(ended, len(payloads)), len(payloads))
        except asyncio.CancelledError:
            await blocking(_cancel, spark, group)
            await asyncio.wait({working})
            raise
        table = await working
        return [json.loads(row) for row in table.column(0).to_pylist()]

    async def _asked(self, spark: Spark, call: Callable[[], T]) -> T:
        """What Spark answers, if it is still there."""
        try:
            return await blocking(call)
        except Exception as error:  # py4j, the socket to the JVM and Spark Connect each have their own
            told = await blocking(spark.lost)
            if told is None:
                raise
            again = spark.ours and self._start is not None
            if again and self._started is spark:
                self._started = None
                await blocking(spark.stop)
            remedy = "the next job connects again" if spark.remote else MORE_MEMORY
            raise SparkFailed(
                f"the Spark session is gone: {told}", remedy=remedy if again else "start a session again"
            ) from error

    async def close(self) -> None:
        """End the session, if it is ours. Idempotent."""
        started, self._started, self._start = self._started, None, None
        if started is not None:
            await blocking(started.stop)


def _run(spark: Spark, group: str, name: str, work: Remote) -> pa.Table:
    session: SparkSession = spark.session
    count = len(work.payloads)
    try:
        if not spark.remote:
            session.sparkContext.setJobGroup(group, name, interruptOnCancel=True)
        return session.range(0, count, 1, numPartitions=count).mapInArrow(work, "row binary").toArrow()
    except Exception as error:  # py4j and Spark Connect each have their own
        raise SparkFailed(f"{name}: a task failed for good ({reason(error)})") from error


def _ended(spark: Spark, group: str) -> int:
    """Tasks that have ended, as far as Spark tells."""
    if spark.remote:
        return 0
    ended = 0
    try:
        tracker = spark.session.sparkContext.statusTracker()
        for job in tracker.getJobIdsForGroup(group):
            info: Any = tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                known: Any = tracker.getStageInfo(stage)
                ended += known.numCompletedTasks if known is not None else 0
    except unanswered() as error:  # whoever waits for the tasks is told
        _log.debug("progress is not known: %s", error)
    return ended


def _cancel(spark: Spark, group: str) -> None:
    if spark.remote:
        return
    try:
        spark.session.sparkContext.cancelJobGroup(group)
    except unanswered() as error:  # its tasks are gone with it
        _log.debug("nothing is left to cancel: %s", error)


def reason(error: Exception) -> str:
    text = str(error)
    named = text.partition(FAILED)[2]
    if named:
        return named.partition("\n")[0][:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or [type(error).__name__])[-1][:500]
