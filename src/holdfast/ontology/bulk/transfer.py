"""Export of a type to a file, import of a file into a type: at a moment, under a policy, in one commit.

An object that is there already with other fields is a conflict. ``error`` refuses the whole import, ``skip`` leaves
what is there, ``replace`` writes over it. With ``absent`` an object that is there at all refuses it. What was decided
holds when it is committed: the commit is made on the head on which it was decided, or it is decided again. With
``if_head`` only on that one.

Neither holds what it moves: rows are read some at a time, wait in a file on this machine's disk, and go out some at a
time. What is held are keys, for each object of the type a digest when importing, and of an import the bytes of the one
file that it commits.
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
from holdfast.ontology.format.data.spill import SpilledRows, SpillFile
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
NONE = np.zeros(0, np.bool_)


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
    folder = path.parent if path.parent.is_dir() else None
    fence = await fence_of(store, chain, now)

    async def read(found: Resolved) -> SpilledRows:
        return await _latest(store, found, folder, upper, fence)

    if now.purged(type_id, upper):
        rows = await blocking(_nothing, type_id, folder)
    else:
        rows = await with_files(store, chain, then, type_id, read, fence)
    stored = await catalog.schema_at(chain, then, type_id)
    shape = of_schema(type_id, stored.schema if stored is not None else await blocking(_guessed, rows))
    await blocking(write_file, path, chosen, shape, rows)
    return Exported(len(rows), upper, path)


async def _latest(
    store: Store, found: Resolved, folder: Path | None, newest: int, fence: RedactionFence
) -> SpilledRows:
    """The live rows of a type's files, by identity. One file after the other is read; the rows wait on the disk."""
    with await blocking(SpillFile, found.type_id, folder) as spool:
        commits: list[np.ndarray[Any, np.dtype[np.int64]]] = []
        gone: list[np.ndarray[Any, np.dtype[np.bool_]]] = []
        for ref in found.files():
            body = await see_file(store, ref, fence)
            part = await blocking(_spooled, spool, body, ref.path, max(found.generation, 1), newest)
            commits.append(part[0])
            gone.append(part[1])
        pile = await blocking(spool.finish)
    return await blocking(_live, pile, commits, gone)


def _spooled(spool: SpillFile, body: bytes, path: str, oldest: int, newest: int) -> tuple[Any, Any]:
    """The commits of the rows that were added, and which of them are retracted."""
    keys = key_columns(spool.type_id.kind)
    commits, gone = [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
    for table in stored_batches(body, path, READ_ROWS):
        numbers = table.column("commit_id")
        some = table.filter(pc.and_(pc.greater_equal(numbers, oldest), pc.less_equal(numbers, newest)))
        columns = [some.column(name).cast(pa.string()).combine_chunks() for name in (*keys, "fields_json")]
        spool.add(Batch(spool.type_id, tuple(columns[:-1]), columns[-1]))
        commits.append(some.column("commit_id").to_numpy().astype(np.int64))
        known = names.RETRACTED in some.column_names
        gone.append(
            some.column(names.RETRACTED).fill_null(False).to_numpy() if known else np.zeros(some.num_rows, np.bool_)
        )
    return np.concatenate(commits), np.concatenate(gone)


def _live(pile: SpilledRows, commits: Sequence[Any], gone: Sequence[Any]) -> SpilledRows:
    """Of each identity the latest row, if it is not retracted; by identity."""
    if not len(pile):
        return pile
    codes = pile.joined.combine_chunks().dictionary_encode().indices.to_numpy()
    order = np.lexsort((np.arange(len(pile)), np.concatenate(commits), codes))
    last = np.append(np.diff(codes[order]) != 0, True)
    latest = order[last]
    return pile.at(np.sort(latest[~np.concatenate(gone)[latest]]).astype(np.int64)).ordered()


def _nothing(type_id: TypeId, folder: Path | None) -> SpilledRows:
    with SpillFile(type_id, folder) as spool:
        return spool.finish()


def _guessed(rows: SpilledRows) -> dict[str, Any]:
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


def _read(path: Path, style: FileFormat, info: TypeInfo) -> SpilledRows:
    with SpillFile(info.type_id) as spool:
        for batch in read_batches(path, style, info):
            spool.add(batch)
        return spool.finish()


def _twice(rows: SpilledRows) -> str:
    """The first identity that is there once more."""
    seen: set[Identity] = set()
    for row in rows:
        if row.identity in seen:
            return "/".join(filter(None, row.identity))
        seen.add(row.identity)
    return ""


@dataclass(frozen=True, slots=True)
class _Decided:
    chosen: SpilledRows
    same: int
    skipped: int
    replaced: int
    added: int


def _decide(state: TypeState, rows: SpilledRows, policy: Policy, *, absent: bool) -> _Decided:
    """Which rows are written, on what is current."""
    found = [(each.there(), each.changed()) for each in map(state.compared, rows.batches())]
    there, changed = (np.concatenate(masks) for masks in zip((NONE, NONE), *found, strict=True))
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
