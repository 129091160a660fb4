"""Export of a type to a file, import of a file into a type: at a moment, under a policy, in one commit.

An object that is there already with other fields is a conflict. ``error`` refuses the whole import, ``skip`` leaves
what is there, ``replace`` writes over it. With ``absent`` an object that is there at all refuses it. What was decided
holds when it is committed: the commit is made on the head on which it was decided, or it is decided again. With
``if_head`` only on that one.

Both hold the rows that they move in memory, as columns. More than that is moved with Spark (``pipeline.load`` and its
tables).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking
from holdfast.base.errors import Conflict
from holdfast.objects.store import Store
from holdfast.ontology.bulk.decide import Policy
from holdfast.ontology.bulk.files import READ_ROWS, FileFormat, format_of, read_batches, write_file
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of, retry_overtaken
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.chain.state import TypeState, see_file
from holdfast.ontology.chain.times import Moment, commit_at
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.format.data.batch import Batch
from holdfast.ontology.format.data.intents import Identity
from holdfast.ontology.format.data.stored_rows import stored_batches
from holdfast.ontology.format.head import read_head
from holdfast.ontology.maintain.drop import find_type
from holdfast.ontology.types import names
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.names import key_columns
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema

M = TypeVar("M", bound=Mixin)

TRIES = 8
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Exported:
    rows: int
    commit_id: int
    path: Path


@dataclass(frozen=True, slots=True)
class Imported:
    rows: int
    """In the file."""
    same: int
    """That were so already."""
    skipped: int
    replaced: int
    added: int
    commit: Commit | None


async def export_file(
    store: Store, name: str, path: Path, *, style: FileFormat | None = None, as_of: Moment | None = None
) -> Exported:
    """Write what a type has, now or as of a moment. Nothing is written before all of it was read."""
    return await retry_overtaken(lambda: _export(store, name, path, style, as_of))


async def _export(store: Store, name: str, path: Path, style: FileFormat | None, as_of: Moment | None) -> Exported:
    chosen = format_of(path, style)
    chain = Chain(store)
    now = await chain.ledger((await read_head(store)).place)
    upper = now.commit_id if as_of is None else await commit_at(as_of, chain, now)
    then = await chain.ledger(await chain.at(now.place, upper) if upper else None)
    type_id = find_type(then, name)
    fence = await fence_of(store, chain, now)

    async def read(found: Resolved) -> Batch:
        return await _latest(store, found, upper, fence)

    if now.purged(type_id, upper):
        rows = _batch(type_id, [])
    else:
        rows = await with_files(store, chain, then, type_id, read, fence)
    stored = await catalog.schema_at(chain, then, type_id)
    shape = of_schema(type_id, stored.schema if stored is not None else await blocking(_guessed, rows))
    await blocking(write_file, path, chosen, shape, rows)
    return Exported(len(rows), upper, path)


async def _latest(store: Store, found: Resolved, newest: int, fence: RedactionFence) -> Batch:
    """The live rows of a type's files, by identity."""
    keys, oldest = key_columns(found.type_id.kind), max(found.generation, 1)
    tables = list[pa.Table]()
    for ref in found.files():
        body = await see_file(store, ref, fence)
        tables += await blocking(list, stored_batches(body, ref.path, READ_ROWS))
    return await blocking(_live, found.type_id, tables, keys, oldest, newest)


def _live(type_id: TypeId, tables: Sequence[pa.Table], keys: Sequence[str], oldest: int, newest: int) -> Batch:
    """Of each identity the latest row, if it is not retracted; by identity."""
    texts = [(name, pa.string()) for name in (*keys, "fields_json")]
    schema = pa.schema([*texts, ("commit_id", pa.int64()), (names.RETRACTED, pa.bool_())])
    parts = list[pa.Table]()
    for each in tables:
        lacks = names.RETRACTED not in each.column_names
        table = each.append_column(names.RETRACTED, pa.repeat(False, each.num_rows)) if lacks else each
        commits = table.column("commit_id")
        wanted = pc.and_(pc.greater_equal(commits, oldest), pc.less_equal(commits, newest))
        parts.append(table.select(schema.names).filter(wanted).cast(schema))
    whole = pa.concat_tables(parts) if parts else schema.empty_table()
    ordered = whole.take(pc.sort_indices(whole, sort_keys=[(name, "ascending") for name in (*keys, "commit_id")]))
    batch = _batch(type_id, [ordered])
    if not len(batch):
        return batch
    joined = batch.joined
    last = pc.fill_null(pc.not_equal(joined, pa.concat_arrays([joined.slice(1), pa.nulls(1, pa.string())])), True)
    live = pc.and_(last, pc.invert(pc.fill_null(ordered.column(names.RETRACTED).combine_chunks(), False)))
    return batch.where(live.to_numpy(zero_copy_only=False))


