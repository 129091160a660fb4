"""What a session has read of each type: a DuckDB table of its rows, and large files that are scanned where they lie.

The table of a type has the rows of its small files, each identity once for each commit, with ``_until``: the commit of
the next row of the same identity in the table, or null. Files are added in any order, and ``_until`` is brought forward
in place, so the state at a commit is a condition on each row:

    commit_id <= c AND (_until IS NULL OR _until > c)

Rows and ends of later commits do not satisfy it, so statements that were made before they came in read what they would
have read. Nor do rows of files that a statement has no need of change its answer (``prune``): the files that it needs
hold all newer rows of the identities that it is about. So a statement does not name the files whose rows it reads.

Rows on the chain never change, whichever file holds them, except when payload is destroyed: a read that knows of a
later such commit begins with an empty table (``redaction_fence``).

Files above ``TABLE_BYTES`` are scanned where they lie: loading a million rows takes longer than twenty scans. They stay
in the session's folder, which is removed with the session.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, groupby
from pathlib import Path
from typing import NamedTuple

from holdfast.base.aio import blocking, finishing, map_bounded
from holdfast.base.errors import Refused
from holdfast.objects.store import Store
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.operand import quoted
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.large_files import LargeFiles, Wanted, large
from holdfast.ontology.query.cache.loaded import (
    SYSTEM,
    Arrival,
    Arrived,
    Loaded,
    OldCopy,
    Reader,
    Reading,
    alike,
    arrived,
    duck_type,
    listed_columns,
    proved_end,
    written,
)
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.refs import TypeHead, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import Duck
from holdfast.sql.files import LocalFiles
from holdfast.sql.session import Session

PARALLEL = 16
"""Files that are fetched at a time."""
TABLE_BYTES = 256 * 1024
"""Larger files are scanned in place."""
AT_ONCE = 256
"""Files that one statement loads into a table: DuckDB keeps something of each until it ends."""


class Held(NamedTuple):
    """The files of a question: those without a path have their rows in the table."""

    table: str | None
    lacking: frozenset[str]
    """Fields whose column lacks something in the table, of whichever file a row came."""
    files: tuple[Loaded, ...]


@dataclass(eq=False)
class _TypeFiles:
    """The files of a type, read for one version of its class and after the redactions up to a commit."""

    shape: TypeInfo
    fence: int
    table: str
    made: bool = False
    lacking: frozenset[str] = frozenset()
    """Of the files in the table."""
    files: dict[str, Loaded] = field(default_factory=dict)
    """By the key of the object."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while files are fetched and added."""


class Warm:
    def __init__(self, store: Store, memory_limit: str = "256MB", *, files_only: bool = False) -> None:
        """With ``files_only`` no tables are made, so that statements over this data can run in another database."""
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
        """By type and the identity of its fields, which ``_TypeFiles.shape`` keeps alive."""
        self._room = 0
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
        """Drop everything that was read. Statements that are under way keep the tables that they were made for."""
        self._large.forget()
        self._types.clear()

    def known(self, shape: TypeInfo, entry: Entry) -> bool:
        """Whether a file, or its footer, has been fetched."""
        found = self._types.get(_key(shape))
        return (found is not None and entry.path in found.files) or self._large.known(entry)

    async def load(
        self,
        shape: TypeInfo,
        entries: Sequence[Entry],
        fence: RedactionFence,
        proved: Callable[[TypeHead], bool] = lambda _: False,
        wanted: Wanted | None = None,
    ) -> Held:
        """These files, fetched where they are not here yet; of large ones only row groups with what is ``wanted``.

        ``proved`` tells whether the type had such a head. ``MissingFile`` if a file is gone, ``Overtaken`` if one has
        lost payload by a later commit than ``fence`` knows of.
        """
        reader, here = Reader(fence, proved, await self.placed()), self._type_files(shape, fence)
        pieces = {} if wanted is None else await self._pieces(here, entries, reader, wanted)
        whole = [entry for entry in entries if entry.path not in pieces]
        old: set[str] = set()
        while any(entry.path not in here.files for entry in whole):
            async with here.turn:
                missing = [entry for entry in whole if entry.path not in here.files]
                fetched = await map_bounded(missing, self._fetch, limit=PARALLEL)
                try:
                    await self._add(here, await arrived(shape, fetched, reader))
                except OldCopy as error:
                    if error.key in old or self._files is None:
                        raise
                    old.add(error.key)
                    await self._files.forget(error.key)
        found = tuple(pieces.get(entry.path) or here.files[entry.path] for entry in entries)
        return Held(here.table if here.made else None, here.lacking, found)

    async def fill(self, reads: Sequence[Reading]) -> None:
        """Fetch what is read of files of which parts are here. ``MissingFile``, ``Overtaken`` as in ``load``."""
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

    async def _pieces(
        self, here: _TypeFiles, entries: Sequence[Entry], reader: Reader, wanted: Wanted
    ) -> dict[str, Loaded]:
        """Of the large ones that are not here, and would have to be fetched for this session alone."""
        files, found = self._files, dict[str, Loaded]()
        if files is None or files.kept or reader.fence.concerns(here.shape.type_id):
            return found

        async def look(entry: Entry) -> None:
            number = next(self._numbers)
            name = f"{number}.parquet"
            if (path := await files.link(entry.path, name)) is not None:
                await self._add(here, await arrived(here.shape, [Arrival(number, entry, path)], reader))
                return
            part = await self._large.part(Arrival(number, entry, reader.duck.folder / name), reader, wanted)
            if part is not None:
                found[entry.path] = part

        async with here.turn:
            some = [entry for entry in entries if large(entry) and entry.path not in here.files]
            await map_bounded(some, look, limit=PARALLEL)
        return found

    async def _fetch(self, entry: Entry) -> Arrival:
        number = next(self._numbers)
        if self._files is None:
            raise RuntimeError("the session is closed")
        size = entry.stats.size if entry.stats is not None else None
        return Arrival(number, entry, await self._files.place(entry.path, f"{number}.parquet", size))

    async def _add(self, here: _TypeFiles, found: Sequence[Arrived]) -> None:
        small: list[Arrived] = []
        for each in found:
            if each.loaded.size <= self.table_bytes and each.swollen <= self._room:
                self._room -= each.swollen
                small.append(each)
            else:
                here.files[each.loaded.entry.path] = each.loaded
        if small:
            await finishing(_insert, self.duck, here, small)  # or a later question would add these files again


