"""Files that queries of a session have read, where DuckDB can scan them again without a request.

Keys are never used twice, and files change only when payload is destroyed; a loaded file records which of those commits
it reflects, and is loaded again for a read that knows a later one (``redaction_fence``). Small files are loaded into
one DuckDB table per type, up to a quarter of the memory limit; all others stay on disk, in a folder that is removed
with the session. What a file says of itself decides which of its typed columns may be relied on:

* a column counts if the file names its form, and it is the one that the type has now; in files that name none (of plain
  writers) a column of another Arrow type than text counts if the type is right;
* what does not count is NULL here, and the column is ``lacking``: then ``fields_json`` is asked.

Two rows of one identity and commit, which a plain writer can make, are one row here: the last.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, groupby
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Refused
from holdfast.objects.store import Store
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.operand import joined
from holdfast.ontology.filters.scope import Sql
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.parquet.byte_ranges import Reading, readings
from holdfast.ontology.query.cache.combined import AFTER, Gathered, Gatherer, ended
from holdfast.ontology.query.cache.fetched import Arrival, Arrived, OldCopy, Reader, arrived
from holdfast.ontology.query.cache.loaded import Loaded
from holdfast.ontology.query.cache.partial_files import Narrower, Wanted, large
from holdfast.ontology.query.cache.scans import SYSTEM, Pool, declared, projected, reading, scans
from holdfast.ontology.query.cache.superseded import MOST, ROW_BYTES, Replaced
from holdfast.ontology.types import names
from holdfast.ontology.types.refs import TypeHead, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import Duck
from holdfast.sql.files import LocalFiles
from holdfast.sql.session import Session

PARALLEL = 16
"""Files on their way at a time."""
POOLED_BYTES = 256 * 1024
"""Larger files are scanned where they lie: to load them takes longer than most sessions would save."""
FEW = 16
"""Small files of a first question are scanned where they lie if there are no more: loading pays with the second."""
AT_ONCE = 256
"""Files that are loaded into a table by one statement: DuckDB keeps something of each until it ends."""


class Warm:
    def __init__(self, store: Store, memory_limit: str = "256MB", *, files_only: bool = False) -> None:
        """With ``files_only`` no tables are made, so that statements over this data can run in another database."""
        self._store = store
        self._memory_limit = memory_limit
        self._files_only = files_only
        self.pooled_bytes = -1 if files_only else POOLED_BYTES
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._numbers = count(1)
        self._duck: Duck | None = None
        self._files: LocalFiles | None = None
        self._narrower = Narrower(store)
        self._loaded: dict[str, Loaded] = {}
        self._pools: dict[TypeId, str] = {}
        self._pooled: dict[TypeId, set[int]] = {}
        """The numbers of the files in each table."""
        self._room = self._most_replaced = 0
        self._replaced: Replaced | None = None
        self._gatherer: Gatherer | None = None
        self.gather_after = AFTER
        self._asked: set[TypeId] = set()
        self._waiting: dict[TypeId, list[Arrived]] = {}
        """Small files that are scanned where they lie until somebody asks again."""
        self._closed = False
        self._changes = 0
        self._tables = 0
        self._turns: dict[TypeId, asyncio.Lock] = {}
        self._one = asyncio.Lock()
        """For who writes into the database; whoever fetches files of a type has the lock of that type first."""

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
                self._settle_in(session.duck, session.files)
            return self._session

    def _settle_in(self, duck: Duck, files: LocalFiles) -> None:
        self._room = duck.memory_bytes // 4
        self._most_replaced = -1 if self._files_only else duck.memory_bytes // 4 // ROW_BYTES
        self._replaced = Replaced(duck)
        self._gatherer = None if self._files_only else Gatherer(duck, duck.folder)
        self._duck, self._files = duck, files

    def number(self) -> int:
        """The number of the next file: no two files of a session have the same."""
        return next(self._numbers)

    async def table(self, sql: Sql, then: Callable[[pa.Table], pa.Table] | None = None) -> pa.Table:
        """The whole result of a statement over files that were loaded."""
        await self.filled(sql)
        return await (await self.placed()).table(sql.text, list(sql.params), then)

    async def filled(self, sql: Sql) -> Sql:
        """The same statement, when all that it reads is here."""
        await self.fill(readings(sql.params))
        return sql

    async def fill(self, reads: Sequence[Reading]) -> None:
        """Fetch what is read of files of which parts are here. ``MissingFile``, ``Overtaken`` as in ``load``."""
        for whole in await self._narrower.fill(reads):
            self._loaded[whole.entry.path] = whole

    async def close(self) -> None:
        self._closed = True
        if self._gatherer is not None:
            await self._gatherer.close()
        self._duck = self._files = self._replaced = self._gatherer = None
        self._loaded.clear()
        self._pools.clear()
        self._pooled.clear()
        async with self._opening:
            if self._session is not None:
                await self._session.close()

    def forget(self) -> None:
        """Read everything again. Statements on their way keep the tables that they were made for."""
        if self._gatherer is not None:
            self._gatherer.forget()
        self._changes += 1
        self._waiting.clear()
        self._narrower.forget()
        self._loaded.clear()
        self._pools.clear()
        self._pooled.clear()

    @property
    def changes(self) -> tuple[int, int]:
        """Another one whenever statements might be made of other tables and files than before."""
        return self._changes, 0 if self._gatherer is None else self._gatherer.changes

    def known(self, entry: Entry) -> bool:
        """Whether it is here, or the beginning of it."""
        return entry.path in self._loaded or self._narrower.known(entry)

    async def load(
        self,
        shape: TypeInfo,
        entries: Sequence[Entry],
        fence: RedactionFence,
        proved: Callable[[TypeHead], bool] = lambda _: False,
        wanted: Wanted | None = None,
    ) -> list[Loaded]:
        """These files, fetched where they are not here yet; of large ones only row groups with what is ``wanted``.

        ``proved`` tells whether the type had such a head. ``MissingFile`` if a file is gone, ``Overtaken`` if one has
        lost payload by a later commit than ``fence`` knows of.
        """
        reader = Reader(fence, proved, await self.placed())
        await self._pool_waiting(shape)
        pieces = {} if wanted is None else await self._pieces(entries, reader, wanted)
        whole = [entry for entry in entries if entry.path not in pieces]
        old: set[str] = set()
        while not all(self._fits(entry, fence) for entry in whole):
            async with self._turn(shape):
                missing = [entry for entry in whole if not self._fits(entry, fence)]
                fetched = await map_bounded(missing, self._fetch, limit=PARALLEL)
                try:
                    await self._take_in(shape, await arrived(shape, fetched, reader))
                except OldCopy as error:
                    if error.key in old or self._files is None:
                        raise
                    old.add(error.key)
                    await self._files.forget(error.key)
        return [pieces.get(entry.path) or self._loaded[entry.path] for entry in entries]

    async def _pieces(self, entries: Sequence[Entry], reader: Reader, wanted: Wanted) -> dict[str, Loaded]:
        """Of the large ones that are not here, and would have to be fetched for this session alone."""
        files, fence, found = self._files, reader.fence, dict[str, Loaded]()
        if files is None or files.kept or fence.concerns(wanted.shape.type_id):
            return found

        async def look(entry: Entry) -> None:
            number = self.number()
            name = f"{number}.parquet"
            if (path := await files.link(entry.path, name)) is not None:
                here = [Arrival(number, entry, path)]
                await self._take_in(wanted.shape, await arrived(wanted.shape, here, reader))
                return
            part = await self._narrower.part(Arrival(number, entry, reader.duck.folder / name), reader, wanted)
            if part is not None:
                fence.check(part.redacted, entry.path)
                found[entry.path] = part

        async with self._turn(wanted.shape):
            some = [entry for entry in entries if large(entry) and not self._fits(entry, fence)]
            await map_bounded(some, look, limit=PARALLEL)
        return found

    def _fits(self, entry: Entry, fence: RedactionFence) -> bool:
        """Whether it is here, as it is at the head that is read at."""
        found = self._loaded.get(entry.path)
        if found is None or found.heeded < fence.number:
            return False
        fence.check(found.redacted, entry.path)
        return True

    async def settle(self, shape: TypeInfo, files: Sequence[Loaded]) -> bool:
        """Find out which rows of large files are replaced by newer files; False if that would not help."""
        large = sorted((each for each in files if not each.pooled), key=_commits)
        small = [each for each in files if each.pooled]
        last = max((each.entry.last for each in large), default=0)
        if (
            not 0 < len(large) <= MOST
            or not all(each.single and each.numbered for each in large)
            or any(each.entry.first <= last for each in small)
            or sum(each.rows for each in (*large[1:], *small)) > self._most_replaced
        ):
            return False
        for number, one in enumerate(large):
            newer = [each for each in (*large[number + 1 :], *small) if each.entry.last > one.through]
            if self._lacking(one, newer):
                keys = (*shape.keys, "commit_id")
                await self.fill([reading(shape, each, keys) for each in (one, *newer) if each.path is not None])
                async with self._one:
                    await blocking(self._compare, shape, one, newer)
                    self._changes += 1
        return True

    def gathered(self, shape: TypeInfo, entries: Sequence[Entry], fence: RedactionFence) -> Gathered | None:
        """One table instead of the first of these files, if there is one."""
        return self._gatherer.find(shape.type_id, entries, fence) if self._gatherer is not None else None

    def asked(self, shape: TypeInfo, entries: Sequence[Entry], fence: RedactionFence) -> bool:
        """These are all files of a type, and there was a question about it; after some of them they are gathered.

        Whether it was not the first one.
        """
        again = shape.type_id in self._asked
        if not again:
            self._asked.add(shape.type_id)
            self._changes += 1
        self._gather(shape, entries, fence)
        return again

    def _gather(self, shape: TypeInfo, entries: Sequence[Entry], fence: RedactionFence) -> None:
        gatherer = self._gatherer
        if gatherer is None or not entries or not gatherer.due(shape.type_id, entries, fence, after=self.gather_after):
            return
        if lacking := [entry for entry in entries if not self._fits(entry, fence)]:
            if gatherer.fits(entries):
                self._narrower.finish(lacking)
            return
        files = [self._loaded[entry.path] for entry in entries]
        base = max((each for each in files if each.single), key=lambda each: each.rows, default=None)
        rest = [each for each in files if each is not base]
        rows = self._all(shape, files, (*SYSTEM, names.UNTIL, *shape.payload))
        keys = None if base is None else self._all(shape, [base], ("commit_id",))
        ends = ended(shape.keys, keys, self._all(shape, rest, ("commit_id",))) if rest else None
        gatherer.begin(shape, files, rows, ends)

    async def settled(self) -> None:
        """Until nothing goes on in the background."""
        if self._gatherer is not None:
            await self._gatherer.done()

    def _all(self, shape: TypeInfo, files: Sequence[Loaded], columns: Sequence[str]) -> Sql:
        scans = self.scans(shape, files, columns)
        return joined(" UNION ALL ", [Sql(text, tuple(params)) for text, params in scans])

    def replaced(self, older: Loaded, newer: Sequence[Loaded], upper: int) -> Sql:
        """The numbers of the rows of a settled file that these others replace up to a commit."""
        if self._replaced is None:
            raise RuntimeError("the session is closed")
        return self._replaced.rows(older.number, [each.number for each in newer], upper)

    def _turn(self, shape: TypeInfo) -> asyncio.Lock:
        return self._turns.setdefault(shape.type_id, asyncio.Lock())

    async def _fetch(self, entry: Entry) -> Arrival:
        number = self.number()
        if self._files is None:
            raise RuntimeError("the session is closed")
        size = entry.stats.size if entry.stats is not None else None
        return Arrival(number, entry, await self._files.place(entry.path, f"{number}.parquet", size))

    async def _take_in(self, shape: TypeInfo, found: Sequence[Arrived]) -> None:
        self._changes += 1
        small: list[Arrived] = []
        for each in found:
            if each.loaded.size <= self.pooled_bytes and each.swollen <= self._room:
                self._room -= each.swollen
                small.append(each)
            else:
                self._loaded[each.loaded.entry.path] = each.loaded
        if shape.type_id in self._asked or len(found) > FEW:
            await self._pool(shape, small)
            return
        self._loaded |= {each.loaded.entry.path: each.loaded for each in small}
        self._waiting.setdefault(shape.type_id, []).extend(small)

    async def _pool_waiting(self, shape: TypeInfo) -> None:
        """Few files of a first question are scanned where they lie; who asks again has them in a table."""
        if shape.type_id in self._asked and (waiting := self._waiting.pop(shape.type_id, [])):
            still = [each for each in waiting if self._loaded.get(each.loaded.entry.path) is each.loaded]
            await self._pool(shape, still, keep=True)

    async def _pool(self, shape: TypeInfo, small: Sequence[Arrived], *, keep: bool = False) -> None:
        """``keep``: statements may be on their way to the files."""
        async with self._one:
            await blocking(self._pool_all, shape, small, keep=keep)
            self._changes += 1

    # --- blocking, one at a time ---

    def _pool_all(self, shape: TypeInfo, small: Sequence[Arrived], *, keep: bool) -> None:
        ordered = sorted(small, key=lambda each: each.signature)
        for _, group in groupby(ordered, key=lambda each: each.signature):
            alike = list(group)
            for start in range(0, len(alike), AT_ONCE):
                self._insert(shape, alike[start : start + AT_ONCE], keep=keep)

    def _lacking(self, older: Loaded, newer: Sequence[Loaded]) -> list[Loaded]:
        if self._replaced is None:
            raise RuntimeError("the session is closed")
        numbers = set(self._replaced.lacks(older.number, [each.number for each in newer]))
        return [each for each in newer if each.number in numbers]

    def _compare(self, shape: TypeInfo, older: Loaded, newer: Sequence[Loaded]) -> None:
        lacking = self._lacking(older, newer)
        if self._replaced is None or older.pooled or not lacking:
            return
        pool = self._pools.get(shape.type_id, ""), self._pooled.get(shape.type_id, set())
        self._replaced.compare(older, shape.keys, lacking, pool)

    def _insert(self, shape: TypeInfo, group: Sequence[Arrived], *, keep: bool) -> None:
        pool = self._pool_of(shape)
        first = group[0].loaded
        listed = ", ".join(projected(shape, first, (*SYSTEM, names.UNTIL, *shape.payload)))
        paths = [str(each.path) for each in group]
        # The name of a file is its number.
        self.duck.execute(
            f"INSERT INTO {pool} SELECT CAST(parse_filename(_path, true) AS INTEGER), {listed} "
            "FROM read_parquet($paths, filename = '_path')",
            {"paths": paths},
        )
        for loaded, _, _, path, _ in group:
            if not keep:
                path.unlink()
            self._loaded[loaded.entry.path] = replace(loaded, path=None, beyond=False, lasting=None)
            self._pooled.setdefault(shape.type_id, set()).add(loaded.number)

    def _pool_of(self, shape: TypeInfo) -> str:
        pool = self._pools.get(shape.type_id)
        if pool is None:
            pool = f"store.pool_{self._tables}"
            self._tables += 1
            self.duck.execute(
                f"CREATE SCHEMA IF NOT EXISTS store; CREATE TABLE {pool} (_file INTEGER, {', '.join(declared(shape))})"
            )
            self._pools[shape.type_id] = pool
        return pool

    # --- SQL ---

    def scans(
        self, shape: TypeInfo, files: Sequence[Loaded], columns: Sequence[str], latest_at: int | None = None
    ) -> list[tuple[str, list[Any]]]:
        """SELECTs that together give all rows of these files, by keys and these columns, and their parameters.

        With ``latest_at`` without rows that another one of their file has replaced by that commit.
        """
        pool = Pool(self._pools.get(shape.type_id, ""), self._pooled.get(shape.type_id, set()))
        return scans(shape, files, columns, latest_at, pool)


def _commits(loaded: Loaded) -> int:
    return loaded.entry.first