def _batch(type_id: TypeId, tables: Sequence[pa.Table]) -> Batch:
    found = [
        pa.concat_arrays([pa.array([], pa.string()), *(table.column(name).combine_chunks() for table in tables)])
        for name in (*key_columns(type_id.kind), "fields_json")
    ]
    return Batch(type_id, tuple(found[:-1]), found[-1])


def _guessed(rows: Batch) -> dict[str, Any]:
    """Of a type that only plain writers know: the fields that there are."""
    found = dict.fromkeys(name for row in rows for name in json.loads(row.fields_json))
    return {"fields": {name: {"type": "typing.Any"} for name in found}}


class Session(Protocol):
    """What an import needs of the session that it commits with."""

    def type_info(self, python: type[Mixin], /) -> TypeInfo: ...
    async def known(self, of: type[Mixin], /) -> tuple[int, TypeState]: ...
    def ensure(self, given: Any, of: type[Mixin], /) -> int: ...
    async def commit(self, metadata: Mapping[str, Any] | None, /, *, if_head: int | None) -> Commit | None: ...
    def discard(self) -> int: ...


async def import_file(
    onto: Session,
    of: type[Mixin],
    path: Path,
    *,
    style: FileFormat | None = None,
    on_conflict: Policy = Policy.ERROR,
    absent: bool = False,
    if_head: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Imported:
    """Commit what a file has. The session must have nothing else queued."""
    info = onto.type_info(of)
    rows = await blocking(_read, path, format_of(path, style), info)
    if not rows.distinct:
        raise Conflict(f"{path.name}: {await blocking(_twice, rows)!r} is in it twice", remedy="keep one of them")
    for _ in range(TRIES):
        head, state = await onto.known(of)
        decided = await blocking(_decide, state, rows, on_conflict, absent=absent)
        expected = if_head if if_head is not None else head
        if not decided.chosen and if_head is None:
            return Imported(len(rows), decided.same, decided.skipped, 0, 0, None)
        if decided.chosen:
            onto.ensure(decided.chosen, of)
        try:
            commit = await onto.commit(metadata, if_head=expected)
        except Conflict:
            onto.discard()
            if if_head is not None:
                raise
            continue
        except BaseException:
            onto.discard()
            raise
        return Imported(len(rows), decided.same, decided.skipped, decided.replaced, decided.added, commit)
    raise Conflict(f"{path.name}: others keep committing", remedy="import when there is less going on")


def _read(path: Path, style: FileFormat, info: TypeInfo) -> Batch:
    batches = list(read_batches(path, style, info))
    width = len(key_columns(info.kind))
    parts = [[each.keys[number] for each in batches] for number in range(width)] + [[each.bodies for each in batches]]
    found = [pa.concat_arrays([pa.array([], pa.string()), *part]) for part in parts]
    return Batch(info.type_id, tuple(found[:-1]), found[-1])


def _twice(rows: Batch) -> str:
    """The first identity that is there once more."""
    seen: set[Identity] = set()
    for row in rows:
        if row.identity in seen:
            return "/".join(filter(None, row.identity))
        seen.add(row.identity)
    return ""


@dataclass(frozen=True, slots=True)
class _Decided:
    chosen: Batch
    same: int
    skipped: int
    replaced: int
    added: int


def _decide(state: TypeState, rows: Batch, policy: Policy, *, absent: bool) -> _Decided:
    """Which rows are written, on what is current."""
    compared = state.compared(rows)
    there, changed = compared.there(), compared.changed()
    differ = there & changed
    refused = there if absent else differ if policy is Policy.ERROR else np.zeros(len(rows), np.bool_)
    if refused.any():
        some = rows.where(refused)
        listed = ", ".join(repr("/".join(filter(None, row.identity))) for row in some[:SHOWN])
        what = "are there already" if absent else "are there already, with other fields"
        raise Conflict(
            f"{state.type_id.name}: {len(some)} objects {what}: {listed}",
            remedy="leave them out, or say what to do with them: skip or replace",
        )
    skipped = int(differ.sum()) if policy is Policy.SKIP else 0
    chosen = rows.where(~differ) if skipped else rows
    count = int(there.sum())
    return _Decided(chosen, count - int(differ.sum()), skipped, int(differ.sum()) - skipped, len(rows) - count)
