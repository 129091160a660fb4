"""Streams for Spark: the change feed by commits, accepted batches and their records by references.

Offsets are the position of a stream: ``{"commit": 12}``, or a ``Position``. What is between two offsets is the same
whenever it is asked for, so a micro-batch that is done again after a crash has the rows that it had. Offsets are made
where Spark plans; what is between them is listed there and read by tasks.

``max_commits_per_trigger`` and ``max_batches_per_trigger`` bound a micro-batch; a trigger that wants all that is
available now (``availableNow``) gets what there was when it began, in such micro-batches, and ends.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.base.clock import SystemClock, parse_iso, parse_span
from holdfast.base.errors import Incompatible, Invalid
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import commit_at
from holdfast.ontology.format.head import read_head
from holdfast.pipeline.errors import in_one_line
from holdfast.pipeline.tables.changes import ChangesTable
from holdfast.pipeline.tables.datasource import batches, with_store
from holdfast.pipeline.tables.given import Given
from holdfast.pipeline.tables.records import RecordsTable, clusters_between, in_parts
from holdfast.pipeline.tables.table import ITEMS_AT_ONCE, RowsTable, Table, Wanted, groups
from holdfast.pipeline.tables.types import moment_of
from holdfast.telemetry.discover import (
    Position,
    Rule,
    delivered_between,
    listed_references,
    position_now,
    resolve_all,
    scan,
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxFiles,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:  # PySpark 4.1
    raise Incompatible("streams need PySpark 4.2 or newer", remedy="pip install --upgrade pyspark") from error

Offset = dict[str, Any]
EVER_NS = 1 << 62
DEEP_EVERY_NS = 600 * 1_000_000_000
"""How often a stream without news looks for references that are late."""


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What all streams have in common."""

    limited_by = ""
    """The option that bounds a micro-batch."""

    def __init__(self, given: Given, table: Any, wanted: Wanted, schema: StructType) -> None:
        self._given, self._table, self._wanted = given, table, wanted
        self._spec = given.spec()
        self._schema = schema
        self._most = given.whole(self.limited_by, least=1)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        return ReadAllAvailable() if self._most is None else ReadMaxFiles(self._most)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802  # Spark's name
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        with in_one_line():
            return with_store(self._spec, lambda store: self._latest(store, start, most))

    def initialOffset(self) -> Offset:  # noqa: N802  # Spark's name
        with in_one_line():
            return with_store(self._spec, self._initial)

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        with in_one_line():
            parts = with_store(self._spec, lambda store: self._parts(store, start, end))
            return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part = partition.value
        return batches(self._spec, self._schema, lambda store: self._table.read(store, part, self._wanted))

    @abstractmethod
    async def _initial(self, store: Store) -> Offset: ...

    @abstractmethod
    async def _latest(self, store: Store, start: Offset, most: int | None) -> Offset: ...

    @abstractmethod
    async def _parts(self, store: Store, start: Offset, end: Offset) -> list[Any]: ...


class ChangesStream(TableStream):
    limited_by = "max_commits_per_trigger"

    def __init__(self, given: Given, table: ChangesTable, wanted: Wanted, schema: StructType) -> None:
        super().__init__(given, table, wanted, schema)
        self._target: int | None = None

    async def _initial(self, store: Store) -> Offset:
        text = self._given.text("start") or "earliest"
        head = await read_head(store)
        if text == "earliest":
            return {"commit": self._table.since}
        if text == "latest":
            return {"commit": head.commit_id}
        chain = Chain(store)
        return {"commit": await commit_at(moment_of(text), chain, await chain.ledger(head.place))}

    async def _latest(self, store: Store, start: Offset, most: int | None) -> Offset:
        last = self._target if self._target is not None else (await read_head(store)).commit_id
        if most is not None:
            last = min(last, _commit(start) + most)
        return {"commit": max(last, _commit(start))}

    async def _parts(self, store: Store, start: Offset, end: Offset) -> list[Any]:
        table: ChangesTable = self._table
        # The table was pinned when the query began; the feed continues after that.
        now = replace(table, place=(await read_head(store)).place)
        return await now.parts(store, _commit(start), _commit(end), self._wanted.conditions)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        with in_one_line():
            self._target = with_store(self._spec, read_head).commit_id

    def reportLatestOffset(self) -> Offset:  # noqa: N802  # Spark's name
        with in_one_line():
            return {"commit": with_store(self._spec, read_head).commit_id}


