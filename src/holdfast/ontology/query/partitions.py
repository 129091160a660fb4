"""A type's rows in independent parts, for engines that read them at many places at once.

A part has some files of the type, whose rows it gives, and knows the newer files that may hold later rows of the same
identities. What is latest is decided within the part: of its own files as always, and then by leaving out what the keys
of the newer files replace. So payload is read once, by one part, and parts need no shuffle afterwards.

Parts are made at one pinned head; files that cannot match are left out (``prune``). A large file of one commit is
divided: each part reads some of its row groups. Files are fetched as for queries (``cache``): of large ones the columns
and row groups that the statement reads. A snapshot that was removed meanwhile makes the part resolve again at the same
head: it then takes the rows of its own span of commits from the files that hold them now.

Errors: ``Corrupt`` for a file that is gone and that nothing replaces; ``Overtaken`` if payload was destroyed during the
read; what the store raises.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Window
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of
from holdfast.ontology.chain.resolve import Resolved, resolve, resolve_by_chain
from holdfast.ontology.filters.operand import Sql, fill, joined, quoted
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.large_files import Wanted, large, share_of
from holdfast.ontology.query.cache.prune import choose, conjuncts, may_overlap, paths, split
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.engine import believed, filled
from holdfast.ontology.query.sqltables import not_held, shown_columns
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.expressions.ast import And, Predicate
from holdfast.ontology.types.refs import Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MissingFile, SqlFailed

PART_BYTES = 4 << 20
"""Of files, about, for each part of a type."""
UNKNOWN_BYTES = 1 << 20
"""Taken for the size of a file without statistics."""
BATCH_ROWS = 10_000
MEMORY_LIMIT = "256MB"


@dataclass(frozen=True)
class Part:
    """Picklable: it crosses to wherever it is read."""

    shape: TypeInfo
    place: Place | None
    """The head at which its files were found."""
    window: Window
    files: tuple[Entry, ...]
    """Whose rows it gives."""
    newer: tuple[Entry, ...]
    """Whose rows may replace some of them."""
    predicate: And
    columns: tuple[str, ...]
    fence: RedactionFence
    slice: tuple[int, int] = (0, 1)
    """Of a large file of one commit: which share of its row groups, and of how many shares."""

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last commit of its own files."""
        return min(each.first for each in self.files), max(each.last for each in self.files)


def schema_of(shape: TypeInfo, *, history: bool) -> pa.Schema:
    """The columns of a type's table, as ``holdfast sql`` has them."""
    fields: list[tuple[str, pa.DataType]] = []
    if shape.ends is not None:
        fields += [("left_key", pa.string()), ("right_key", pa.string())]
    for name in shape.nodes:
        plain = name in shape.payload and shape.forms[name] != "json"
        fields.append((name, arrow_type(shape.nodes[name]) if plain else pa.string()))
    if not shape.nodes:
        fields += [("entity_key" if shape.ends is None else "instance_key", pa.string()), ("fields_json", pa.string())]
    fields.append(("commit_id", pa.int64()))
    if history:
        fields.append(("retracted", pa.bool_()))
    return pa.schema(fields)


