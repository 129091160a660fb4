"""The engine on Spark: relational steps as DataFrames, kernels by ``mapInArrow``, on whatever master the session has.

Only the DataFrame API is used, so the same code runs on one machine, on a cluster and through Spark Connect. Work lists
are rows of a DataFrame: a task receives its own rows and no others.

A query whose tables are small together (``SMALL_BYTES``) is run by DuckDB in this process: a job of Spark costs more
than it. Its rows go to the tasks of a kernel as any others do. A larger staged table is a cached DataFrame over its
parts in the store. The cache may be lost with an executor: what is read again are the same parts, so the rows stay
those of the snapshot.

Errors: ``SparkFailed``, in one line, for a task that failed for good; ``SparkLost`` if the session has ended.
"""

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking
from holdfast.base.telemetry import logger
from holdfast.objects.open import carried
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.local import LocalPlanner
from holdfast.pipeline.engine.protocol import Kernel, Progress, Query, Spread, unwatched
from holdfast.pipeline.engine.session import Spark, check_master, start, unanswered
from holdfast.pipeline.engine.staged import Part, Staged, Target
from holdfast.pipeline.engine.tasks import PARTS, InTask, Map, Scan, read_parts
from holdfast.pipeline.errors import FAILED, SparkFailed
from holdfast.pipeline.tables.table import Table, Wanted

_log = logger("pipeline")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = pa.schema([pa.field("row", pa.binary(), nullable=False)])
WATCH_S = 0.2
DECLARED_ROWS = 1_000_000_000
SMALL_BYTES = 1024 * 1024
"""A query over staged tables of at most this compressed size together needs no Spark."""
PASSED_BYTES = 256 * 1024
"""In a larger query, a staged table of at most this compressed size is passed to Spark as rows."""
SMALL_ROWS = 100_000
"""A small query that gives more rows than this is run by Spark after all."""
SCANS_PER_CORE = 2
DRIVER_MEMORY = 128 * 1000**2
"""Of DuckDB beside a driver of Spark."""
GROUP, WORK = "holdfast_group", "holdfast_work"
T = TypeVar("T")


class SparkEngine:
    """``spark`` is a session, or a function that starts one when the first task is due, so that a run without work
    starts no JVM."""

    def __init__(self, spark: Spark | Callable[[], Spark], spec: StoreSpec) -> None:
        self._started = spark if isinstance(spark, Spark) else None
        self._start = spark if not isinstance(spark, Spark) else None
        self._spec = spec

    @classmethod
    def at(
        cls, spec: StoreSpec, master: str | None = None, conf: Mapping[str, str] | None = None, *, verbose: bool = False
    ) -> "SparkEngine":
        """Spark at this master, started when it is needed. An invalid master is refused at once."""
        check_master(master)
        return cls(lambda: start(master, conf, verbose=verbose), spec)

    async def cores(self) -> int:
        spark = await self.spark()
        return await self.asked(spark, lambda: spark.cores)

    async def spark(self) -> Spark:
        """The session; the first call starts it."""
        if self._started is None and self._start is not None:
            self._started = await blocking(self._start)
        if self._started is None:
            raise SparkFailed("this engine was closed")
        return self._started

    async def collect(self, name: str, frame: "Callable[[], DataFrame]", tasks: int, progress: Progress) -> pa.Table:
        """The rows of a DataFrame, which is made in a worker thread. Cancelling the caller cancels the Spark job."""
        spark = await self.spark()
        group = f"holdfast {name} {os.getpid()} {id(frame)}"
        working = asyncio.ensure_future(self.asked(spark, lambda: _collected(spark, group, name, frame)))
        try:
            while not working.done():
                await asyncio.wait({working}, timeout=WATCH_S)
                ended = tasks if working.done() else await blocking(_ended, spark, group)
                progress(min(ended, tasks), tasks)
        except asyncio.CancelledError:
            await blocking(_cancel, spark, group)
            await asyncio.wait({working})
            raise
        return await working

    @asynccontextmanager
    async def planner(self, store: Store, name: str) -> "AsyncIterator[SparkPlanner]":
        planner = SparkPlanner(self, store, self._spec, name)
        try:
            yield planner
        finally:
            await planner.close()

    async def asked(self, spark: Spark, call: Callable[[], T]) -> T:
        """Run a call of Spark and translate the errors of a session that has ended."""
        try:
            return await blocking(call)
        except Exception as error:  # py4j, the socket to the JVM and Spark Connect each have their own
            lost = await blocking(spark.lost)
            if lost is None:
                raise
            raise lost from error

    async def close(self) -> None:
        """End the session, if it is ours. Idempotent."""
        started, self._started, self._start = self._started, None, None
        if started is not None:
            await blocking(started.stop)


