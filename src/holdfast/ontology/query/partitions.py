"""A type's rows in independent parts, for engines that read them at many places at once.

A part has some files of the type, whose rows it gives, and knows the newer files that may hold later rows of the same
identities. What is latest is decided within the part: of its own files as always, and then by leaving out what the keys
of the newer files replace. So payload is read once, by one part, and parts need no shuffle afterwards.

Parts are made at one pinned head; files that cannot match are left out (``prune``). Of a large file a part fetches the
columns and row groups that it needs, by ranges: they and the footer make a smaller Parquet file with the same notes
about its columns. Small files are fetched whole, which takes fewer requests. A snapshot that was removed meanwhile
makes the part resolve again at the same head: it then takes the rows of its own span of commits from the files that
hold them now.

Errors: ``Corrupt`` for a file that is gone and that nothing replaces; ``Overtaken`` if payload was destroyed during the
read; what the store raises.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.history import Window
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of
from holdfast.ontology.chain.resolve import Resolved, resolve, resolve_by_chain
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.data.remote_parquet import RemoteParquet
from holdfast.ontology.format.data.rows import column_forms
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.fetched import Arrival
from holdfast.ontology.query.cache.loaded import usable
from holdfast.ontology.query.cache.prune import choose, conjuncts, may_overlap, paths, split
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.sqltables import not_held, shown_columns
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import Overtaken, SnapshotGone
from holdfast.ontology.types.expressions.ast import And, Predicate
from holdfast.ontology.types.refs import Place, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MissingFile, SqlFailed

WHOLE_BYTES = 1 << 20
"""Files up to this size come whole where only their keys are needed."""


@dataclass(frozen=True)
class Cut:
    """What is wanted of files."""

    keys_of: frozenset[str] = frozenset()
    """Paths of files whose keys and commits are enough."""
    slice: tuple[int, int] = (0, 1)
    """Of the others, which share of the row groups."""
    shape: TypeInfo | None = None
    fields: frozenset[str] | None = None
    """Of these row groups, the fields that are read; None if it may be all."""

    @property
    def system(self) -> set[str]:
        """The columns that every scan may read."""
        keys = () if self.shape is None else self.shape.keys
        return {*keys, "commit_id", "schema_version_id", names.RETRACTED, names.UNTIL}

    def columns(self, schema: pa.Schema) -> list[str] | None:
        """The columns of a file that are read; None for all: a field that a column does not tell is looked up."""
        if self.shape is None or self.fields is None or not column_forms(schema):
            return None
        _, lacking = usable(self.shape, schema)
        return None if lacking & self.fields else [each for each in schema.names if each in self.system | self.fields]


class Cutting(Warm):
    """Warm data of one reader, which may have fetched less than whole files."""

    cut = Cut()

    async def _fetch(self, entry: Entry) -> Arrival:
        size = None if entry.stats is None else entry.stats.size
        of_keys = entry.path in self.cut.keys_of
        sliced = not of_keys and self.cut.slice[1] > 1
        if size is None or not (sliced or (of_keys and size > WHOLE_BYTES)) or self._duck is None:
            return await super()._fetch(entry)
        number = next(self._numbers)
        path = self._duck.folder / f"{number}.parquet"
        try:
            file = await RemoteParquet.open(self._store, entry.path, path.with_suffix(".ranges"), size)
            count = len(file.chunks)
            share, shares = (0, 1) if of_keys else self.cut.slice
            groups = [each for each in range(count) if each * shares // max(1, count) == share]
            columns = sorted(self.cut.system) if of_keys else self.cut.columns(file.schema)
            await file.fetch(columns, groups)
            await blocking(file.write, path, groups, columns)
        except SnapshotGone as error:
            raise Overtaken(str(error)) from error
        except NotFound as error:
            raise MissingFile(f"{entry.path}: this data file is missing") from error
        file.path.unlink()
        return Arrival(number, entry, path)


PART_BYTES = 4 << 20
"""Of files, about, for each part."""
SLICED_BYTES = 2 << 20
"""Files of less are read in one part, however many are asked for."""
UNKNOWN_BYTES = 1 << 20
"""For a file of which nobody knows how large it is."""
BATCH_ROWS = 10_000


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
    """Of a large file of one commit: which share of its row groups, of how many."""

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
    entries = _told(resolved.entries, ledger, shape)
    chosen = [each for each in choose(entries, window, predicate, shape) if each.use != "pruned"]
    rows = [each.entry for each in chosen if each.use == "rows"]
    known = [each.entry for each in chosen]
    wanted = And((predicate,))
    target = PART_BYTES if count is None else max(1, sum(map(_size, rows)) // max(1, count))
    parts: list[Part] = []
    for group in _groups(rows, target):
        newer = [] if window.history else [each for each in known if _may_replace(each, group)]
        part = Part(shape, place, window, _light(group), _light(newer), wanted, tuple(columns), fence)
        slices = _slices(group, target)
        parts += [replace(part, slice=(number, slices)) for number in range(slices)]
    return parts


def _told(entries: Sequence[Entry], ledger: Ledger, shape: TypeInfo) -> Sequence[Entry]:
    """What is known of the columns of an older schema is not known of those of now."""
    ref = ledger.schemas.get(shape.type_id)
    since = ref.since if ref is not None else ledger.commit_id + 1
    return [
        replace(each, stats=each.stats.of_keys()) if each.stats is not None and each.first < since else each
        for each in entries
    ]


async def _files(
    store: Store, chain: Chain, ledger: Ledger, type_id: TypeId, upper: int
) -> tuple[Resolved, Place | None]:
    """The files of the life that a type has, or had, at commit ``upper``, and the head that names them."""
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
    """Files of commits never go away, and have every identity once: a large one is read in several parts."""
    if len(group) > 1 or group[0].snapshot or group[0].stats is None or not group[0].stats.unique:
        return 1
    size = _size(group[0])
    return max(1, round(size / target)) if size >= SLICED_BYTES else 1


def _size(entry: Entry) -> int:
    return UNKNOWN_BYTES if entry.stats is None else max(1, entry.stats.size)


def _light(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Without what only choosing needs."""
    return tuple(each if each.stats is None else replace(each, stats=each.stats.short()) for each in entries)


