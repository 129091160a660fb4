"""Staged files: sorted rows that the tasks of a bulk load leave in the store for each other; and what these tasks do.

A staged file is a Parquet file of rows in the order of identities, in row groups whose first and last identities are
known. A task that decides about a range of keys reads only the row groups of each staged file that overlap the range:
the store takes the place of a shuffle. ``key_ranges`` divides all keys so that each range has about the same number of
rows, however they were distributed among the tasks.

Tasks check rows and stage them (``Stager``), stage current rows (``stage_state``), and decide about a range of keys
(``decided_rows``). Every key has an id of 128 random bits, so a task may run twice, at once or after its driver has
given it up; staged files that no load names are garbage (``maintain.leftovers``). A task holds one staged file or one
range of keys in memory.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.base.record import Record
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.ontology.bulk.decide import ORDER, RETRACTS, Decided, Rules, Tally, decide, identities, in_order
from holdfast.ontology.format import layout
from holdfast.ontology.format.data import intake
from holdfast.ontology.format.data.batch import Identity, digest
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.remote_parquet import remote_parquet
from holdfast.ontology.format.data.stored_rows import other_digests
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import SnapshotGone
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import fields_of, node_of
from holdfast.ontology.types.typeinfo import TypeInfo

GROUP_ROWS = 16_384
"""Rows of a row group of a staged file. A range of keys that ends within a row group reads all of it."""
CHECK_ROWS = 16_384
"""Rows that are validated in one call."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Limits of memory. Larger values make fewer objects."""

    file_rows: int = 400_000
    file_bytes: int = 96 << 20
    """The approximate maximum of a staged file: rows, and bytes before compression."""
    group_rows: int = GROUP_ROWS
    range_rows: int = 400_000
    """The approximate number of rows that are decided together."""
    small_rows: int = 400_000
    """The rows that the committing process decides about itself: those of the load, and if it takes the place of all
    there is, the stored ones too."""
    small_bytes: int = 128 << 20
    """The bytes of staged and current files that it reads for that."""
    files_bytes: int = 64 << 20
    """The bytes of current files that one task reads."""


SIZES = Sizes()


# --- files and ranges of keys ---


class Part(NamedTuple):
    """One row group: its identities from the first to the last, both included."""

    first: Identity
    last: Identity
    rows: int


