"""DataFrames and streams written by Spark itself: ``df.write.format("holdfast")`` and ``writeStream``.

Spark calls ``write`` in its tasks and ``commit`` once in its driver. A task stages what it is given under keys of its
own; retried and speculative tasks leave garbage, and the messages of those that count name what is committed.

A micro-batch is committed once, whoever replays it: its query and number stand in the commit (``ontology.bulk``). The
query is Spark's own id of it, which a checkpoint keeps; ``option("query", name)`` gives it another name. Whoever uses a
name and begins with a new checkpoint counts batches from 0 again, and they would be taken for replays.

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

from holdfast.base.config import Settings
from holdfast.base.config import load as load_settings
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.open import open_store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.bulk.decide import Policy, Rules
from holdfast.ontology.bulk.loader import Landed
from holdfast.ontology.types.model import Mixin
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.frameload import load, policy
from holdfast.pipeline.loading import Staged, Typed, Wishes, imported, known_type, land, stage, with_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

FAILED = "holdfast-error:"
QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"
"""Under which Spark tells its tasks which query and which batch they belong to."""
_KNOWN = ("store", "table", "path", "class", "on_conflict", "expect_absent", "latest_by", "if_head", "query", "load_id")
_SPARKS = ("checkpointlocation", "queryname")
"""Options of Spark's own that come along."""


@dataclass(frozen=True)
class Plan:
    """What a write is about. Picklable."""

    spec: StoreSpec
    typed: Typed
    wishes: Wishes
    load: str
    query: str | None = None


@dataclass
class Message(WriterCommitMessage):
    staged: Staged
    query: str | None = None


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return Message(stage(self._plan.spec, self._plan.load, self._plan.typed, iterator))

    def commit(self, messages: "list[WriterCommitMessage | None]") -> None:
        _landed(self._plan, self._plan.load, _parts(messages), self._plan.wishes)

    def abort(self, messages: "list[WriterCommitMessage | None]") -> None:
        """Tasks may still be at it: what they leave is garbage, which is found by its age."""


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context: Any = TaskContext.get()
        load_name = f"{self._plan.load}-{context.getLocalProperty(BATCH) or 'batch'}"
        return Message(stage(self._plan.spec, load_name, self._plan.typed, iterator), context.getLocalProperty(QUERY))

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # Spark's name
        found = [each for each in messages if isinstance(each, Message)]
        query = self._plan.query or next((each.query for each in found if each.query), None)
        if not found:
            return
        if query is None:
            raise RuntimeError(
                f"{FAILED}invalid: Spark does not say which query this is, so a replay could not be told from news "
                '(hint: add .option("query", "a-name-of-its-own"))'
            )
        wishes = with_source(self._plan.wishes, query, int(batchId))
        _landed(self._plan, found[0].staged.load, [each.staged for each in found], wishes)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803  # as above
        """As of a batch: nothing is visible, and what was staged is found by its age."""


def batch_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> BatchWriter:
    """For ``df.write``. With ``overwrite``, what is there and not in the frame is retracted."""
    plan = _plan(options, overwrite=overwrite, streaming=False)
    return BatchWriter(plan)


def stream_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> StreamWriter:
    """For ``writeStream``. With ``overwrite`` (output mode complete) each batch takes the place of all there is."""
    return StreamWriter(_plan(options, overwrite=overwrite, streaming=True))


def foreach_batch(
    store: str,
    of: type[Mixin] | str,
    *,
    query: str | None = None,
    on_conflict: Policy | str = Policy.REPLACE,
    latest_by: str | None = None,
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
                    load_id=source,
                    batch=batch_id,
                    metadata=metadata,
                )

        asyncio.run(work())

    return write


def _query_of(frame: "DataFrame") -> str | None:
    session: Any = frame.sparkSession
    found = session.sparkContext.getLocalProperty(QUERY) if hasattr(session, "_jsparkSession") else None
    return None if found is None else str(found)


# --- options ---


def _plan(options: Mapping[str, str], *, overwrite: bool, streaming: bool) -> Plan:
    given = {str(name).lower(): str(value) for name, value in options.items()}
    try:
        _check_names(given, streaming=streaming)
        settings = load_settings()
        spec = _spec(given, settings)
        rules = Rules(
            policy(given.get("on_conflict") or (Policy.REPLACE if streaming or overwrite else Policy.ERROR)),
            _flag(given, "expect_absent"),
            given.get("latest_by"),
            overwrite,
        )
        wishes = Wishes(
            rules,
            given.get("load_id"),
            if_head=_commit(given, "if_head"),
            lease_ttl_ms=settings.ontology.s3_lease_ttl_ms,
        )
        return Plan(spec, _typed(spec, given), wishes, Ambient.system().ids.unique(), given.get("query"))
    except HoldfastError as error:
        raise _told(error) from None


def _check_names(given: Mapping[str, str], *, streaming: bool) -> None:
    known = {*_KNOWN, *_SPARKS} - ({"load_id", "if_head", "expect_absent"} if streaming else {"query"})
    for name in given:
        if name not in known:
            raise Invalid(f"a write has no option {name!r}", remedy=f"those that it has: {', '.join(sorted(known))}")


def _spec(given: Mapping[str, str], settings: Settings) -> StoreSpec:
    uri = given.get("store")
    if uri is None and "store" not in settings.model_fields_set:
        raise Invalid("it is not said which store to write", remedy='add .option("store", "s3://bucket/prefix")')
    spec = StoreSpec.parse(uri if uri is not None else settings.store.uri, settings)
    if spec.scheme == "memory":
        raise Invalid(f"{spec.uri}: a store in memory is not there for other processes", remedy="use file: or s3:")
    return spec


def _typed(spec: StoreSpec, given: Mapping[str, str]) -> Typed:
    if "class" in given:
        if "table" in given:
            raise Invalid("both class and table say what to write", remedy="give one of them")
        imported(given["class"])  # here, where the error is told in one line, and not in every task
        return Typed(named=given["class"])
    name = given.get("table") or given.get("path")
    if name is None:
        raise Invalid(
            "it is not said which type to write",
            remedy='add .option("table", "Customer"), or .option("class", "shop.types:Customer")',
        )

    async def work() -> Typed:
        async with open_store(spec) as store:
            return await known_type(store, name)

    return asyncio.run(work())


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise Invalid(f"option {name}: {text!r} is neither true nor false")
    return text == "true"


def _commit(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is not None and not text.isdecimal():
        raise Invalid(f"option {name}: {text!r} is no commit", remedy="give its number, such as 42")
    return None if text is None else int(text)


# --- the driver ---


def _parts(messages: "list[WriterCommitMessage | None]") -> list[Staged]:
    return [each.staged for each in messages if isinstance(each, Message)]


def _landed(plan: Plan, load_name: str, parts: list[Staged], wishes: Wishes) -> Landed:
    async def work() -> Landed:
        async with open_store(plan.spec) as store:
            named = replace(wishes, runtime_id=f"spark-{store.ambient.ids.attempt()}")
            return await land(store, plan.typed.type_info(), load_name, parts, named, Inline(store))

    try:
        return asyncio.run(work())
    except HoldfastError as error:
        raise _told(error) from None


def _told(error: HoldfastError) -> RuntimeError:
    """As one line that is found in what Spark makes of it."""
    hint = f" (hint: {error.remedy})" if error.remedy else ""
    return RuntimeError(f"{FAILED}{error.kind}: {error}{hint}".replace("\n", " "))
