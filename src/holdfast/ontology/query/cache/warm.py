"""What a session has read of each type: a DuckDB table of its rows, and large files that are scanned in place.

The table of a type has the rows of its small files, with ``_until``: the commit of the next row of the same identity in
the table, or null. Files are inserted in any order, and the insertion updates ``_until`` of the identities that it
touches, so the state at a commit is a condition on each row:

    commit_id <= c AND (_until IS NULL OR _until > c)

Later rows and ends do not satisfy it, so a statement that was made before an insertion still reads the same rows. Rows
of files that a statement does not need cannot change its answer either: the files that it needs have all newer rows of
its identities (``prune``). So a statement does not name the files whose rows it reads.

Rows on the chain never change, except when payload is destroyed: a read that knows of a later such commit starts with
an empty table (``redaction_fence``).

Files above ``TABLE_BYTES`` are scanned in place: loading a million rows takes longer than twenty scans. They stay in
the session's directory, which is removed with the session.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from pathlib import Path
from typing import NamedTuple

from holdfast.base.aio import blocking, finishing, map_bounded
from holdfast.base.errors import Refused
from holdfast.objects.store import Store
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.operand import quoted, text_literal
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.large_files import LargeFiles, Wanted, large
from holdfast.ontology.query.cache.loaded import (
    SYSTEM,
    Fetched,
    Loaded,
    OldCopy,
    Opened,
    Reading,
    duck_type,
    listed_columns,
    opened,
    scan_signature,
)
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import Duck
from holdfast.sql.files import LocalFiles
from holdfast.sql.session import Session

PARALLEL = 16
"""Files that are fetched at the same time."""
TABLE_BYTES = 256 * 1024
"""Larger files are scanned in place."""
INSERTED_FILES = 256
"""Files that one statement inserts: DuckDB keeps memory for each until the statement ends."""


class Held(NamedTuple):
    """The files of a query. The rows of files without a path are in the table."""

    table: str | None
    lacking: frozenset[str]
    """Fields whose column in the table is incomplete."""
    files: tuple[Loaded, ...]


@dataclass(eq=False)
class _TypeFiles:
    """The files of a type, for one version of its class, after the redactions up to a commit."""

    shape: TypeInfo
    fence: int
    table: str
    created: bool = False
    """Whether the table exists."""
    lacking: frozenset[str] = frozenset()
    """Fields that a file in the table lacks."""
    files: dict[str, Loaded] = field(default_factory=dict)
    """By key."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while files are fetched and added."""


class Warm:
    def __init__(self, store: Store, memory_limit: str = "256MB", *, files_only: bool = False) -> None:
        """With ``files_only`` there are no tables, so statements over these files can run in another database."""
        self._store = store
        self._memory_limit = memory_limit
        self.table_bytes = -1 if files_only else TABLE_BYTES
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)
        self._duck: Duck | None = None
        self._files: LocalFiles | None = None
        self._large = LargeFiles(store)
        self._types: dict[tuple[TypeId, int], _TypeFiles] = {}
        """By type and ``id`` of its fields, which ``_TypeFiles.shape`` keeps alive."""
        self._room = 0
        """Bytes of memory that tables may still take."""
        self._closed = False

    # --- the session's database ---

    @property
    def duck(self) -> Duck:
        self.check_open()
        if self._duck is None:
            raise RuntimeError("the session has no database yet")
        return self._duck

    def check_open(self) -> None:
        if self._closed:
            raise Refused("the session is closed", remedy="ask within its `async with`, or open another one")

    async def placed(self) -> Duck:
        """The session's database, opened at first use."""
        return (await self.session()).duck

    async def session(self) -> Session:
        async with self._opening:
            self.check_open()
            if self._session is None:
                session = self._session = await Session.open(self._store, self._memory_limit)
                await blocking(session.duck.execute, "CREATE SCHEMA store")
                self._room = session.duck.memory_bytes // 4
                self._duck, self._files = session.duck, session.files
            return self._session

    async def close(self) -> None:
        self._closed = True
        self._duck = self._files = None
        self._types.clear()
        async with self._opening:
            if self._session is not None:
                await self._session.close()

    # --- files ---

    def forget(self) -> None:
        """Drop everything that was read. Statements that are running keep the tables that they were made for."""
        self._large.forget()
        self._types.clear()

    async def load(self, shape: TypeInfo, entries: Sequence[Entry], fence: RedactionFence, wanted: Wanted) -> Held:
        """These files, fetched if they are missing; of large ones only row groups with ``wanted`` rows.

        ``MissingFile`` if a file is gone, ``Overtaken`` if one has lost payload by a later commit than ``fence`` knows.
        """
        duck, here = await self.placed(), self._type_files(shape, fence)
        parts = await self._parts(here, entries, fence, wanted)
        whole = [entry for entry in entries if entry.path not in parts]
        outdated: set[str] = set()
        while any(entry.path not in here.files for entry in whole):
            async with here.lock:
                missing = [entry for entry in whole if entry.path not in here.files]
                fetched = await map_bounded(missing, self._fetch, limit=PARALLEL)
                try:
                    await self._add(here, await blocking(_all_opened, shape, fetched, fence, duck.folder))
                except OldCopy as error:
                    if error.key in outdated or self._files is None:
                        raise
                    outdated.add(error.key)
                    await self._files.discard(error.key)
        found = tuple(parts.get(entry.path) or here.files[entry.path] for entry in entries)
        return Held(here.table if here.created else None, here.lacking, found)

    async def fill(self, reads: Sequence[Reading]) -> None:
        """Fetch the missing bytes of these readings. ``MissingFile``, ``Overtaken`` as in ``load``."""
        if reads:
            await self._large.fill(reads)

    def _type_files(self, shape: TypeInfo, fence: RedactionFence) -> _TypeFiles:
        found = self._types.get(_key(shape))
        if found is None or found.fence < fence.number:
            name = f"store.rows_{next(self._numbers)}"
            found = self._types[_key(shape)] = _TypeFiles(shape, fence.number, name)
        elif found.fence > fence.number:
            raise Overtaken(f"{shape.name}: commit {found.fence} has destroyed payload since this read began")
        return found

    async def _parts(
        self, here: _TypeFiles, entries: Sequence[Entry], fence: RedactionFence, wanted: Wanted
    ) -> dict[str, Loaded]:
        """Large files of which only parts are fetched, by key. Whole files are fetched into a disk cache, since other
        sessions use them, and during a redaction.
        """
        files, folder, found = self._files, self.duck.folder, dict[str, Loaded]()
        if files is None or files.cached or fence.concerns(here.shape.type_id):
            return found

        async def part(entry: Entry) -> None:
            number = next(self._numbers)
            name = f"{number}.parquet"
            if (path := await files.link(entry.path, name)) is not None:
                fetched = [Fetched(number, entry, path)]
                await self._add(here, await blocking(_all_opened, here.shape, fetched, fence, folder))
                return
            loaded = await self._large.part(Fetched(number, entry, folder / name), fence, wanted)
            if loaded is not None:
                found[entry.path] = loaded

        async with here.lock:
            some = [entry for entry in entries if large(entry) and entry.path not in here.files]
            await map_bounded(some, part, limit=PARALLEL)
        return found

    async def _fetch(self, entry: Entry) -> Fetched:
        number = next(self._numbers)
        if self._files is None:
            raise RuntimeError("the session is closed")
        size = entry.stats.size if entry.stats is not None else None
        return Fetched(number, entry, await self._files.place(entry.path, f"{number}.parquet", size))

    async def _add(self, here: _TypeFiles, found: Sequence[Opened]) -> None:
        small: list[Opened] = []
        for each in found:
            if each.loaded.size <= self.table_bytes and each.memory_bytes <= self._room:
                self._room -= each.memory_bytes
                small.append(each)
            else:
                here.files[each.loaded.entry.path] = each.loaded
        if small:
            # Not interrupted by a cancellation: a later query would insert these files again.
            await finishing(_insert, self.duck, here, small)