class SparkPlanner:
    """``store`` is the driver's own; tasks open theirs from ``spec``. Staged tables are temporary views with names that
    no other planner of the session uses.
    """

    def __init__(self, engine: SparkEngine, store: Store, spec: StoreSpec, name: str) -> None:
        self._engine = engine
        self._store = store
        self._spec = spec
        self._name = name
        self._here = LocalPlanner(store, DRIVER_MEMORY)
        self._views = f"holdfast_{os.getpid()}_{id(self):x}_"
        self._bound: dict[str, tuple[Staged, DataFrame]] = {}

    async def scan(self, table: Table, wanted: Wanted, target: Target, progress: Progress) -> list[Part]:
        parts = await table.plan(self._store, wanted)
        if len(parts) <= 1:
            return await self._here.read(table, wanted, parts, target, progress)
        spark = await self._engine.spark()
        tasks = min(len(parts), await self._engine.cores() * SCANS_PER_CORE)
        payloads = pa.table({"payload": pa.array([pickle.dumps(part) for part in parts], pa.binary())})
        work = InTask(carried(self._spec), Scan(table, wanted, target))

        def frame() -> "DataFrame":
            return dealt(spark.session, payloads, np.arange(len(parts)), tasks).mapInArrow(work, _ddl(PARTS))

        return _parts(await self._engine.collect(self._step(target), frame, tasks, progress))

    async def map(
        self, query: Query, kernel: Kernel, spread: Spread, target: Target, progress: Progress
    ) -> list[Part] | None:
        spark = await self._engine.spark()
        found = await self._few_rows(query, spread)
        text = "" if found is not None else await self._bind(query)
        tasks = await self._tasks(text, spread, target, progress) if found is None else _tasks_of(found, spread)
        if not tasks:
            return None
        work = InTask(carried(self._spec), Map(kernel, target))

        def frame() -> "DataFrame":
            # An explicit number of partitions: adaptive execution would put a thousand small rows into one task.
            rows: DataFrame
            if found is None:
                rows = spark.session.sql(text).repartition(tasks, *spread.by)
            else:
                rows = dealt(spark.session, found.drop_columns([GROUP, WORK]), found.column(GROUP).to_numpy(), tasks)
            return rows.sortWithinPartitions(*spread.sorting).mapInArrow(work, _ddl(PARTS))

        return _parts(await self._engine.collect(self._step(target), frame, tasks, progress))

    def _is_small(self, query: Query) -> bool:
        tables = query.tables.values()
        return not any(each.declared for each in tables) and sum(each.bytes for each in tables) <= SMALL_BYTES

    async def _few_rows(self, query: Query, spread: Spread) -> pa.Table | None:
        """The rows of a small query, each with the number of its group and the work of all; None of a large one."""
        if not self._is_small(query):
            return None
        counted = (
            f"SELECT *, CAST(dense_rank() OVER (ORDER BY {', '.join(spread.by)}) - 1 AS BIGINT) AS {GROUP}, "
            f"CAST(sum({spread.work}) OVER () AS BIGINT) AS {WORK} FROM (\n{query.select}\n) LIMIT {SMALL_ROWS + 1}"
        )
        found = await self._here.fetch(replace(query, select=counted))
        return found if found.num_rows <= SMALL_ROWS else None

    async def _tasks(self, text: str, spread: Spread, target: Target, progress: Progress) -> int:
        """The number of tasks for these rows; 0 if there are none."""
        spark = await self._engine.spark()
        groups = f"approx_count_distinct(struct({', '.join(spread.by)}))"
        counting = f"SELECT sum({spread.work}) AS work, {groups} AS groups FROM (\n{text}\n)"
        name = f"{self._step(target)}: count"
        counted = await self._engine.collect(name, lambda: spark.session.sql(counting), 1, progress)
        [row] = counted.to_pylist()
        # Groups are hashed to tasks: with two tasks for each group, few tasks get several groups.
        return spread.tasks(int(row["work"] or 0), 2 * row["groups"])

    async def fetch(self, query: Query) -> pa.Table:
        if self._is_small(query):
            return await self._here.fetch(query)
        spark = await self._engine.spark()
        text = await self._bind(query)
        return await self._engine.collect(f"{self._name} query", lambda: spark.session.sql(text), 1, unwatched)

    async def explain(self, query: Query) -> str:
        spark = await self._engine.spark()
        text = f"EXPLAIN FORMATTED {await self._bind(query)}"
        found = await self._engine.collect(f"{self._name} explain", lambda: spark.session.sql(text), 1, unwatched)
        return str(found.column(0)[0].as_py())

    def _step(self, target: Target) -> str:
        return f"{self._name} {target.name}"

    async def _bind(self, query: Query) -> str:
        """The statement of a query, over views of its staged tables."""
        spark = await self._engine.spark()
        for name, staged in query.tables.items():
            if not staged.empty and (name not in self._bound or self._bound[name][0] != staged):
                rows = await self._few(staged)
                frame = await self._engine.asked(spark, partial(self._table, spark.session, name, staged, rows))
                self._bound[name] = staged, frame
                if rows is None and not staged.declared:
                    # Spark knows how large a table is once it is cached; before, it would broadcast any table.
                    await self._engine.collect(f"{self._name} read {name}", _counting(frame), 1, unwatched)
        return query.text({name: f"{self._views}{name}" for name, staged in query.tables.items() if not staged.empty})

    async def _few(self, staged: Staged) -> pa.Table | None:
        """The rows of a small table; None for a larger one. Reading them here costs less than a job that caches
        them."""
        if staged.declared or staged.bytes > PASSED_BYTES:
            return None
        found = await self._here.fetch(Query(f"SELECT * FROM {staged.name}", tables={staged.name: staged}))
        return found.cast(staged.schema)

    def _table(self, session: "SparkSession", name: str, staged: Staged, rows: pa.Table | None) -> "DataFrame":
        # Spark Connect cannot infer the schema of a table without rows.
        small = None if rows is None else session.createDataFrame(rows, _ddl(staged.schema))
        frame = self._cached(session, staged) if small is None else small
        frame.createOrReplaceTempView(f"{self._views}{name}")
        return frame

    def _cached(self, session: "SparkSession", staged: Staged) -> "DataFrame":
        from pyspark import StorageLevel  # noqa: PLC0415  # an extra, and slow to import

        # The queries over a declared table are explained, and never run.
        parts = session.range(DECLARED_ROWS)
        if not staged.declared:
            keys = pa.table({"key": pa.array([part.key for part in staged.parts], pa.string())})
            parts = dealt(session, keys, np.arange(len(keys)), len(keys))
        read = InTask(carried(self._spec), read_parts)
        return parts.mapInArrow(read, _ddl(staged.schema)).persist(StorageLevel.DISK_ONLY)

    async def close(self) -> None:
        """Drop the views and their caches."""
        await self._here.close()
        bound, self._bound = self._bound, {}
        for name, (_, frame) in bound.items():
            await blocking(self._drop, name, frame)

    def _drop(self, name: str, frame: "DataFrame") -> None:
        from pyspark.errors import PySparkException  # noqa: PLC0415  # an extra, and slow to import

        gone: tuple[type[Exception], ...] = (PySparkException, *unanswered())
        try:
            frame.unpersist()
            frame.sparkSession.catalog.dropTempView(f"{self._views}{name}")
        except gone as error:  # the session, and all with it
            _log.debug("%s: its cached table is not dropped: %s", name, error)


