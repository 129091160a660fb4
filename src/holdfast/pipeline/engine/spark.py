"""The engine on Spark: relational steps as DataFrames, kernels by ``mapInArrow``, on whatever master the session has.

Only the DataFrame API is used, so the same code runs on one machine, on a cluster and through Spark Connect. Work lists
are rows of a DataFrame: a task receives its own rows and no others. Kernels and the store's spec, with the settings and
the keys of this process, travel inside the function; each task opens the store on an event loop of its own, and closes
it.

A staged table is a cached DataFrame over its parts in the store. The cache may be lost with an executor: what is read
again are the same parts, so the rows stay those of the snapshot.

Errors: ``SparkFailed``, in one line, for a task that failed for good, and for a session that a cluster or a server has
ended: the next call starts another. ``SparkLost`` if the JVM has ended.
"""

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.telemetry import logger
from holdfast.objects.client import Client
from holdfast.objects.open import carried, check_exists, open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.protocol import Kernel, Progress, Query, Spread, unwatched
from holdfast.pipeline.engine.session import Spark, check_master, start, unanswered
from holdfast.pipeline.engine.staged import Part, Staged, Target, read_part, write_parts
from holdfast.pipeline.errors import FAILED, SparkFailed, in_one_line
from holdfast.pipeline.partition import TURNS
from holdfast.pipeline.tables.table import Table, Wanted