def _all_opened(shape: TypeInfo, files: Sequence[Fetched], fence: RedactionFence, folder: Path) -> list[Opened]:
    return [opened(shape, each, fence, folder) for each in files]


def _key(shape: TypeInfo) -> tuple[TypeId, int]:
    return shape.type_id, id(shape.nodes)


def _insert(duck: Duck, here: _TypeFiles, found: Sequence[Opened]) -> None:
    """Insert the rows of these files, and update the ends of their identities. Blocking."""
    shape, table = here.shape, here.table
    keys = ", ".join(map(quoted, shape.keys))
    entries = [each.loaded.entry for each in found]
    first, last = min(each.first for each in entries), max(each.last for each in entries)
    inserted = [each.entry for each in here.files.values() if each.path is None]
    overlapping = any(each.first <= last and first <= each.last for each in inserted)
    statements = [] if here.created else [f"CREATE TABLE {table} ({', '.join(_declared(shape))})"]
    for group in _scans(found):
        loaded = group[0]
        columns = ", ".join(listed_columns(shape, loaded, (*SYSTEM, *shape.payload)))
        files = ", ".join(text_literal(each.path or "") for each in group)
        rows = f"SELECT {columns}, NULL::BIGINT FROM read_parquet([{files}])"
        rows += " WHERE _until IS DISTINCT FROM commit_id" if loaded.until else ""
        # A snapshot has rows of files that were inserted before.
        rows = f"SELECT * FROM ({rows}) ANTI JOIN {table} USING ({keys}, commit_id)" if overlapping else rows
        statements.append(f"INSERT INTO {table} {rows}")
    statements.append(
        f"UPDATE {table} SET _until = e.next FROM ("
        f"SELECT rowid AS place, lead(commit_id) OVER (PARTITION BY {keys} ORDER BY commit_id) AS next FROM {table} "
        f"SEMI JOIN (SELECT {keys} FROM {table} WHERE commit_id BETWEEN {first:d} AND {last:d}) USING ({keys})) e "
        f"WHERE {table}.rowid = e.place AND e.next IS NOT NULL AND ({table}._until IS NULL OR {table}._until > e.next)"
    )
    duck.execute(f"BEGIN; {'; '.join(statements)}; COMMIT")
    here.created = True
    here.lacking = here.lacking.union(*(each.loaded.lacking for each in found))
    here.files |= {each.loaded.entry.path: replace(each.loaded, path=None) for each in found}
    for each in found:
        Path(each.loaded.path or "").unlink()


def _scans(found: Sequence[Opened]) -> list[list[Loaded]]:
    """Groups of files that one scan can read."""

    def signature(each: Opened) -> str:
        return f"{scan_signature(each.loaded)} {each.schema}"

    groups = (list(group) for _, group in groupby(sorted(found, key=signature), key=signature))
    return [
        [each.loaded for each in group[start : start + INSERTED_FILES]]
        for group in groups
        for start in range(0, len(group), INSERTED_FILES)
    ]


def _declared(shape: TypeInfo) -> list[str]:
    columns = [f"{quoted(name)} VARCHAR" for name in shape.keys]
    columns += ["commit_id BIGINT", "schema_version_id BIGINT", "fields_json VARCHAR", "_retracted BOOLEAN"]
    columns += [f"{quoted(name)} {duck_type(arrow_type(shape.nodes[name]))}" for name in shape.payload]
    return [*columns, "_until BIGINT"]