def _commit(offset: Offset) -> int:
    found = offset.get("commit")
    if not isinstance(found, int):
        raise Invalid(f"{offset!r:.80} is no offset of the change feed", remedy="use a checkpoint of its own")
    return found


class ReferencesStream(TableStream):
    """Accepted batches, or their records."""

    limited_by = "max_batches_per_trigger"

    def __init__(self, given: Given, table: RowsTable | RecordsTable, wanted: Wanted, schema: StructType) -> None:
        super().__init__(given, table, wanted, schema)
        late = given.text("late")
        self._rule = Rule() if late is None else Rule(late_ns=EVER_NS if late == "all" else parse_span(late))
        self._clock = SystemClock()
        self._deep_at_ns: int | None = None
        self._bounded = False
        self._target: Position | None = None

    async def _initial(self, store: Store) -> Offset:
        text = self._given.text("start") or "earliest"
        if text == "earliest":
            return Position().document()
        if text == "latest":
            return (await position_now(store, self._clock, self._rule)).document()
        try:
            time_ns = parse_iso(text)
        except ValueError as error:
            raise Invalid(
                f"option start: {text!r} is no time", remedy="write earliest, latest, or 2026-05-01T12:00:00Z"
            ) from error
        return Position((("", time_ns),), newest_ns=time_ns, regular_ns=time_ns, deep_ns=time_ns).document()

    async def _latest(self, store: Store, start: Offset, most: int | None) -> Offset:
        position = Position.of_offset(start)
        if self._bounded and self._target is None:
            self._target = (await scan(store, self._clock, self._rule, position, deep=True)).end
        now_ns = self._clock.monotonic_ns()
        first = self._deep_at_ns is None and not position.more
        due = self._deep_at_ns is None or now_ns - self._deep_at_ns >= DEEP_EVERY_NS
        deep = self._bounded or first or (self._rule.deep(position) and due)
        found = await scan(
            store,
            self._clock,
            self._rule,
            position,
            deep=deep and not position.more,
            limit=most,
            within=self._target,
        )
        if deep and not found.end.more:
            self._deep_at_ns = now_ns
        resolved = await resolve_all(store, found.new)
        if not (resolved.batches or resolved.unreadable or found.end.more):
            return start
        return found.end.without(each.id for each in resolved.waiting).document()

    async def _parts(self, store: Store, start: Offset, end: Offset) -> list[Any]:
        before, after = Position.of_offset(start), Position.of_offset(end)
        listed = [] if start == end else [each async for each in listed_references(store, after.begin)]
        keys = [each.full_key for each in delivered_between(before, after, listed)]
        if not isinstance(self._table, RecordsTable):
            return groups(keys, worth=ITEMS_AT_ONCE, most=self._wanted.partitions)
        table = self._table
        together, given = await clusters_between(store, before, keys, table.unreadable)
        return in_parts(together, table.span, self._wanted.partitions, given)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._bounded, self._target = True, None


def stream_reader(given: Given, table: Table, wanted: Wanted, schema: StructType) -> TableStream:
    """The stream of a table. ``Invalid`` for a table that has none."""
    if isinstance(table, ChangesTable):
        return ChangesStream(given, table, wanted, schema)
    if isinstance(table, RecordsTable) or (isinstance(table, RowsTable) and table.name == "accepted"):
        return ReferencesStream(given, table, wanted, schema)
    raise Invalid(
        f"table {table.name} cannot be read as a stream",
        remedy='changes, accepted, samples, logs and alerts can; for a type, read "changes" with .option("type", ...)',
    )
