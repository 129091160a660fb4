"""Bulk loads on Spark: what its tasks are given, and how they and a driver work with ``ontology.bulk``.

Nothing here needs PySpark: rows come as Arrow batches. A task stages what it is given on a
loop and a store of its own, and answers with its key; a driver decides and commits.
``design/0054-spark-writes.md`` has the plan.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.record import Record
from holdfast.objects.client import ambient_of
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.bulk import load as bulk_load
from holdfast.ontology.bulk.decide import ORDER, RETRACTS, Rules
from holdfast.ontology.bulk.stage import StagedFile, Stager
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.columns import DECIMAL
from holdfast.ontology.format.data.intake import JSON_TEXT
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain import leftovers
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.session import Ontology
from holdfast.ontology.session import Options as SessionOptions
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.model import Mixin, derived_class
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import ENDS, TypeInfo, of_schema, type_info
from holdfast.ontology.types.typespec import Anything, OneOf, form_of, without_null
from holdfast.pipeline.engine import Engine
from holdfast.pipeline.engine.protocol import Spread
from holdfast.pipeline.engine.relations import relations

Say = Callable[[str, int, int], None]
TEXT_TOO = (OneOf, Anything)
"""Fields that may hold a text as such: whether a column of texts is JSON, only the frame's schema says."""
LEASE_MS = SessionOptions().lease_ttl_ms


@dataclass(frozen=True)
class Typed:
    """A type as it goes to other processes: its class, where the class is found, or the store's own schema."""

    python: type[Mixin] | None = None
    named: str | None = None
    known: tuple[TypeId, Document, Mapping[str, Document]] | None = None

    def type_info(self) -> TypeInfo:
        if self.python is not None:
            return type_info(self.python)
        if self.named is not None:
            return type_info(imported(self.named))
        if self.known is None:
            raise Invalid("no type is named")
        return type_info(derived_class(of_schema(*self.known)))


def imported(target: str) -> type[Mixin]:
    """The class that ``module:Name`` means, from the working folder or anywhere on the path."""
    module, colon, name = target.partition(":")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), name) if colon else None
    except (ImportError, AttributeError, ValueError) as error:
        raise Invalid(f"{target}: {error}", remedy="name an importable module and a class in it") from error
    if not (isinstance(found, type) and issubclass(found, Mixin)):
        raise Invalid(f"{target!r} is no entity or relation type", remedy="write it like shop.types:Customer")
    return found


async def known_type(store: Store, name: str) -> Typed:
    """A type by the schema that the store has of it."""
    chain = Chain(store)
    ledger = await chain.ledger((await read_head(store)).place)
    type_id = find_type(ledger, name)
    schema = await _schema(store, chain, ledger, type_id)
    if schema is None:
        raise Invalid(f"the store has rows of {name}, but no schema", remedy="name its class")
    ends: dict[str, Document] = {}
    for side in ("left_type", "right_type") if type_id.kind == "relation" else ():
        end = str(schema.get(side))
        if (found := await _schema(store, chain, ledger, TypeId("entity", end))) is not None:
            ends[end] = found
    return Typed(known=(type_id, schema, ends))


async def _schema(store: Store, chain: Chain, ledger: Ledger, type_id: TypeId) -> Document | None:
    stored = await catalog.schema_at(chain, ledger, type_id)
    return None if stored is None else stored.schema


# --- columns of a frame ---

READ_COLUMNS = ("commit_id", "_change_type", "_commit_version", "_commit_timestamp")
"""What frames that were read have besides fields: it is understood or left out when they are written."""
_WRITES, _RETRACTS = ("insert", "update", "update_postimage", "false"), ("retract", "delete", "true")
_PASSED_OVER = ("update_preimage",)


