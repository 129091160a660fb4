"""DataFrames and streams written by Spark itself: ``df.write.format("holdfast")`` and ``writeStream``.

Spark calls ``write`` in its tasks and ``commit`` once in its driver. A task stages its rows under keys of its own;
retried and speculative tasks leave garbage, and the messages of those that count name what is committed.

A micro-batch is committed once, however often it is replayed: its query and number are part of the commit
(``ontology.bulk``). The query is Spark's own id of it, which a checkpoint keeps; ``option("query", name)`` gives it
another name. A new checkpoint under an old name counts batches from 0 again, and they would count as replays.

``saveAsTable`` and ``CREATE TABLE ... AS`` are refused: Spark gives the options of a table to nothing that reads it
later, so the table could not be read. Spark runs them as an execution within another, which a task can tell.

``foreach_batch`` does the same where a stream goes through a function first.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from holdfast.base.config import load as load_settings
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.load import Landed
from holdfast.ontology.types.model import Mixin
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.engine.session import is_remote
from holdfast.pipeline.errors import in_one_line
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.write.frame import columns_of, load, policy
from holdfast.pipeline.write.rows import LoadOptions, Staged, Staging, Typed, imported, known_type, land

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Under which Spark passes to its tasks which query and which batch they belong to."""
EXECUTION, ROOT = "spark.sql.execution.id", "spark.sql.execution.root.id"
"""Under which Spark passes to its tasks which statement they belong to, and which one that is part of."""
_KNOWN = ("class", "on_conflict", "latest_by", "retract_column", "allow_empty")
_BATCH_ONLY, _STREAM_ONLY = ("expect_absent", "if_head", "load_id"), ("query", "checkpointlocation", "queryname")


@dataclass(frozen=True)
class Plan:
    """What a write is about. Picklable."""

    staging: Staging
    load_options: LoadOptions
    query: str | None = None


@dataclass
class Message(WriterCommitMessage):
    staged: Staged
    query: str | None = None
    part_of_another: bool = False
    """The write belongs to a statement that makes a table of Spark's catalog."""


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        staging, local = self._plan.staging, _local_property
        if local(QUERY) is None and local(EXECUTION) != local(ROOT):
            return Message(Staged(staging.load), part_of_another=True)
        with in_one_line(task=True):
            return Message(staging.run(iterator))

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        found = [each for each in messages if isinstance(each, Message)]
        with in_one_line():
            if any(each.part_of_another for each in found):
                raise Invalid(
                    "saveAsTable and CREATE TABLE ... AS would make a table that Spark cannot read again",
                    remedy="write with save(), then CREATE TABLE x USING holdfast OPTIONS (store '...', table '...')",
                )
            _landed(self._plan.staging, [each.staged for each in found], self._plan.load_options)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Tasks may still be running: what they leave is garbage, which is found by its age."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        staging = self._plan.staging
        named = replace(staging, load=f"{staging.load}-{_local_property(BATCH) or 'batch'}")
        with in_one_line(task=True):
            return Message(named.run(iterator), _local_property(QUERY))

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # Spark's name
        found = [each for each in messages if isinstance(each, Message)]
        query = self._plan.query or next((each.query for each in found if each.query), None)
        if not found:
            return
        with in_one_line():
            if query is None:
                raise Invalid(
                    "Spark does not say which query this is, so that a replayed batch could not be recognised",
                    remedy='add .option("query", "a-name-of-its-own")',
                )
            load_options = replace(self._plan.load_options, source=query, batch=int(batchId))
            named = replace(self._plan.staging, load=found[0].staged.load)
            _landed(named, [each.staged for each in found], load_options)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # as above
        """As of a batch: nothing is visible, and what was staged is found by its age."""


def _local_property(name: str) -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(name)


def batch_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> BatchWriter:
    """For ``df.write``. With ``overwrite``, what is there and not in the frame is retracted."""
    return BatchWriter(_plan(options, schema, overwrite=overwrite, streaming=False))


def stream_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> StreamWriter:
    """For ``writeStream``. With ``overwrite`` (output mode complete) each batch takes the place of all there is."""
    return StreamWriter(_plan(options, schema, overwrite=overwrite, streaming=True))


def foreach_batch(
    store: str,
    of: type[Mixin] | str,
    *,
    query: str | None = None,
    on_conflict: Policy | str = Policy.REPLACE,
    latest_by: str | None = None,
    retract_column: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> "Callable[[DataFrame, int], None]":
    """A function for ``writeStream.foreachBatch``: each micro-batch one commit, once, also when it is replayed."""

    def write(frame: "DataFrame", batch_id: int) -> None:
        source = query or _query_of(frame)
        if source is None:
            raise Invalid("Spark does not say which query this is", remedy="name it: foreach_batch(..., query=...)")

        async def work() -> Landed:
            async with open_store(StoreSpec.parse(store, load_settings())) as opened:
                return await load(
                    frame,
                    opened,
                    of,
                    on_conflict=on_conflict,
                    latest_by=latest_by,
                    retract_column=retract_column,
                    load_id=source,
                    batch=batch_id,
                    metadata=metadata,
                )

        asyncio.run(work())

    return write


def _query_of(frame: "DataFrame") -> str | None:
    session: Any = frame.sparkSession
    found = None if is_remote(session) else session.sparkContext.getLocalProperty(QUERY)
    return None if found is None else str(found)


# --- options ---


def _plan(options: Mapping[str, str], schema: "StructType", *, overwrite: bool, streaming: bool) -> Plan:
    with in_one_line():
        given = Given.of(options)
        given.check("a write", (*_KNOWN, *(_STREAM_ONLY if streaming else _BATCH_ONLY)))
        settings, spec = given.settings(), given.spec(reading=False)
        if_head, allow_empty = given.whole("if_head"), given.flag("allow_empty")
        typed = _typed(spec, given)
        latest_by = given.text("latest_by")
        columns = columns_of(schema, typed.type_info(), given.text("retract_column"), latest_by)
        upserts = streaming or overwrite or columns.change is not None
        rules = Rules(
            policy(given.text("on_conflict") or (Policy.REPLACE if upserts else Policy.ERROR)),
            given.flag("expect_absent"),
            latest_by,
            overwrite,
            columns.change is not None,
        )
        load_options = LoadOptions(
            rules,
            given.text("load_id"),
            if_head=if_head,
            lease_ttl_ms=settings.ontology.s3_lease_ttl_ms,
            allow_empty=allow_empty,
        )
        staging = Staging(spec, Ambient.system().ids.unique(), typed, columns)
        return Plan(staging, load_options, given.text("query"))


def _typed(spec: StoreSpec, given: Given) -> Typed:
    named = given.text("class")
    if named is not None:
        if given.text("table") is not None:
            raise Invalid("both class and table say what to write", remedy="give one of them")
        imported(named)  # here, where the error is one line, and not in every task
        return Typed(named=named)
    if (name := given.text("table") or given.text("path")) is None:
        raise Invalid(
            "it is not said which type to write",
            remedy='add .option("table", "Customer"), or .option("class", "shop.types:Customer")',
        )

    async def work() -> Typed:
        async with open_store(spec) as store:
            return await known_type(store, name)

    return asyncio.run(work())


# --- the driver ---


def _landed(staging: Staging, parts: list[Staged], load_options: LoadOptions) -> Landed:
    async def work() -> Landed:
        async with open_store(staging.spec) as store:
            named = replace(load_options, runtime_id=f"spark-{store.ambient.ids.attempt()}")
            return await land(store, staging.typed.type_info(), staging.load, parts, named, Inline())

    return asyncio.run(work())