@dataclass(frozen=True)
class StagedFile(Record):
    WHAT = "a staged file"
    key: str
    size: int
    parts: tuple[Part, ...]
    partial: tuple[str, ...] = ()
    """Typed columns that lack values which ``fields_json`` has."""
    skipped: int = 0
    """Row groups of the file before the first part."""

    def within(self, wanted: "KeyRange") -> "StagedFile | None":
        """The parts that overlap a range of keys; None if there are none."""
        numbers = [number for number, part in enumerate(self.parts) if wanted.overlaps(part)]
        if not numbers:
            return None
        return replace(self, parts=self.parts[numbers[0] : numbers[-1] + 1], skipped=self.skipped + numbers[0])

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class KeyRange(Record):
    """Identities from ``low`` on and before ``high``; None means unbounded."""

    WHAT = "a range of keys"
    low: Identity | None = None
    high: Identity | None = None

    def overlaps(self, part: Part) -> bool:
        return (self.low is None or self.low <= part.last) and (self.high is None or part.first < self.high)

    def contains(self, part: Part) -> bool:
        return (self.low is None or self.low <= part.first) and (self.high is None or part.last < self.high)

    def cut(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of a table, in the order of identities, that are inside."""
        first = 0 if self.low is None else _rows_before(table, keys, self.low)
        end = table.num_rows if self.high is None else _rows_before(table, keys, self.high)
        return table.slice(first, max(end - first, 0))


def _rows_before(table: pa.Table, keys: Sequence[str], identity: Identity) -> int:
    """How many rows of a sorted table come before an identity."""
    low, high = 0, table.num_rows
    columns = [table.column(name) for name in keys]
    while low < high:
        middle = (low + high) // 2
        if tuple(column[middle].as_py() for column in columns) < identity:
            low = middle + 1
        else:
            high = middle
    return low


def key_ranges(staged_files: Iterable[StagedFile], rows: int) -> list[KeyRange]:
    """Divide all keys into ranges of about this many rows."""
    begun = sorted((part.first, part.rows) for staged_file in staged_files for part in staged_file.parts)
    cuts: list[Identity] = []
    filled = 0
    for first, count in begun:
        if filled >= rows and (not cuts or first > cuts[-1]):
            cuts.append(first)
            filled = 0
        filled += count
    ends: list[Identity | None] = [None, *cuts, None]
    return [KeyRange(low, high) for low, high in pairwise(ends)]


async def write_staged(
    store: Store,
    ambient: Ambient,
    load: str,
    type_id: TypeId,
    what: str,
    tables: Sequence[pa.Table],
    partial: Iterable[str] = (),
    group_rows: int = GROUP_ROWS,
) -> StagedFile:
    """Sort the rows of these tables and write them as one staged file."""
    keys = names.key_columns(type_id.kind)
    body, parts = await blocking(lambda: _encoded(in_order(pa.concat_tables(tables), keys), keys, group_rows))
    key = layout.load_key(load, *type_id, what, ambient.ids.unique())
    if isinstance(await store.put(key, body, CREATE), Lost):
        raise Conflict(f"{key}: another task has drawn the same key", remedy="load again")
    return StagedFile(key, len(body), parts, tuple(sorted(partial)))


def _encoded(table: pa.Table, keys: Sequence[str], group_rows: int) -> tuple[bytes, tuple[Part, ...]]:
    """A sorted table as the bytes of a staged file, and its parts. Blocking."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="zstd", use_dictionary=False, write_statistics=False) as out:
        out.write_table(table, row_group_size=group_rows)
    columns = [table.column(name) for name in keys]
    parts = []
    for start in range(0, table.num_rows, group_rows):
        last = min(start + group_rows, table.num_rows) - 1
        ends = [tuple(column[at].as_py() for column in columns) for at in (start, last)]
        parts.append(Part(ends[0], ends[1], last + 1 - start))
    return sink.getvalue().to_pybytes(), tuple(parts)


async def read_range(store: Store, staged_files: Sequence[StagedFile], wanted: KeyRange, kind: str) -> pa.Table | None:
    """The rows of a range of keys from all staged files; None if there are none."""
    keys, found = names.key_columns(kind), list[pa.Table]()
    for staged_file in staged_files:
        some = staged_file.within(wanted)
        if some is None:
            continue
        parts = iter(some.parts)
        async with remote_parquet(store, staged_file.key, staged_file.size) as file:
            async for table in file.tables(range(some.skipped, some.skipped + len(some.parts))):
                found.append(table if wanted.contains(next(parts)) else wanted.cut(table, keys))
    return concatenated(found)


def concatenated(tables: Sequence[pa.Table]) -> pa.Table | None:
    return pa.concat_tables(tables) if tables else None


# --- rows to be loaded ---


class Stager:
    """Validates rows of one type and writes them to staged files, as they come."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        load: str,
        info: TypeInfo,
        sizes: Sizes = SIZES,
        latest_by: str | None = None,
    ) -> None:
        """``latest_by`` is the only field that is read from rows that retract (``decide.RETRACTS``)."""
        self._sizes = sizes
        self._latest_by = latest_by
        self._store = store
        self._ambient = ambient
        self._load = load
        self._info = info
        self._unchecked: list[pa.Table] = []
        self._checked: list[pa.Table] = []
        self._partial: set[str] = set()
        self.staged_files: list[StagedFile] = []
        self.rows = 0

    async def add(self, table: pa.Table) -> None:
        """``InvalidValue`` for a row that does not fit the class."""
        self._unchecked.append(table)
        if sum(each.num_rows for each in self._unchecked) >= CHECK_ROWS:
            await self._check()

    async def finish(self) -> list[StagedFile]:
        await self._check()
        await self._flush()
        return self.staged_files

    async def _check(self) -> None:
        if not self._unchecked:
            return
        tables, self._unchecked = self._unchecked, []
        checked = await blocking(_checked_changes, self._info, tables, self._partial, self._latest_by)
        self.rows += checked.num_rows
        self._checked.append(checked)
        if (
            sum(each.num_rows for each in self._checked) >= self._sizes.file_rows
            or sum(each.nbytes for each in self._checked) >= self._sizes.file_bytes
        ):
            await self._flush()

    async def _flush(self) -> None:
        tables, self._checked = self._checked, []
        if not sum(each.num_rows for each in tables):
            return
        partial, self._partial = self._partial, set()
        type_id, group_rows = self._info.type_id, self._sizes.group_rows
        self.staged_files.append(
            await write_staged(self._store, self._ambient, self._load, type_id, "rows", tables, partial, group_rows)
        )


def _checked_changes(info: TypeInfo, tables: Sequence[pa.Table], partial: set[str], latest_by: str | None) -> pa.Table:
    """Rows validated by their class, some of which may retract; with the columns ``RETRACTS`` and ``ORDER``, if any."""
    table = pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    control = [name for name in (RETRACTS, ORDER) if name in table.column_names]
    if RETRACTS not in control:
        return _with_columns(checked_rows(info, table.drop_columns(control), partial), table, control)
    gone = table.column(RETRACTS)
    kept, retracted = table.filter(pc.invert(gone)), table.filter(gone)
    found = [_with_columns(_checked_retractions(info, retracted.drop_columns(control), latest_by), retracted, control)]
    if kept.num_rows:  # columns that only written rows need may be missing where there is none
        found.append(_with_columns(checked_rows(info, kept.drop_columns(control), partial), kept, control))
    return pa.concat_tables(found)


def _with_columns(checked: pa.Table, table: pa.Table, columns: Sequence[str]) -> pa.Table:
    for name in columns:
        checked = checked.append_column(name, table.column(name))
    return checked


def checked_rows(info: TypeInfo, table: pa.Table, partial: set[str]) -> pa.Table:
    """Rows validated by their class. Typed columns that lack values are added to ``partial``. Blocking."""
    return row_table(info, *intake.arrow_columns(info, table), partial)


def row_table(
    info: TypeInfo, keys: Sequence[Sequence[str]], bodies: pa.Array, typed: dict[str, pa.Array], partial: set[str]
) -> pa.Table:
    """A table of identities, ``fields_json`` and typed columns, which are made of ``fields_json`` if not given."""
    missing = {name: node for name, node in info.columns.items() if name not in typed}
    made = typed_columns(missing, bodies.to_pylist()) if missing else {}
    partial |= {name for name, column in made.items() if column.partial}
    columns: dict[str, Any] = _key_arrays(info, keys)
    columns["fields_json"] = bodies
    columns.update((name, typed[name] if name in typed else made[name].array) for name in info.payload)
    return pa.table(columns)


def _checked_retractions(info: TypeInfo, table: pa.Table, latest_by: str | None) -> pa.Table:
    """Rows that retract: the identity, and the field that orders them. Other fields are ignored."""
    columns: dict[str, Any] = _key_arrays(info, intake.identity_columns(info, table))
    bodies = ["{}"] * table.num_rows
    if latest_by is not None and latest_by in table.column_names:
        for place, text in intake.known_texts(info, latest_by, table):
            bodies[place] = f'{{"{latest_by}":{text}}}'
    columns["fields_json"] = pa.array(bodies, pa.string())
    made = typed_columns({name: info.nodes[name] for name in info.payload}, bodies)
    return pa.table({**columns, **{name: column.array for name, column in made.items()}})


def _key_arrays(info: TypeInfo, keys: Sequence[Sequence[str]]) -> dict[str, pa.Array]:
    named = zip(names.key_columns(info.kind), keys, strict=True)
    return {name: pa.array(column, pa.string()) for name, column in named}


# --- current rows ---


@dataclass(frozen=True)
class StateColumns(Record):
    """Which rows of a type are current, and what is read of them."""

    WHAT = "a description of current rows"
    type_id: TypeId
    oldest: int
    newest: int
    """Only rows of the commits from ``oldest`` to ``newest`` count."""
    fields: bool = False
    """Whether ``fields_json`` is needed, besides its digest."""
    latest_by: str | None = None
    latest_schema: Document | None = None
    """The field ``latest_by`` as the schema describes it."""

    @classmethod
    def of(cls, info: TypeInfo, oldest: int, newest: int, rules: Rules) -> "StateColumns":
        """``Invalid`` if ``latest_by`` is not a field that has an order."""
        name = rules.latest_by
        if name is not None and name not in info.columns:
            listed = ", ".join(info.columns)
            raise Invalid(f"latest_by is {name!r}, which is not a field of this type", remedy=f"its fields: {listed}")
        if name is not None and info.forms[name] in ("json", "list"):
            raise Invalid(f"latest_by is {name!r}, whose values have no order", remedy="name a number or a time")
        schema = None if name is None else fields_of(info.schema)[name]
        return cls(info.type_id, oldest, newest, rules.instead or rules.retracts, name, schema)


async def stage_state(
    store: Store, ambient: Ambient, load: str, wanted: StateColumns, files: Sequence[tuple[str, int | None]]
) -> list[StagedFile]:
    """Stage the current rows of these data files. ``SnapshotGone`` for a file that was removed."""
    staged_files: list[StagedFile] = []
    tables: list[pa.Table] = []

    async def flush() -> None:
        if sum(each.num_rows for each in tables):
            staged_files.append(await write_staged(store, ambient, load, wanted.type_id, "state", tables))
        tables.clear()

    for path, size in files:
        async for table in state_tables(store, wanted, path, size):
            tables.append(table)
            if sum(each.num_rows for each in tables) >= SIZES.file_rows:
                await flush()
    await flush()
    return staged_files


async def state_tables(
    store: Store, wanted: StateColumns, path: str, size: int | None, among: pa.Array | None = None
) -> AsyncIterator[pa.Table]:
    """The current rows of one data file, row group by row group; with ``among`` only those of these identities."""
    try:
        async with remote_parquet(store, path, size) as file:
            keys = names.key_columns(wanted.type_id.kind)
            columns = [*keys, "commit_id", "fields_json", *({names.RETRACTED} & set(file.schema.names))]
            async for table in file.tables(range(len(file.chunks)), columns):
                yield await blocking(_state, table, path, keys, wanted, among)
    except NotFound as error:
        raise SnapshotGone(f"{path}: this file is gone", remedy="resolve the type's files again") from error


def _state(table: pa.Table, path: str, keys: Sequence[str], wanted: StateColumns, among: pa.Array | None) -> pa.Table:
    commits = table.column("commit_id")
    current = pc.and_(pc.greater_equal(commits, wanted.oldest), pc.less_equal(commits, wanted.newest))
    if among is not None:
        own = pa.table({name: table.column(name).cast(pa.string()) for name in keys})
        current = pc.and_(current, pc.is_in(identities(own, keys), value_set=among))
    table = table.filter(current).combine_chunks()
    texts = table.column("fields_json").cast(pa.string()).combine_chunks()
    bodies = texts.to_pylist()
    gone = names.RETRACTED in table.column_names
    found: dict[str, Any] = {name: table.column(name).cast(pa.string()) for name in keys}
    found["commit_id"] = table.column("commit_id").cast(pa.int64())
    found["digest"] = pa.array(map(digest, bodies), pa.binary(16), size=len(bodies))
    found["other"] = other_digests(texts, path)
    found["retracted"] = (
        table.column(names.RETRACTED).fill_null(False) if gone else pa.array(np.zeros(len(bodies), np.bool_))
    )
    if wanted.latest_by is not None and wanted.latest_schema is not None:
        typed = typed_columns({wanted.latest_by: node_of(wanted.latest_schema)}, bodies)
        found["latest"] = typed[wanted.latest_by].array
    if wanted.fields:
        found["fields_json"] = texts
    return pa.table(found)


# --- deciding about a range of keys ---


def decided_rows(
    target: TypeInfo, rows: pa.Table | None, state: pa.Table | None, rules: Rules, partial: set[str]
) -> tuple[pa.Table | None, Tally]:
    """The rows to write for a range of keys, in the order of identities; None for none. Typed columns that lack values
    are added to ``partial``. Blocking.
    """
    if rules.latest_by in partial:
        raise Invalid(
            f"latest_by is {rules.latest_by!r}, and rows have values of it that are too large to compare",
            remedy="leave these rows out, or name another field",
        )
    decided = decide(target.type_id, rows if rows is not None else _no_rows(target, rules), state, rules)
    if not decided.tally.written or decided.tally.ambiguous or decided.tally.refused:
        return None, decided.tally
    return _rows_to_write(target, decided, rules, partial), decided.tally


def _no_rows(target: TypeInfo, rules: Rules) -> pa.Table:
    keys = names.key_columns(target.type_id.kind)
    nodes = typed_columns(target.columns, [])
    texts = {name: pa.array([], pa.string()) for name in (*keys, "fields_json")}
    flags = {RETRACTS: pa.array([], pa.bool_())} if rules.retracts else {}
    return pa.table({**texts, **{name: column.array for name, column in nodes.items()}, **flags})


def _rows_to_write(target: TypeInfo, decided: Decided, rules: Rules, partial: set[str]) -> pa.Table:
    table = _columns(target, decided.chosen, retracted=False if rules.instead or rules.retracts else None)
    if not decided.gone.num_rows:
        return table
    typed = typed_columns(target.columns, decided.gone.column("fields_json").to_pylist())
    partial |= {name for name, column in typed.items() if column.partial}
    own = {name: decided.gone.column(name) for name in decided.gone.column_names}
    gone = pa.table({**own, **{name: column.array for name, column in typed.items()}})
    both = pa.concat_tables([table, _columns(target, gone, retracted=True)])
    return in_order(both, names.key_columns(target.type_id.kind))


def _columns(target: TypeInfo, table: pa.Table, *, retracted: bool | None) -> pa.Table:
    found: dict[str, Any] = {name: table.column(name) for name in names.key_columns(target.type_id.kind)}
    if retracted is not None:
        found[names.RETRACTED] = pa.repeat(pa.scalar(retracted, pa.bool_()), table.num_rows)
    found |= {name: table.column(name) for name in target.columns}
    return pa.table({**found, "fields_json": table.column("fields_json")})