async def divide(
    store: Store,
    chain: Chain,
    ledger: Ledger,
    shape: TypeInfo,
    window: Window,
    *,
    predicate: Predicate = And(()),  # noqa: B008  # it is immutable
    columns: Sequence[str],
    count: int | None = None,
) -> list[Part]:
    """The parts of a type's rows in a window, of the files that can hold rows for which the predicate is true.

    ``count`` is how many there should be, about; without it that follows from the size of the files.
    """
    fence = await fence_of(store, chain, ledger)
    resolved, place = await _files(store, chain, ledger, shape.type_id, window.upper)
    fence.check_all(resolved.entries)
    window = Window(max(window.lower, resolved.generation - 1), window.upper, window.history)
    entries = believed(resolved.entries, ledger, shape, fence)
    chosen = [each for each in choose(entries, window, predicate, shape) if each.use != "pruned"]
    rows = [each.entry for each in chosen if each.use == "rows"]
    known = [each.entry for each in chosen]
    wanted = And((predicate,))
    target = PART_BYTES if count is None else max(1, sum(map(_size, rows)) // max(1, count))
    parts: list[Part] = []
    for group in _groups(rows, target):
        newer = [] if window.history else [each for each in known if _may_replace(each, group)]
        part = Part(shape, place, window, _light(group), _light(newer), wanted, tuple(columns), fence)
        slices = 1 if shape.upgraders or fence.concerns(shape.type_id) else _slices(group, target)
        parts += [replace(part, slice=(number, slices)) for number in range(slices)]
    return parts


async def _files(
    store: Store, chain: Chain, ledger: Ledger, type_id: TypeId, upper: int
) -> tuple[Resolved, Place | None]:
    """The files of the generation of a type at commit ``upper``, and the head that names them."""
    if upper >= ledger.generation_of(type_id):
        return await resolve(store, chain, ledger, type_id), ledger.place
    life = ledger.life_at(type_id, upper)
    if life is None or life.purged:
        return Resolved(type_id, (), ledger.commit_id, upper + 1, by_index=True), ledger.place
    then = await chain.ledger(await chain.at(ledger.place, life.end - 1))
    return await resolve(store, chain, then, type_id), then.place


def _groups(entries: Sequence[Entry], target: int) -> Iterable[list[Entry]]:
    """Neighbours in the order of commits, of about ``target`` bytes together."""
    group: list[Entry] = []
    size = 0
    for entry in entries:
        if group and size + _size(entry) > target:
            yield group
            group, size = [], 0
        group.append(entry)
        size += _size(entry)
    if group:
        yield group


def _slices(group: Sequence[Entry], target: int) -> int:
    """Files of commits are never deleted, and have every identity once: a large one is read in several parts."""
    if len(group) > 1 or group[0].snapshot or group[0].stats is None or not group[0].stats.unique:
        return 1
    return max(1, round(_size(group[0]) / target)) if large(group[0]) else 1


def _size(entry: Entry) -> int:
    return UNKNOWN_BYTES if entry.stats is None else max(1, entry.stats.size)


def _light(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Without what only choosing needs."""
    return tuple(each if each.stats is None else replace(each, stats=each.stats.short()) for each in entries)


def _may_replace(entry: Entry, group: Sequence[Entry]) -> bool:
    return entry not in group and any(entry.last > own.first and may_overlap(entry, own) for own in group)


async def read(store: Store, part: Part) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a part, in no order, with its columns in theirs."""
    warm = Warm(store, MEMORY_LIMIT, files_only=True)
    try:
        statement = await _stated(store, part, warm)
        schema = schema_of(part.shape, history=part.window.history)
        wanted = pa.schema([schema.field(name) for name in part.columns])
        async for batch in warm.duck.batches(statement.text, list(statement.params), rows=BATCH_ROWS):
            yield _cast(batch, wanted)
    except SqlFailed as error:
        if (unfit := not_held(error)) is None:
            raise
        raise unfit from error
    finally:
        await warm.close()


async def _stated(store: Store, part: Part, warm: Warm) -> Sql:
    """The statement, with all that it reads fetched."""
    try:
        return await _over(part, part.files, part.newer, warm, again=False)
    except MissingFile:
        chain = Chain(store)
        ledger = await chain.ledger(part.place)
        first, last = part.span
        problem: MissingFile | None = None
        for by_index in (True, False):
            found = await (
                resolve(store, chain, ledger, part.shape.type_id)
                if by_index
                else resolve_by_chain(chain, ledger, part.shape.type_id)
            )
            own = [each for each in found.entries if each.last >= first and each.first <= last]
            if part.slice[1] > 1:  # a file of one commit, which is never deleted; the other slices read it too
                own = list(part.files)
            later = [each for each in found.entries if each.last > first and each not in own]
            newer = [] if part.window.history else later
            try:
                return await _over(part, own, newer, warm, again=True)
            except MissingFile as error:
                problem = error
        raise Corrupt(str(problem), remedy="restore it from a backup of the store") from problem


async def _over(part: Part, files: Sequence[Entry], newer: Sequence[Entry], warm: Warm, *, again: bool) -> Sql:
    shape, window = part.shape, part.window
    parts = split(part.predicate, shape)
    keys = parts.keys
    wanted = Wanted(shape, keys, parts.rest, None, window.history, window.upper)
    loaded = await warm.load(shape, files, part.fence, wanted=wanted)
    if part.slice[1] > 1:
        loaded = loaded._replace(files=tuple([await blocking(share_of, each, part.slice) for each in loaded.files]))
    own = Table(shape, loaded, window, keys)
    # Where a column lacks something, what is shown for it may be more than the language of queries takes.
    certain = [each for each in conjuncts(part.predicate) if not any(path.field in own.lacking for path in paths(each))]
    asked = compile_where(And(tuple(certain)), {"own": own.source("r")})
    by_name = dict(shown_columns(own))
    shown = ", ".join(by_name[name] for name in part.columns) or "r.commit_id"
    own = own.only(f"{shown} {asked.text}", "r")
    conditions = [asked]
    if not window.history:
        conditions.append(Sql("NOT r._retracted"))
    if again:
        conditions.append(Sql("r.commit_id BETWEEN CAST(? AS BIGINT) AND CAST(? AS BIGINT)", part.span))
    where = joined(" AND ", conditions)
    rows = own.rows() if window.history else own.state()
    if not newer:
        return await filled(warm, fill(f"SELECT {shown} FROM ({{}}) r WHERE {{}}", rows, where))
    others = Table(shape, await warm.load(shape, newer, part.fence, wanted=wanted), window, keys).only("", "")
    listed = ", ".join(map(quoted, shape.keys))
    same = " AND ".join(f"r.{quoted(name)} = n.{quoted(name)}" for name in shape.keys)
    gone = fill(f"SELECT {listed}, max(commit_id) AS commit_id FROM ({{}}) GROUP BY {listed}", others.rows())
    found = fill(
        f"SELECT {shown} FROM ({{}}) r ANTI JOIN ({{}}) n ON {same} AND n.commit_id > r.commit_id WHERE {{}}",
        rows,
        gone,
        where,
    )
    return await filled(warm, found)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for number, field in enumerate(schema):
        column = batch.column(number)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