@dataclass(frozen=True)
class Columns:
    """What the columns of a frame mean that are no fields of the type. Picklable."""

    left_out: tuple[str, ...] = ()
    change: str | None = None
    """Says of each row whether it is written or retracts its identity."""
    order: str | None = None
    """Of several rows for one identity, the one with the greatest value is the newest."""
    json: tuple[str, ...] = ()
    """Texts that are the JSON of a field's values."""
    latest_by: str | None = None

    @classmethod
    def of(cls, names: Sequence[str], info: TypeInfo, retract_column: str | None, latest_by: str | None) -> "Columns":
        """``Invalid`` if the frame has no such column."""
        if retract_column is not None and retract_column not in names:
            said = f"retract_column is {retract_column!r}, and there is no such column"
            raise Invalid(said, remedy=f"the columns: {', '.join(names)}")
        fields = {*info.fields, *(ENDS if info.ends is not None else ())}
        known = [name for name in READ_COLUMNS if name in names and name not in fields]
        change = retract_column or ("_change_type" if "_change_type" in known else None)
        order = "_commit_version" if change == "_change_type" and "_commit_version" in known else None
        left_out = dict.fromkeys((*known, *([change] if change is not None and change not in fields else [])))
        shapes = {name: without_null(info.nodes[name])[0] for name in names if name in info.nodes}
        texts = [name for name, node in shapes.items() if form_of(node) == "json" and not isinstance(node, TEXT_TOO)]
        return cls(tuple(left_out), change, order, tuple(texts), latest_by)

    def taken(self, table: pa.Table) -> pa.Table:
        """The rows as ``ontology.bulk`` takes them."""
        found = table.drop_columns([name for name in self.left_out if name in table.column_names])
        for name in set(self.json) & set(found.column_names):
            place = found.schema.get_field_index(name)
            own = found.schema.field(place)
            if pa.types.is_string(own.type) and b"holdfast" not in (own.metadata or {}):
                found = found.set_column(place, own.with_metadata(JSON_TEXT), found.column(place))
        for place, own in enumerate(found.schema):
            if pa.types.is_decimal(own.type):  # its places are the column's: equal numbers are to be equal texts
                with suppress(pa.ArrowInvalid):  # a number that does not fit is refused with its row
                    found = found.set_column(place, own.with_type(DECIMAL), found.column(place).cast(DECIMAL))
        if self.order is not None:
            try:
                found = found.append_column(ORDER, table.column(self.order).cast(pa.int64()))
            except pa.ArrowException as error:
                raise InvalidValue(
                    f"column {self.order}: {error}", type_name="", field=self.order, remedy="numbers order the changes"
                ) from error
        if self.change is None:
            return found
        column = table.column(self.change)
        if pa.types.is_boolean(column.type):
            return found.append_column(RETRACTS, pc.fill_null(column, False))
        if not pa.types.is_string(column.type):
            raise InvalidValue(
                f"column {self.change} is of type {column.type}, and says what becomes of a row",
                type_name="",
                field=self.change,
                remedy="make it true for rows that retract, or a text such as insert, update or delete",
            )
        meant = pa.array((*_WRITES, *_RETRACTS, *_PASSED_OVER))
        strange = table.filter(pc.invert(pc.is_in(column, meant))).column(self.change)
        if len(strange):
            raise InvalidValue(
                f"column {self.change} has the value {strange[0].as_py()!r}",
                type_name="",
                field=self.change,
                remedy=f"it may have: {', '.join(meant.to_pylist())}",
            )
        found = found.append_column(RETRACTS, pc.is_in(column, pa.array(_RETRACTS)))
        return found.filter(pc.invert(pc.is_in(column, pa.array(_PASSED_OVER))))


def format_hint(source: str, style: str) -> str:
    """What to do about files that cannot be read in this format."""
    ending = Path(source).suffix[1:].lower()
    wanted = {"jsonl": "json", "ndjson": "json"}.get(ending, ending)
    if wanted in ("parquet", "csv", "json", "orc") and wanted != style:
        return f"add --format {wanted}"
    return f"the files are read as {style}: name the right --format"


# --- tasks ---


class Fault(NamedTuple):
    """Why a row does not fit: what ``InvalidValue`` says."""

    message: str
    type_name: str
    field: str | None
    remedy: str | None


@dataclass(frozen=True)
class Staged(Record):
    """What a task has staged, or why a row of its own does not fit. Picklable."""

    WHAT = "what a task has staged"
    load: str
    files: tuple[StagedFile, ...] = ()
    fault: Fault | None = None


async def staged(
    store: Store,
    load: str,
    info: TypeInfo,
    batches: Iterable[pa.RecordBatch],
    columns: Columns = Columns(),  # noqa: B008  # it is immutable
) -> Staged:
    """Stage what comes. A row that does not fit is returned, not raised: trying again would not help."""
    stager = Stager(store, ambient_of(store), load, info, latest_by=columns.latest_by)
    try:
        for batch in batches:
            if batch.num_rows:
                await stager.add(columns.taken(pa.Table.from_batches([batch])))
        return Staged(load, tuple(await stager.finish()))
    except InvalidValue as error:
        return Staged(load, fault=Fault(str(error), error.type_name, error.field, error.remedy))


@dataclass(frozen=True)
class Staging:
    """What a task in a process of its own does. Picklable."""

    spec: StoreSpec
    load: str
    typed: Typed
    columns: Columns = field(default_factory=Columns)

    def run(self, batches: Iterable[pa.RecordBatch]) -> Staged:
        """Stage what comes. Blocking."""

        async def work() -> Staged:
            async with open_store(self.spec) as store:
                return await staged(store, self.load, self.typed.type_info(), batches, self.columns)

        return asyncio.run(work())