def _may_replace(entry: Entry, group: Sequence[Entry]) -> bool:
    return entry not in group and any(entry.last > own.first and may_overlap(entry, own) for own in group)


async def read(
    store: Store, part: Part, *, memory_limit: str = "256MB", rows: int = BATCH_ROWS
) -> AsyncIterator[pa.RecordBatch]:
    """The rows of a part, in no order, with its columns in theirs."""
    warm = Cutting(store, memory_limit, files_only=True)
    try:
        statement = await _stated(store, part, warm)
        schema = schema_of(part.shape, history=part.window.history)
        wanted = pa.schema([schema.field(name) for name in part.columns])
        async for batch in warm.duck.batches(statement.text, list(statement.params), rows=rows):
            yield _cast(batch, wanted)
    except SqlFailed as error:
        if (unfit := not_held(error)) is None:
            raise
        raise unfit from error
    finally:
        await warm.close()


async def _stated(store: Store, part: Part, warm: Cutting) -> Sql:
    """The statement over files that are at hand."""
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
            if part.slice[1] > 1:  # a file of one commit, which stays; the other slices read it too
                own = list(part.files)
            later = [each for each in found.entries if each.last > first and each not in own]
            newer = [] if part.window.history else later
            try:
                return await _over(part, own, newer, warm, again=True)
            except MissingFile as error:
                problem = error
        raise Corrupt(str(problem), remedy="restore it from a backup of the store") from problem


async def _over(part: Part, files: Sequence[Entry], newer: Sequence[Entry], warm: Cutting, *, again: bool) -> Sql:
    shape, window = part.shape, part.window
    keys = split(part.predicate, shape).keys
    warm.cut = Cut(frozenset(each.path for each in newer), part.slice, shape, _fields(part))
    loaded = await warm.load(shape, files, part.fence)
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
    if not newer:
        return fill(f"SELECT {shown} FROM ({{}}) r WHERE {{}}", own.rows() if window.history else own.state(), where)
    others = Table(shape, await warm.load(shape, newer, part.fence), window, keys).only("", "")
    listed = ", ".join(map(quoted, shape.keys))
    same = " AND ".join(f"r.{quoted(name)} = n.{quoted(name)}" for name in shape.keys)
    gone = fill(f"SELECT {listed}, max(commit_id) AS commit_id FROM ({{}}) GROUP BY {listed}", others.rows())
    return fill(
        f"SELECT {shown} FROM ({{}}) r ANTI JOIN ({{}}) n ON {same} AND n.commit_id > r.commit_id WHERE {{}}",
        own.state(),
        gone,
        where,
    )


def _fields(part: Part) -> frozenset[str] | None:
    """The fields that are read of its files; None if it may be all, or if files are gone through before."""
    shape = part.shape
    asked = {*part.columns, *(each.field for each in paths(part.predicate))}
    untyped = not shape.nodes or any(shape.forms.get(name) == "json" for name in asked)
    if untyped or shape.upgraders or part.fence.concerns(shape.type_id):
        return None
    return frozenset(asked & {*shape.payload})


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    columns = []
    for number, field in enumerate(schema):
        column = batch.column(number)
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)
