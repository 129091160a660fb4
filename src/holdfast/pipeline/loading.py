"""Bulk loads on Spark: what its tasks are given, and how they and a driver work with ``ontology.bulk``.

Nothing here needs PySpark: rows come as Arrow batches, whoever hands them over. A task stages what it is given on a
loop and a store of its own, and answers with where it lies; a driver decides and commits.
``design/0054-spark-writes.md`` has the plan.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.ontology.bulk import loader
from holdfast.ontology.bulk.decide import Rules
from holdfast.ontology.bulk.stage import Stager
from holdfast.ontology.bulk.staged import StagedFile
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain import staged_loads
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.session import Ontology
from holdfast.ontology.session import Options as SessionOptions
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.model import Mixin, derived_class
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema, type_info
from holdfast.pipeline.engine import Engine, unwatched
from holdfast.runs.engine.workflow import ambient_of

Say = Callable[[str, int, int], None]
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


# --- tasks ---


@dataclass(frozen=True)
class Staged:
    """What a task has staged, or why a row of its own does not fit. Picklable."""

    load: str
    sheaves: tuple[Document, ...] = ()
    rows: int = 0
    fault: tuple[str, str, str | None] | None = None
    """Type, message, field."""
    source: str | None = None
    """Whose batch it is, as far as the task was told."""

    def document(self) -> Document:
        return {
            "load": self.load,
            "sheaves": list(self.sheaves),
            "rows": self.rows,
            "fault": None if self.fault is None else list(self.fault),
        }

    @classmethod
    def parse(cls, document: Document) -> "Staged":
        fault = document["fault"]
        return cls(
            document["load"], tuple(document["sheaves"]), document["rows"], None if fault is None else tuple(fault)
        )


async def staged(store: Store, load: str, info: TypeInfo, batches: Iterable[pa.RecordBatch]) -> Staged:
    """Stage what comes. A row that does not fit is told, not raised: trying again would not help."""
    stager = Stager(store, ambient_of(store), load, info)
    try:
        for batch in batches:
            if batch.num_rows:
                await stager.add(pa.Table.from_batches([batch]))
        sheaves = await stager.finish()
    except InvalidValue as error:
        return Staged(load, fault=(error.type_name, str(error), error.field))
    return Staged(load, tuple(sheaf.document() for sheaf in sheaves), stager.rows)


def stage(spec: StoreSpec, load: str, typed: Typed, batches: Iterable[pa.RecordBatch]) -> Staged:
    """The same in a process of its own. Blocking."""

    async def work() -> Staged:
        async with open_store(spec) as store:
            return await staged(store, load, typed.type_info(), batches)

    return asyncio.run(work())


@dataclass(frozen=True)
class Work:
    """A task of ``ontology.bulk`` as an engine runs it. Picklable."""

    task: loader.Task

    async def __call__(self, store: Store, payload: bytes) -> list[Document]:
        return await self.task(store, ambient_of(store), codec.decode(payload, key="a payload"))


# --- the driver ---


@dataclass(frozen=True)
class Wishes:
    """How a load is made, whoever asks for it."""

    rules: Rules = field(default_factory=Rules)
    source: str | None = None
    batch: int = 0
    if_head: int | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    runtime_id: str | None = None
    lease_ttl_ms: int = LEASE_MS
    """Of the write lock."""


async def land(
    store: Store,
    info: TypeInfo,
    load: str,
    parts: Sequence[Staged],
    wishes: Wishes,
    engine: Engine,
    say: Say = lambda step, done, total: None,
) -> loader.Landed:
    """Decide and commit what tasks have staged; afterwards nothing of it is left, whatever came of it."""
    ambient = ambient_of(store)

    async def run(name: str, task: loader.Task, payloads: Sequence[Document]) -> list[Document]:
        bodies = [codec.encode(each) for each in payloads]
        return await engine.run(name, Work(task), bodies, lambda done, total: say(name, done, total))

    metadata = dict(wishes.metadata)
    if wishes.source is not None:
        metadata["sink"] = {"query": wishes.source, "batch": wishes.batch}
    # Who died between two of its commits holds the lock to the end of its lease: the next one waits that out.
    term_ms = wishes.lease_ttl_ms
    options = SessionOptions(
        runtime_id=wishes.runtime_id, lease_ttl_ms=term_ms, lock_timeout_ms=2 * max(term_ms, LEASE_MS), compaction=False
    )
    try:
        _check(parts)
        sheaves = [StagedFile.parse(each) for part in parts for each in part.sheaves]
        request = loader.Request(load, wishes.rules, wishes.source, wishes.batch, wishes.if_head, metadata)
        async with Ontology(store, ambient, [info.python], options) as onto:
            say("commit", 0, 1)
            landed = await loader.Loader(onto, ambient, info, run).land(request, sheaves)
            if landed.replayed:
                await onto.flush()  # whoever committed it may have died before its indexes
        say("commit", 1, 1)
        return landed
    finally:
        with suppress(HoldfastError):  # what stays is garbage that is found by its age
            await staged_loads.forget(store, load)


def _check(parts: Sequence[Staged]) -> None:
    """The first row that does not fit refuses the load."""
    for part in parts:
        if part.fault is not None:
            type_name, message, name = part.fault
            raise InvalidValue(message, type_name=type_name, field=name)


def with_source(wishes: Wishes, source: str | None, batch: int) -> Wishes:
    return replace(wishes, source=source, batch=batch)


__all__ = ["Staged", "Typed", "Wishes", "Work", "imported", "known_type", "land", "stage", "staged", "unwatched"]
