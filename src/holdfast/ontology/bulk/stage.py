"""Staged files: sorted rows that the tasks of a bulk load leave in the store for each other; and what these tasks do.

A staged file is a Parquet file of rows in the order of identities, in row groups whose first and last identities are
known. A task that decides about a range of keys reads of every staged file only the row groups that overlap it: the
store takes the place of a shuffle. ``key_ranges`` divides all keys so that each range has about the same number of
rows, however they were distributed among the tasks.

Tasks check rows and stage them (``Stager``), stage what is current (``stage_state``), and decide about a range of keys
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
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.base.record import Record
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.ontology.bulk.decide import ORDER, RETRACTS, Decided, Rules, Tally, decide, in_order
from holdfast.ontology.format import layout
from holdfast.ontology.format.data import intake
from holdfast.ontology.format.data.batch import Identity, digest
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.remote_parquet import remote_parquet
from holdfast.ontology.format.data.stored_rows import other_digest
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import SnapshotGone
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import fields_of, node_of
from holdfast.ontology.types.typeinfo import TypeInfo

GROUP_ROWS = 4_096
"""Rows of a row group of a staged file. A range of keys that ends within a row group reads all of it."""


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

    def within(self, reach: "KeyRange") -> "StagedFile | None":
        """The parts that overlap a range of keys; None if there are none."""
        wanted = [number for number, part in enumerate(self.parts) if reach.reaches(part)]
        if not wanted:
            return None
        return replace(self, parts=self.parts[wanted[0] : wanted[-1] + 1], skipped=self.skipped + wanted[0])

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True)
class KeyRange(Record):
    """Identities from ``low`` on and before ``high``; None means unbounded."""

    WHAT = "a range of keys"
    low: Identity | None = None
    high: Identity | None = None

    def reaches(self, part: Part) -> bool:
        return (self.low is None or self.low <= part.last) and (self.high is None or part.first < self.high)

    def holds(self, part: Part) -> bool:
        """Whether a part is completely inside."""
        return (self.low is None or self.low <= part.first) and (self.high is None or part.last < self.high)

    def cut(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """The rows of a table, in the order of identities, that are inside."""
        first = 0 if self.low is None else _place(table, keys, self.low)
        end = table.num_rows if self.high is None else _place(table, keys, self.high)
        return table.slice(first, max(end - first, 0))


def _place(table: pa.Table, keys: Sequence[str], identity: Identity) -> int:
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


def bound(table: pa.Table, keys: Sequence[str], group_rows: int = GROUP_ROWS) -> tuple[bytes, tuple[Part, ...]]:
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
    small_bytes: int = 128 << 20
    """A load of at most this size is decided in the committing process."""
    files_bytes: int = 64 << 20
    """The bytes of current files that one task reads."""


SIZES = Sizes()


class Stager:
    """Writes rows of one type to staged files, as they come."""

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        load: str,
        info: TypeInfo,
        sizes: Sizes = SIZES,
        latest_by: str | None = None,
    ) -> None:
        """``latest_by`` is the one field that counts of a row that retracts its identity (``decide.RETRACTS``)."""
        self._sizes = sizes
        self._latest_by = latest_by
        self._store = store
        self._ambient = ambient
        self._load = load
        self._info = info
        self._unchecked: list[pa.Table] = []
        self._waiting: list[pa.Table] = []
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
        given, self._unchecked = self._unchecked, []
        table = await blocking(_checked, self._info, given, self._partial, self._latest_by)
        self.rows += table.num_rows
        self._waiting.append(table)
        if (
            sum(each.num_rows for each in self._waiting) >= self._sizes.file_rows
            or sum(each.nbytes for each in self._waiting) >= self._sizes.file_bytes
        ):
            await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not sum(each.num_rows for each in waiting):
            return
        partial, self._partial = tuple(sorted(self._partial)), set()
        staged_file = await staged(
            self._store,
            self._ambient,
            self._load,
            self._info.type_id,
            "rows",
            waiting,
            partial,
            self._sizes.group_rows,
        )
        self.staged_files.append(staged_file)


def _checked(info: TypeInfo, given: Sequence[pa.Table], partial: set[str], latest_by: str | None) -> pa.Table:
    """Rows validated by their class: identity, ``fields_json``, typed columns, and the control columns."""
    table = pa.concat_tables(given, promote_options="permissive").combine_chunks()
    aside = [name for name in (RETRACTS, ORDER) if name in table.column_names]
    plain = table.drop_columns(aside)
    if RETRACTS not in aside:
        return _beside(_written(info, plain, partial), table, aside)
    gone = table.column(RETRACTS)
    kept, retracted = plain.filter(pc.invert(gone)), plain.filter(gone)
    found = [_beside(_retracted(info, retracted, latest_by), table.filter(gone), aside)]
    if kept.num_rows:  # columns that only written rows need may be missing where none is
        found.append(_beside(_written(info, kept, partial), table.filter(pc.invert(gone)), aside))
    return pa.concat_tables(found)


def _beside(checked: pa.Table, given: pa.Table, names_: Sequence[str]) -> pa.Table:
    for name in names_:
        checked = checked.append_column(name, given.column(name))
    return checked


def _written(info: TypeInfo, table: pa.Table, partial: set[str]) -> pa.Table:
    keys, bodies, typed = intake.arrow_columns(info, table)
    found: dict[str, Any] = {}
    for name, column in zip(names.key_columns(info.kind), keys, strict=True):
        found[name] = pa.array(column, pa.string())
    found["fields_json"] = bodies
    unknown = {name: node for name, node in info.columns.items() if name not in typed}
    made = typed_columns(unknown, bodies.to_pylist()) if unknown else {}
    partial |= {name for name, column in made.items() if column.partial}
    found.update((name, typed[name] if name in typed else made[name].array) for name in info.payload)
    return pa.table(found)


def _retracted(info: TypeInfo, table: pa.Table, latest_by: str | None) -> pa.Table:
    """Rows that retract: the identity, and the field that orders them. Other fields are ignored."""
    keys = intake.identity_columns(info, table)
    found: dict[str, Any] = {
        name: pa.array(column, pa.string()) for name, column in zip(names.key_columns(info.kind), keys, strict=True)
    }
    bodies = ["{}"] * table.num_rows
    if latest_by is not None and latest_by in table.column_names:
        for place, text in intake.known_texts(info, latest_by, table):
            bodies[place] = f'{{"{latest_by}":{text}}}'
    found["fields_json"] = pa.array(bodies, pa.string())
    made = typed_columns({name: info.nodes[name] for name in info.payload}, bodies)
    return pa.table({**found, **{name: column.array for name, column in made.items()}})


async def staged(
    store: Store,
    ambient: Ambient,
    load: str,
    type_id: TypeId,
    what: str,
    tables: Sequence[pa.Table],
    partial: tuple[str, ...] = (),
    group_rows: int = GROUP_ROWS,
) -> StagedFile:
    keys = names.key_columns(type_id.kind)
    body, parts = await blocking(lambda: bound(in_order(pa.concat_tables(tables), keys), keys, group_rows))
    key = layout.load_key(load, *type_id, what, ambient.ids.unique())
    if isinstance(await store.put(key, body, CREATE), Lost):
        raise SnapshotGone(f"{key}: another task has drawn the same key")
    return StagedFile(key, len(body), parts, partial)


# --- what is current ---


@dataclass(frozen=True)
class Census(Record):
    """Which rows of a type are current, and which of their fields are needed."""

    WHAT = "a description of current rows"
    type_id: TypeId
    oldest: int
    newest: int
    fields: bool = False
    latest_by: str | None = None
    described: Document | None = None
    """The field ``latest_by`` as the schema has it."""

    @classmethod
    def of(cls, info: TypeInfo, oldest: int, newest: int, rules: Rules) -> "Census":
        """``Invalid`` if ``latest_by`` is not a field that has an order."""
        name = rules.latest_by
        if name is not None and name not in info.columns:
            listed = ", ".join(info.columns)
            raise Invalid(f"latest_by is {name!r}, which is not a field of this type", remedy=f"its fields: {listed}")
        if name is not None and info.forms[name] in ("json", "list"):
            raise Invalid(f"latest_by is {name!r}, whose values have no order", remedy="name a number or a time")
        described = None if name is None else fields_of(info.schema)[name]
        return cls(info.type_id, oldest, newest, rules.instead or rules.retracts, name, described)


async def stage_state(
    store: Store, ambient: Ambient, load: str, census: Census, files: Sequence[tuple[str, int | None]]
) -> list[StagedFile]:
    """Stage the current rows of these data files. ``SnapshotGone`` for a file that was removed."""
    staged_files: list[StagedFile] = []
    waiting: list[pa.Table] = []
    for path, size in files:
        async for table in state_tables(store, census, path, size):
            waiting.append(table)
            if sum(each.num_rows for each in waiting) >= SIZES.file_rows:
                staged_files.append(await staged(store, ambient, load, census.type_id, "state", waiting))
                waiting = []
    if sum(each.num_rows for each in waiting):
        staged_files.append(await staged(store, ambient, load, census.type_id, "state", waiting))
    return staged_files


async def state_tables(store: Store, census: Census, path: str, size: int | None) -> AsyncIterator[pa.Table]:
    """The same of one file, row group by row group."""
    try:
        async with remote_parquet(store, path, size) as file:
            keys = names.key_columns(census.type_id.kind)
            columns = [*keys, "commit_id", "fields_json", *({names.RETRACTED} & set(file.schema.names))]
            async for table in file.tables(range(len(file.chunks)), columns):
                yield await blocking(_state, table, path, keys, census)
    except NotFound as error:
        raise SnapshotGone(f"{path}: this file is gone", remedy="resolve the type's files again") from error


def _state(table: pa.Table, path: str, keys: Sequence[str], census: Census) -> pa.Table:
    commits = table.column("commit_id")
    table = table.filter(
        pc.and_(pc.greater_equal(commits, census.oldest), pc.less_equal(commits, census.newest))
    ).combine_chunks()
    bodies = table.column("fields_json").to_pylist()
    gone = names.RETRACTED in table.column_names
    found: dict[str, Any] = {name: table.column(name).cast(pa.string()) for name in keys}
    found["commit_id"] = table.column("commit_id").cast(pa.int64())
    found["digest"] = pa.array(map(digest, bodies), pa.binary(16), size=len(bodies))
    found["other"] = pa.array((other_digest(each, path) for each in bodies), pa.binary(16), size=len(bodies))
    found["retracted"] = (
        table.column(names.RETRACTED).fill_null(False) if gone else pa.array(np.zeros(len(bodies), np.bool_))
    )
    if census.latest_by is not None and census.described is not None:
        found["latest"] = typed_columns({census.latest_by: node_of(census.described)}, bodies)[census.latest_by].array
    if census.fields:
        found["fields_json"] = table.column("fields_json").cast(pa.string())
    return pa.table(found)


# --- one range of keys ---


async def read_range(store: Store, staged_files: Sequence[StagedFile], reach: KeyRange, kind: str) -> pa.Table | None:
    """The rows of a range of keys from all staged files; None if there are none."""
    keys, found = names.key_columns(kind), list[pa.Table]()
    for staged_file in staged_files:
        some = staged_file.within(reach)
        if some is None:
            continue
        parts = iter(some.parts)
        async with remote_parquet(store, staged_file.key, staged_file.size) as file:
            async for table in file.tables(range(some.skipped, some.skipped + len(some.parts))):
                found.append(table if reach.holds(next(parts)) else reach.cut(table, keys))
    return together(found)


def together(tables: Sequence[pa.Table]) -> pa.Table | None:
    """All of them in one; None if there are none."""
    return pa.concat_tables(tables) if tables else None


def decided_rows(
    target: TypeInfo, given: pa.Table | None, state: pa.Table | None, rules: Rules, partial: set[str]
) -> tuple[pa.Table | None, Tally]:
    """The rows to write for a range of keys, in the order of identities; None for none. Typed columns that lack values
    are added to ``partial``. Blocking.
    """
    if rules.latest_by in partial:
        raise Invalid(
            f"latest_by is {rules.latest_by!r}, and rows have values of it that are too large to compare",
            remedy="leave these rows out, or name another field",
        )
    if given is None:
        given = _no_rows(target, rules)
    decided = decide(target.type_id, given, state, rules)
    if not decided.tally.written or decided.tally.twice or decided.tally.refused:
        return None, decided.tally
    return _chosen(target, decided, rules, partial), decided.tally


def _no_rows(target: TypeInfo, rules: Rules) -> pa.Table:
    keys = names.key_columns(target.type_id.kind)
    nodes = typed_columns(target.columns, [])
    texts = {name: pa.array([], pa.string()) for name in (*keys, "fields_json")}
    flags = {RETRACTS: pa.array([], pa.bool_())} if rules.retracts else {}
    return pa.table({**texts, **{name: column.array for name, column in nodes.items()}, **flags})


def _chosen(target: TypeInfo, decided: Decided, rules: Rules, partial: set[str]) -> pa.Table:
    table = _columns(target, decided.chosen, retracted=False if rules.instead or rules.retracts else None)
    if not decided.gone.num_rows:
        return table
    typed = typed_columns(target.columns, decided.gone.column("fields_json").to_pylist())
    partial |= {name for name, column in typed.items() if column.partial}
    known = {name: decided.gone.column(name) for name in decided.gone.column_names}
    gone = pa.table({**known, **{name: column.array for name, column in typed.items()}})
    both = pa.concat_tables([table, _columns(target, gone, retracted=True)])
    return in_order(both, names.key_columns(target.type_id.kind))


def _columns(target: TypeInfo, table: pa.Table, *, retracted: bool | None) -> pa.Table:
    found: dict[str, Any] = {name: table.column(name) for name in names.key_columns(target.type_id.kind)}
    if retracted is not None:
        found[names.RETRACTED] = pa.repeat(pa.scalar(retracted, pa.bool_()), table.num_rows)
    found |= {name: table.column(name) for name in target.columns}
    return pa.table({**found, "fields_json": table.column("fields_json")})