WORK = pa.schema([("number", pa.int64()), ("work", pa.string())])
DONE = pa.schema([("number", pa.int64()), ("result", pa.string())])


@dataclass(frozen=True)
class Work:
    """A task of ``ontology.bulk`` as a kernel: each row is the work of one call, as JSON. Picklable."""

    task: bulk_load.Task
    schema: pa.Schema = DONE

    async def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async for batch in given:
            for row in batch.to_pylist():
                found = await self.task(store, ambient_of(store), json.loads(row["work"]))
                done = [{"number": row["number"], "result": json.dumps(each)} for each in found]
                yield pa.RecordBatch.from_pylist(done, DONE)


# --- the driver ---


async def run_tasks(
    store: Store, engine: Engine, name: str, task: bulk_load.Task, work: Sequence[Document], say: Say
) -> list[Document]:
    """What a task gives for each of these, in their order; each is worth a task of Spark."""
    if not work:
        return []
    run_id = f"{name}-{ambient_of(store).ids.unique()}"

    async def rows() -> AsyncIterator[pa.RecordBatch]:
        numbered = [{"number": number, "work": json.dumps(each)} for number, each in enumerate(work)]
        yield pa.RecordBatch.from_pylist(numbered, WORK)

    async with relations(store, engine, run_id, lambda step: lambda done, total: say(name, done, total)) as steps:
        try:
            await steps.put("work", WORK, rows())
            await steps.map("done", "SELECT * FROM work", Work(task), Spread(by=("number",), worth=1))
            found = await steps.rows("SELECT number, result FROM done")
        finally:
            await steps.remove()
    return [json.loads(row["result"]) for row in sorted(found, key=lambda row: int(row["number"]))]


@dataclass(frozen=True)
class LoadOptions:
    """How a load is made."""

    rules: Rules = field(default_factory=Rules)
    source: str | None = None
    batch: int = 0
    if_head: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    runtime_id: str | None = None
    lease_ttl_ms: int = LEASE_MS
    """Of the write lock."""
    allow_empty: bool = False
    """A load without rows may take the place of all there is."""


async def land(
    store: Store,
    info: TypeInfo,
    load: str,
    parts: Sequence[Staged],
    load_options: LoadOptions,
    engine: Engine,
    say: Say = lambda step, done, total: None,
) -> bulk_load.Landed:
    """Decide and commit what tasks have staged; afterwards nothing of it is left, whatever came of it."""
    ambient = ambient_of(store)

    async def run(name: str, task: bulk_load.Task, payloads: Sequence[Document]) -> list[Document]:
        return await run_tasks(store, engine, name, task, payloads, say)

    metadata = dict(load_options.metadata)
    if load_options.source is not None:
        metadata["sink"] = {"query": load_options.source, "batch": load_options.batch}
    # Who died between two of its commits holds the lock to the end of its lease: the next one waits that out.
    term_ms = load_options.lease_ttl_ms
    options = SessionOptions(
        runtime_id=load_options.runtime_id,
        lease_ttl_ms=term_ms,
        lock_timeout_ms=2 * max(term_ms, LEASE_MS),
        compaction=False,
    )
    try:
        _check(parts, load_options)
        staged_files = [each for part in parts for each in part.files]
        request = bulk_load.Request(
            load, load_options.rules, load_options.source, load_options.batch, load_options.if_head, metadata
        )
        async with Ontology(store, ambient, [info.python], options) as onto:
            say("commit", 0, 1)
            landed = await bulk_load.Loader(onto, ambient, info, run).land(request, staged_files)
            if landed.replayed:
                await onto.flush()  # the process that committed it may have died before its indexes
        say("commit", 1, 1)
        return landed
    finally:
        with suppress(HoldfastError):  # what stays is garbage that is found by its age
            await leftovers.forget(store, load)


def _check(parts: Sequence[Staged], load_options: LoadOptions) -> None:
    """The first row that does not fit refuses the load; and so does an empty frame in place of all there is."""
    for part in parts:
        if part.fault is not None:
            fault = part.fault
            raise InvalidValue(fault.message, type_name=fault.type_name, field=fault.field, remedy=fault.remedy)
    if load_options.rules.instead and not load_options.allow_empty and not any(part.files for part in parts):
        raise Invalid(
            "there are no rows, and they would take the place of all there are",
            remedy="set allow_empty to retract everything, or look why there are none",
        )
