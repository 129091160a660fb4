"""Divides the rows of a type into parts that engines such as Spark read independently.

A part has some of the type's files and returns their rows. It also knows the newer files that may have later rows of
the same identities: of these it reads the keys only, and leaves out the rows that they replace. So each payload is read
by one part, and no shuffle is needed afterwards.

Parts are planned at one pinned head, without files that cannot match (``prune``). A large file is divided where row
groups begin: each part has the rows between two positions, which are a commit and a key. Files are fetched as for
queries (``cache``). If a snapshot was removed meanwhile, the part resolves the files again at the same head, and takes
the rows of its own commits and between its positions from the files that have them now.

Errors: ``Corrupt`` for a missing file that no other file replaces; ``Overtaken`` if payload was destroyed during the
read; what the store raises.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Window
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of
from holdfast.ontology.chain.resolve import resolve, resolve_by_chain
from holdfast.ontology.filters.operand import Sql, fill, joined, quoted
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.lifespans import ORIGIN
from holdfast.ontology.format.data.remote_parquet import remote_parquet
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.large_files import (
    Position,
    Wanted,
    between,
    can_be_numbered,
    extents,
    large,
    needed_groups,
)
from holdfast.ontology.query.cache.prune import choose, conjuncts, may_overlap, paths, split
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.columns import columns_of, in_schema, naming_misfits, schema_of
from holdfast.ontology.query.engine import filled, ledger_of_life, with_valid_stats
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types import names
from holdfast.ontology.types.expressions.ast import And, Predicate
from holdfast.ontology.types.refs import Place
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MissingFile

PART_BYTES = 8 << 20
"""The approximate size of the files of a part."""
UNKNOWN_BYTES = 1 << 20
"""The assumed size of a file without statistics."""
BATCH_ROWS = 10_000
MEMORY_LIMIT = "256MB"


@dataclass(frozen=True)
class Part:
    """Picklable, since tasks in other processes read it."""

    shape: TypeInfo
    place: Place | None
    """The manifest as of which its files were resolved."""
    window: Window
    files: tuple[Entry, ...]
    """Files whose rows the part returns."""
    newer: tuple[Entry, ...]
    """Files that may have later rows of the same identities."""
    predicate: And
    columns: tuple[str, ...]
    fence: RedactionFence
    low: Position | None = None
    """Of a divided file: its rows from here on."""
    high: Position | None = None
    """Of a divided file: its rows before this position."""

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last commit of its files."""
        return min(each.first for each in self.files), max(each.last for each in self.files)


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
    """The parts of a type's rows in a window, of files that can have rows for which the predicate is true.

    ``count`` is their approximate number; without it the size of the files decides.
    """
    fence = await fence_of(store, chain, ledger)
    then = await ledger_of_life(chain, ledger, shape.type_id, window.upper)
    if then is None:
        return []
    resolved = await resolve(store, chain, then, shape.type_id)
    fence.check_all(resolved.entries)
    window = Window(max(window.lower, resolved.generation - 1), window.upper, window.history)
    entries = with_valid_stats(resolved.entries, ledger, shape, fence)
    chosen = [each for each in choose(entries, window, predicate, shape) if each.use != "pruned"]
    rows = [each.entry for each in chosen if each.use == "rows"]
    known = [each.entry for each in chosen]
    wanted = And((predicate,))
    target = PART_BYTES if count is None else max(1, sum(map(_size, rows)) // max(1, count))
    parts: list[Part] = []
    for group in _groups(rows, target):
        newer = [] if window.history else [each for each in known if _may_replace(each, group)]
        part = Part(shape, then.place, window, _light(group), _light(newer), wanted, tuple(columns), fence)
        divisible = can_be_numbered(shape.payload) and not shape.upgraders and not fence.concerns(shape.type_id)
        cuts = await _cuts(store, part, target) if divisible and len(group) == 1 else []
        parts += [replace(part, low=low, high=high) for low, high in pairwise([None, *cuts, None])]
    return parts


def _groups(entries: Sequence[Entry], target: int) -> Iterable[list[Entry]]:
    """Groups of consecutive files, each of about ``target`` bytes."""
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


async def _cuts(store: Store, part: Part, target: int) -> list[Position]:
    """Where a part of one large file is divided, so that about ``target`` bytes of the row groups that can matter are
    in each; nowhere if its rows must be grouped to find the latest ones.
    """
    (entry,) = part.files
    if entry.stats is None or not large(entry) or _size(entry) < target:
        return []
    try:
        async with remote_parquet(store, entry.path, entry.stats.size) as file:
            ends = names.UNTIL in file.schema.names and ORIGIN in (file.metadata.metadata or {})
            if not (entry.stats.unique or ends):
                return []
            needed = await blocking(needed_groups, file.metadata, entry, _wanted(part))
            lengths = [length if number in needed else 0 for number, length in enumerate(file.group_bytes())]
            groups = extents(file.metadata, part.shape.keys[0])
    except NotFound:  # a part resolves the files again
        return []
    size = sum(lengths)
    count = round(size / target)
    cuts: list[Position] = []
    filled = 0
    for extent, length in zip(groups, lengths, strict=True):
        enough = filled and length and len(cuts) < count - 1 and (filled + length // 2) * count >= size
        if extent is not None and enough:
            first, last = extent
            # Where a row group has several commits, its least key says little about where it begins.
            begin = first if first.commit_id == last.commit_id else Position(first.commit_id + 1, "")
            if not cuts or begin > cuts[-1]:
                cuts.append(begin)
                filled = 0
        filled += length
    return cuts


def _size(entry: Entry) -> int:
    return UNKNOWN_BYTES if entry.stats is None else max(1, entry.stats.size)


def _light(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """The files with the statistics that reading needs."""
    return tuple(each if each.stats is None else replace(each, stats=each.stats.short()) for each in entries)


def _may_replace(entry: Entry, group: Sequence[Entry]) -> bool:
    return entry not in group and any(entry.last > own.first and may_overlap(entry, own) for own in group)


async def read(store: Store, part: Part) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a part, in no order, with its columns in their order."""
    warm = Warm(store, MEMORY_LIMIT, files_only=True)
    try:
        statement = await _statement(store, part, warm)
        schema = schema_of(part.shape, history=part.window.history)
        wanted = pa.schema([schema.field(name) for name in part.columns])
        with naming_misfits():
            async for batch in warm.duck.batches(statement.text, list(statement.params), rows=BATCH_ROWS):
                yield in_schema(batch, wanted)
    finally:
        await warm.close()


async def _statement(store: Store, part: Part, warm: Warm) -> Sql:
    """The statement, after everything that it reads was fetched."""
    try:
        return await _over(part, part.files, part.newer, warm)
    except MissingFile as error:
        missing = error
    chain, type_id = Chain(store), part.shape.type_id
    ledger = await chain.ledger(part.place)
    first, last = part.span
    for by_index in (True, False):
        found = await (resolve(store, chain, ledger, type_id) if by_index else resolve_by_chain(chain, ledger, type_id))
        own = [each for each in found.entries if each.last >= first and each.first <= last]
        newer = [each for each in found.entries if each.last > first and each not in own]
        try:
            return await _over(part, own, [] if part.window.history else newer, warm)
        except MissingFile as error:
            missing = error
    raise Corrupt(str(missing), remedy="restore it from a backup of the store") from missing


async def _over(part: Part, files: Sequence[Entry], newer: Sequence[Entry], warm: Warm) -> Sql:
    shape, window = part.shape, part.window
    wanted = _wanted(part)
    held = await warm.load(shape, files, part.fence, wanted)
    positions = (shape.keys[0], part.low, part.high)
    if files is part.files and positions[1:] != (None, None):
        held = held._replace(files=tuple([await blocking(between, each, *positions) for each in held.files]))
    own = Table(shape, held, window, wanted.keys)
    # Without a typed column, the SQL of a column may show values that the query language calls unlike.
    certain = [each for each in conjuncts(part.predicate) if not any(path.field in own.lacking for path in paths(each))]
    conditions = [
        compile_where(And(tuple(certain)), {"own": own.source("r")}),
        Sql("r.commit_id BETWEEN CAST(? AS BIGINT) AND CAST(? AS BIGINT)", part.span),
        *_within(*positions),
    ]
    if not window.history:
        conditions.append(Sql("NOT r._retracted"))
    where = joined(" AND ", conditions)
    by_name = dict(columns_of(own))
    shown = ", ".join(by_name[name] for name in part.columns) or "r.commit_id"
    own = own.only(f"{shown} {where.text}", "r")
    rows = fill("({}) r", own.rows() if window.history else own.state())
    if newer:
        others = Table(shape, await warm.load(shape, newer, part.fence, wanted), window, wanted.keys).only("", "")
        same = " AND ".join(f"r.{quoted(name)} = n.{quoted(name)}" for name in shape.keys)
        if any(each.first <= part.span[1] for each in newer):
            same += " AND n.commit_id > r.commit_id"
        rows = fill(f"{{}} ANTI JOIN ({{}}) n ON {same}", rows, others.rows())
    return await filled(warm, fill(f"SELECT {shown} FROM {{}} WHERE {{}}", rows, where))


def _wanted(part: Part) -> Wanted:
    parts = split(part.predicate, part.shape)
    return Wanted(part.shape, parts.keys, parts.rest, None, part.window.history, part.window.upper)


def _within(key: str, low: Position | None, high: Position | None) -> Iterable[Sql]:
    """The conditions that the rows of a part of a file satisfy."""
    after = "(r.commit_id > {0:d} OR (r.commit_id = {0:d} AND r.{1} >= CAST(? AS VARCHAR)))"
    if low is not None:
        yield Sql(after.format(low.commit_id, quoted(key)), (low.key,))
    if high is not None:
        yield Sql(f"NOT {after.format(high.commit_id, quoted(key))}", (high.key,))