def _key(shape: TypeInfo) -> tuple[TypeId, int]:
    return shape.type_id, id(shape.nodes)


def _insert(duck: Duck, here: _TypeFiles, found: Sequence[Arrived]) -> None:
    """Rows of these files, and the ends that they and the rows before them bring each other. Blocking."""
    shape, table = here.shape, here.table
    keys = ", ".join(map(quoted, shape.keys))
    entries = [each.loaded.entry for each in found]
    first, last = min(each.first for each in entries), max(each.last for each in entries)
    known = [each.entry for each in here.files.values() if each.path is None]
    again = any(each.first <= last and first <= each.last for each in known)
    statements = [] if here.made else [f"CREATE TABLE {table} ({', '.join(_declared(shape))})"]
    for group in _alike(found):
        loaded = group[0]
        columns = ", ".join(
            [*listed_columns(shape, loaded, (*SYSTEM, *shape.payload)), f"{proved_end(loaded)} AS _until"]
        )
        paths = ", ".join(written(each.path or "") for each in group)
        rows = f"SELECT {columns} FROM read_parquet([{paths}])"
        rows += " WHERE _until IS DISTINCT FROM commit_id" if loaded.doubled else ""
        # A snapshot has rows of files that are here already.
        rows = f"SELECT * FROM ({rows}) ANTI JOIN {table} USING ({keys}, commit_id)" if again else rows
        statements.append(f"INSERT INTO {table} {rows}")
    statements.append(
        f"UPDATE {table} SET _until = e.next FROM ("
        f"SELECT rowid AS place, lead(commit_id) OVER (PARTITION BY {keys} ORDER BY commit_id) AS next FROM {table} "
        f"SEMI JOIN (SELECT {keys} FROM {table} WHERE commit_id BETWEEN {first:d} AND {last:d}) USING ({keys})) e "
        f"WHERE {table}.rowid = e.place AND e.next IS NOT NULL AND ({table}._until IS NULL OR {table}._until > e.next)"
    )
    duck.execute(f"BEGIN; {'; '.join(statements)}; COMMIT")
    here.made = True
    here.lacking = here.lacking.union(*(each.loaded.lacking for each in found))
    here.files |= {each.loaded.entry.path: replace(each.loaded, path=None) for each in found}
    for each in found:
        Path(each.loaded.path or "").unlink()


def _alike(found: Sequence[Arrived]) -> list[list[Loaded]]:
    """Files that one statement can load."""

    def signature(each: Arrived) -> str:
        return f"{alike(each.loaded)} {each.schema}"

    groups = (list(group) for _, group in groupby(sorted(found, key=signature), key=signature))
    return [
        [each.loaded for each in group[start : start + AT_ONCE]]
        for group in groups
        for start in range(0, len(group), AT_ONCE)
    ]


def _declared(shape: TypeInfo) -> list[str]:
    columns = [f"{quoted(name)} VARCHAR" for name in shape.keys]
    columns += ["commit_id BIGINT", "schema_version_id BIGINT", "fields_json VARCHAR", "_retracted BOOLEAN"]
    columns += [f"{quoted(name)} {duck_type(arrow_type(shape.nodes[name]))}" for name in shape.payload]
    return [*columns, "_until BIGINT"]
