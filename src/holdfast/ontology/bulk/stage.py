"""What the tasks of a bulk load do: check rows and stage them, stage what is current, decide about a range of keys.

Each writes under keys with an id that nobody else can draw, so a task may be run twice, at once or after its driver has
given it up: what no load refers to is garbage (``staged_loads``). What a task holds is bounded: a staged file, or a
range of keys.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.base.aio import blocking
from holdfast.base.codec import Document
from holdfast.base.errors import Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.ontology.bulk.decide import ORDER, RETRACTS, Decided, Rules, Tally, decide
from holdfast.ontology.bulk.staged import GROUP_ROWS, KeyRange, StagedFile, bound, in_order
from holdfast.ontology.format import layout
from holdfast.ontology.format.data import intake
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.intents import digest
from holdfast.ontology.format.data.remote_parquet import remote_parquet
from holdfast.ontology.format.data.stored_rows import other_digest
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import SnapshotGone
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import fields_of, node_of
from holdfast.ontology.types.typeinfo import TypeInfo

CHECK_ROWS = 16_384
"""Rows that are checked together."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is held at once. Larger means fewer objects."""

    sheaf_rows: int = 400_000
    sheaf_bytes: int = 96 << 20
    """A staged file has at most about so many rows, and so many bytes before compression."""
    group_rows: int = GROUP_ROWS
    range_rows: int = 400_000
    """About, of what is decided together."""
    small_rows: int = 400_000
    small_bytes: int = 128 << 20
    """A load with so much to look at, at most, is decided where it is committed."""
    files_bytes: int = 64 << 20
    """What one task reads of what is current."""


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
        self.sheaves: list[StagedFile] = []
        self.rows = 0

    async def add(self, table: pa.Table) -> None:
        """``InvalidValue`` for a row that does not fit the class."""
        self._unchecked.append(table)
        if sum(each.num_rows for each in self._unchecked) >= CHECK_ROWS:
            await self._check()

    async def finish(self) -> list[StagedFile]:
        await self._check()
        await self._flush()
        return self.sheaves

    async def _check(self) -> None:
        if not self._unchecked:
            return
        given, self._unchecked = self._unchecked, []
        table = await blocking(_checked, self._info, given, self._partial, self._latest_by)
        self.rows += table.num_rows
        self._waiting.append(table)
        if (
            sum(each.num_rows for each in self._waiting) >= self._sizes.sheaf_rows
            or sum(each.nbytes for each in self._waiting) >= self._sizes.sheaf_bytes
        ):
            await self._flush()

    async def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        if not sum(each.num_rows for each in waiting):
            return
        partial, self._partial = tuple(sorted(self._partial)), set()
        sheaf = await staged(
            self._store,
            self._ambient,
            self._load,
            self._info.type_id,
            "rows",
            waiting,
            partial,
            self._sizes.group_rows,
        )
        self.sheaves.append(sheaf)


def _checked(info: TypeInfo, given: Sequence[pa.Table], partial: set[str], latest_by: str | None) -> pa.Table:
    """Rows through their class: identity, ``fields_json``, typed columns; and the columns that say how they count."""
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
    """Of rows that retract: the identity, and the field that orders them. Other fields may be anything, or missing."""
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
        raise SnapshotGone(f"{key}: somebody has drawn the same key")
    return StagedFile(key, len(body), parts, partial)


# --- what is current ---


@dataclass(frozen=True, slots=True)
class Census:
    """Which of a type's rows count, and what of their fields is wanted."""

    type_id: TypeId
    oldest: int
    newest: int
    fields: bool = False
    latest_by: str | None = None
    described: Document | None = None
    """The field ``latest_by`` as the schema has it."""

    def document(self) -> Document:
        return {
            "type": list(self.type_id),
            "oldest": self.oldest,
            "newest": self.newest,
            "fields": self.fields,
            "latest_by": self.latest_by,
            "described": self.described,
        }

    @classmethod
    def parse(cls, document: Document) -> "Census":
        told = {name: value for name, value in document.items() if name != "type"}
        return cls(TypeId(*document["type"]), **told)

    @classmethod
    def of(cls, info: TypeInfo, oldest: int, newest: int, rules: Rules) -> "Census":
        """``Invalid`` if ``latest_by`` is no field that has an order."""
        name = rules.latest_by
        if name is not None and name not in info.columns:
            raise Invalid(f"latest_by is {name!r}, which is no field of this type")
        if name is not None and info.forms[name] in ("json", "list"):
            raise Invalid(f"latest_by is {name!r}, whose values have no order", remedy="name a number or a time")
        described = None if name is None else fields_of(info.schema)[name]
        return cls(info.type_id, oldest, newest, rules.instead or rules.retracts, name, described)


async def stage_state(
    store: Store, ambient: Ambient, load: str, census: Census, files: Sequence[tuple[str, int | None]]
) -> list[StagedFile]:
    """What these data files say of the rows that count, as staged files. ``SnapshotGone`` for one that was removed."""
    sheaves: list[StagedFile] = []
    waiting: list[pa.Table] = []
    for path, size in files:
        async for table in state_tables(store, census, path, size):
            waiting.append(table)
            if sum(each.num_rows for each in waiting) >= SIZES.sheaf_rows:
                sheaves.append(await staged(store, ambient, load, census.type_id, "state", waiting))
                waiting = []
    if sum(each.num_rows for each in waiting):
        sheaves.append(await staged(store, ambient, load, census.type_id, "state", waiting))
    return sheaves


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


async def read_range(store: Store, sheaves: Sequence[StagedFile], reach: KeyRange, kind: str) -> pa.Table | None:
    """The rows of a range of keys from all staged files; None if there are none."""
    keys, found = names.key_columns(kind), list[pa.Table]()
    for sheaf in sheaves:
        some = sheaf.within(reach)
        if some is None:
            continue
        parts = iter(some.parts)
        async with remote_parquet(store, sheaf.key, sheaf.size) as file:
            async for table in file.tables(range(some.skipped, some.skipped + len(some.parts))):
                found.append(table if reach.holds(next(parts)) else reach.cut(table, keys))
    return together(found)


def together(tables: Sequence[pa.Table]) -> pa.Table | None:
    """All of them in one; None if there are none."""
    return pa.concat_tables(tables) if tables else None


def decided_rows(
    target: TypeInfo, given: pa.Table | None, state: pa.Table | None, rules: Rules, partial: set[str]
) -> tuple[pa.Table | None, Tally]:
    """What of a range of keys is written, in the order of identities; None for nothing. ``partial`` names the typed
    columns that lack values, and is added to. Blocking.
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