_log = logger("pipeline")

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = pa.schema([pa.field("row", pa.binary(), nullable=False)])
PARTS = pa.schema([("key", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])
WATCH_S = 0.2
DECLARED_ROWS = 1_000_000_000
SMALL_BYTES = 256 * 1024
"""A staged table of at most this compressed size is passed to Spark as rows."""
T = TypeVar("T")

Work = Callable[[Store, AsyncIterator[pa.RecordBatch]], AsyncIterator[pa.RecordBatch]]


@dataclass(frozen=True)
class InTask:
    """A function for ``mapInArrow``: work on the rows of one partition, with the store open. Picklable."""

    spec: StoreSpec
    work: Work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return  # a partition without rows opens no store
        with in_one_line(task=True), asyncio.Runner() as runner:
            store = runner.run(_opened(self.spec))
            try:
                found = self.work(store, _given(first, batches))
                while (batch := runner.run(_following(found))) is not None:
                    yield batch
            finally:
                runner.run(store.close())


async def _opened(spec: StoreSpec) -> Client:
    check_exists(spec, "every executor needs the directory that the driver has: use a shared filesystem, or a bucket")
    return await open_store(spec)


async def _following(found: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(found, None)


async def _given(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    yield first
    for batch in others:
        yield batch


@dataclass(frozen=True)
class Scan:
    """Read parts of a data source, and write their rows."""

    table: Table
    wanted: Wanted
    target: Target

    async def __call__(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async def rows() -> AsyncIterator[pa.RecordBatch]:
            async for batch in given:
                for payload in batch.column("payload").to_pylist():
                    part = pickle.loads(payload)  # noqa: S301  # the driver of this job has made it
                    async for found in self.table.read(store, part, self.wanted):
                        yield found

        yield _of_parts(await write_parts(store, self.target, rows()))


@dataclass(frozen=True)
class Map:
    """Run rows through a kernel, and write the rows that it returns."""

    kernel: Kernel
    target: Target

    async def __call__(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        yield _of_parts(await write_parts(store, self.target, self.kernel.rows(store, given)))


async def read_parts(store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """The rows of the parts whose keys are given."""
    async for batch in given:
        for key in batch.column("key").to_pylist():
            async for rows in read_part(store, key):
                yield rows


def _of_parts(parts: Sequence[Part]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": p.key, "rows": p.rows, "bytes": p.bytes} for p in parts], PARTS)


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
            if spark.ours and self._start is not None and self._started is spark:
                self._started = None
                await blocking(spark.stop)
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
        self._views = f"holdfast_{os.getpid()}_{id(self):x}_"
        self._bound: dict[str, tuple[Staged, DataFrame]] = {}

    async def scan(self, table: Table, wanted: Wanted, target: Target, progress: Progress) -> list[Part]:
        parts = [pickle.dumps(part) for part in await table.plan(self._store, wanted)]
        spark = await self._engine.spark()
        tasks = min(len(parts), await self._engine.cores() * TURNS)
        work = InTask(carried(self._spec), Scan(table, wanted, target))

        def frame() -> "DataFrame":
            return spread_payloads(spark.session, parts, tasks).mapInArrow(work, _ddl(PARTS))

        return _parts(await self._engine.collect(self._step(target), frame, tasks, progress)) if parts else []

    async def map(self, query: Query, kernel: Kernel, spread: Spread, target: Target, progress: Progress) -> list[Part]:
        spark = await self._engine.spark()
        text = await self._bind(query)
        tasks = 1 if spread.is_small(query) else await self._tasks(text, spread, target, progress)
        work = InTask(carried(self._spec), Map(kernel, target))

        def frame() -> "DataFrame":
            # An explicit number of partitions: adaptive execution would put a thousand small rows into one task.
            found: DataFrame = spark.session.sql(text)
            rows = _numbered(found, spread.by[0], tasks) if spread.numbered else found.repartition(tasks, *spread.by)
            return rows.sortWithinPartitions(*spread.sorting).mapInArrow(work, _ddl(PARTS))

        return _parts(await self._engine.collect(self._step(target), frame, tasks, progress))

    async def _tasks(self, text: str, spread: Spread, target: Target, progress: Progress) -> int:
        """The number of tasks for these rows."""
        spark = await self._engine.spark()
        groups = f"approx_count_distinct(struct({', '.join(spread.by)}))"
        counting = f"SELECT sum({spread.work}) AS work, {groups} AS groups FROM (\n{text}\n)"
        name = f"{self._step(target)}: count"
        counted = await self._engine.collect(name, lambda: spark.session.sql(counting), 1, progress)
        [row] = counted.to_pylist()
        return spread.tasks(int(row["work"] or 0), row["groups"])

    async def fetch(self, query: Query) -> pa.Table:
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
        if staged.declared or sum(part.bytes for part in staged.parts) > SMALL_BYTES:
            return None
        batches = [batch for part in staged.parts async for batch in read_part(self._store, part.key)]
        return pa.Table.from_batches(batches, staged.schema)

    def _table(self, session: "SparkSession", name: str, staged: Staged, rows: pa.Table | None) -> "DataFrame":
        # Spark Connect cannot infer the schema of a table without rows.
        small = None if rows is None else session.createDataFrame(rows, _ddl(staged.schema))
        frame = self._cached(session, staged) if small is None else small
        frame.createOrReplaceTempView(f"{self._views}{name}")
        return frame

    def _cached(self, session: "SparkSession", staged: Staged) -> "DataFrame":
        from pyspark import StorageLevel  # noqa: PLC0415  # an extra, and slow to import

        keys = pa.table({"key": pa.array([part.key for part in staged.parts], pa.string())})
        # The queries over a declared table are explained, and never run.
        parts = session.range(DECLARED_ROWS) if staged.declared else numbered(session, keys, len(staged.parts))
        read = InTask(carried(self._spec), read_parts)
        return parts.mapInArrow(read, _ddl(staged.schema)).persist(StorageLevel.DISK_ONLY)

    async def close(self) -> None:
        """Drop the views and their caches."""
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


def spread_payloads(session: "SparkSession", payloads: Sequence[bytes], tasks: int) -> "DataFrame":
    """Payloads as rows, spread evenly over this many tasks; each task receives only its own."""
    return numbered(session, pa.table({"payload": pa.array(payloads, pa.binary())}), tasks)


def _numbered(frame: "DataFrame", column: str, tasks: int) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415  # as everybody calls it; slow to import

    return frame.repartitionById(tasks, (F.col(column) % tasks).cast("int"))


def numbered(session: "SparkSession", rows: pa.Table, tasks: int) -> "DataFrame":
    """Rows dealt round robin to this many partitions."""
    places = pa.array([number % tasks for number in range(rows.num_rows)], pa.int32())
    frame = session.createDataFrame(rows.append_column("task", places))
    return frame.repartitionById(tasks, "task").drop("task")


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