def _counting(frame: "DataFrame") -> "Callable[[], DataFrame]":
    return lambda: frame.groupBy().count()


def dealt(session: "SparkSession", rows: pa.Table, groups: "np.ndarray[Any, Any]", tasks: int) -> "DataFrame":
    """Rows whose groups are dealt round robin to this many partitions."""
    frame = session.createDataFrame(rows.append_column("task", pa.array(groups % tasks, pa.int32())))
    return frame.repartitionById(tasks, "task").drop("task")


def _tasks_of(found: pa.Table, spread: Spread) -> int:
    """The number of tasks for the rows of ``_few_rows``; 0 if there are none."""
    if not found.num_rows:
        return 0
    return spread.tasks(found.column(WORK)[0].as_py() or 0, pc.max(found.column(GROUP)).as_py() + 1)


def _ddl(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  # an extra, and slow to import

    return from_arrow_schema(schema)


def _parts(table: pa.Table) -> list[Part]:
    return [Part(**row) for row in table.to_pylist()]


def _collected(spark: Spark, group: str, name: str, frame: "Callable[[], DataFrame]") -> pa.Table:
    try:
        if not spark.remote:
            spark.session.sparkContext.setJobGroup(group, name, interruptOnCancel=True)
        return frame().toArrow()
    except Exception as error:  # py4j and Spark Connect each have their own
        raise SparkFailed(f"{name}: a task failed for good ({reason(error)})") from error


def _ended(spark: Spark, group: str) -> int:
    """The number of tasks that have ended, as Spark reports it."""
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
    except unanswered() as error:  # raised where the tasks are awaited
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
        return named.partition("\n")[0].strip()[:500]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or [type(error).__name__])[-1][:500]
