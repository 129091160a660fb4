"""Parts of large files: the columns that a question reads, of the row groups that can hold what it asks for.

A lookup by key in a file of tens of megabytes needs the footer and mostly one row group; a grouping of a million rows
needs three columns of ten. So the footer is fetched first, which is one range, and then what the statement reads
(``sparse_file``). Which row groups those are follows from the statistics in the footer, used as those of whole files
are (``prune``): what concerns keys alone may be asked of every group, the rest only where no row left out could have
hidden another one: of history, and of the oldest file if its rows say themselves until when they last. Row groups of
rows that have ended by then are left out where a snapshot has them apart (``lifespans``). Few row groups are a file of
their own. Where they are many, or after some such pieces, the file has all of its row groups.

What was fetched stays for the session, and the footer with it. Once all of a file is here, it is handled as a whole
file.

Errors: ``Overtaken`` if the file was replaced between two ranges, ``MissingFile`` if it is gone.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.format.data.footer import of_groups
from holdfast.ontology.format.data.lifespans import ORIGIN, known, lasting_in
from holdfast.ontology.format.data.rows import column_forms
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.parquet.byte_ranges import Placed, Reading, chunks_of, more_than_chunks
from holdfast.ontology.format.parquet.column_order import FROM_BYTES
from holdfast.ontology.format.parquet.ranged import Distant
from holdfast.ontology.format.parquet.splice import metadata_of
from holdfast.ontology.query.cache.fetched import Arrival, Reader, arrived
from holdfast.ontology.query.cache.loaded import Loaded
from holdfast.ontology.query.cache.prune import may_match, paths
from holdfast.ontology.query.cache.sparse_file import Sparse
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import Overtaken, SnapshotGone
from holdfast.ontology.types.expressions.ast import And
from holdfast.ontology.types.refs import TypeHead
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MissingFile

SHARE = 2
"""Pieces of more than one part in so many are not worth a file of their own,"""
PIECES = 4
"""nor are more of them than this, of one file."""
FILLED = 4
"""Files that are filled at a time."""


@dataclass(frozen=True)
class Wanted:
    """Which rows a question needs of the files of a type."""

    shape: TypeInfo
    keys: And
    """What concerns keys alone."""
    rest: And
    oldest: str | None
    """The file that holds nothing newer than another: no row of it hides one."""
    history: bool
    upper: int
    """The last commit that it is about."""

    def tests(self, entry: Entry, *, single: bool) -> And:
        """What must hold of a row of a file, or it is not needed."""
        told = entry.stats is not None and bool(entry.stats.columns)
        whole = told and (self.history or (single and entry.path == self.oldest))
        return And((*self.keys.terms, *self.rest.terms)) if whole else self.keys


def large(entry: Entry) -> bool:
    """Whether it pays to look at the footer first."""
    return entry.stats is not None and entry.stats.size >= FROM_BYTES


@dataclass
class _File:
    """One file of which parts are here."""

    distant: Distant
    metadata: Any
    chunks: list[list[Placed]]
    """Of each row group."""
    foreign: bool
    """Another writer's, who may have put more into it than chunks and a footer."""
    sizes: list[int]
    """Of row groups, in bytes."""
    pieces: list[tuple[frozenset[int], Loaded]] = field(default_factory=list)
    """With some of the row groups."""
    every: Loaded | None = None
    """With all of them."""


class Narrower:
    """The parts of a session's files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, _File] = {}
        self._sparse: dict[str, Sparse] = {}
        """By the path of the file."""
        self._due: set[str] = set()
        """Paths of files of which all is to be fetched when something is fetched next."""

    def forget(self) -> None:
        """Look at files anew. Statements on their way still get what they read of those of before."""
        self._files.clear()
        self._due.clear()

    def known(self, entry: Entry) -> bool:
        """Whether it has been looked at."""
        return entry.path in self._files

    async def part(self, arrival: Arrival, reader: Reader, wanted: Wanted) -> Loaded | None:
        """A file with the row groups that a question needs, or with all; its columns come when they are read.

        None if it has to come as a whole: another writer's, or one whose rows are all gone through when it arrives.
        """
        async with self._reading(arrival.entry.path):
            file = await self._file(arrival.entry)
            if file.foreign:
                return None
            groups, number = await self._groups(file, arrival.entry, reader, wanted), reader.fence.number
            if groups is None:
                if wanted.shape.upgraders:
                    return None
                if file.every is None or file.every.heeded < number:
                    file.every = await self._begun(file, range(len(file.chunks)), arrival, reader, wanted.shape)
                return file.every
            for has, loaded in file.pieces:
                if groups <= has and loaded.heeded >= number:
                    return loaded
            loaded = await self._begun(file, sorted(groups), arrival, reader, wanted.shape)
            file.pieces.append((groups, loaded))
            return loaded

    async def _groups(self, file: _File, entry: Entry, reader: Reader, wanted: Wanted) -> frozenset[int] | None:
        """The row groups that a question needs, if they are few; None for all."""
        if not wanted.tests(entry, single=True).terms:
            return None
        groups = await blocking(_chosen, file.metadata, entry, wanted, reader.proved)
        if any(groups <= has for has, _ in file.pieces):
            return groups
        many = sum(file.sizes[each] for each in groups) * SHARE > sum(file.sizes)
        return None if many or len(file.pieces) >= PIECES else groups

    async def _begun(
        self, file: _File, groups: Sequence[int], arrival: Arrival, reader: Reader, shape: TypeInfo
    ) -> Loaded:
        rows = sum(file.metadata.row_group(number).num_rows for number in groups)
        sparse = Sparse(file.distant, file.chunks, groups, rows, arrival.path)
        await sparse.begin()
        if shape.upgraders:
            await sparse.fill(None)  # its rows are gone through before anybody asks
        ((loaded, *_),) = await arrived(shape, [arrival], reader)
        self._sparse[loaded.path or ""] = sparse
        return replace(loaded, partly=True)

    async def fill(self, reads: Iterable[Reading]) -> list[Loaded]:
        """Fetch what these readings need and is not here. Files that are whole by now."""
        if not self._sparse:
            return []
        wanted: dict[str, set[str] | None] = {}
        for each in reads:
            columns = wanted.setdefault(str(each), set())
            if each in self._sparse and columns is not None:
                columns |= each.columns
        wanted |= dict.fromkeys(self._due)
        self._due.clear()
        some = [(self._sparse[path], columns) for path, columns in wanted.items() if path in self._sparse]

        async def fill(one: tuple[Sparse, set[str] | None]) -> None:
            async with self._reading(one[0].key):
                await one[0].fill(one[1])

        await map_bounded(some, fill, limit=FILLED)
        return [loaded for sparse, _ in some if (loaded := self._whole(sparse)) is not None]

    def _whole(self, sparse: Sparse) -> Loaded | None:
        """A file with all row groups of which all is here; it is forgotten here."""
        file = self._files.get(sparse.key)
        if file is None or file.every is None or self._sparse.get(file.every.path or "") is not sparse:
            return None
        if not sparse.complete:
            return None
        del self._files[sparse.key], self._sparse[file.every.path or ""]
        return file.every

    def finish(self, entries: Iterable[Entry]) -> None:
        """All of these files is to be fetched, of those that have all of their row groups."""
        for entry in entries:
            file = self._files.get(entry.path)
            if file is not None and file.every is not None and file.every.path is not None:
                self._due.add(file.every.path)

    @asynccontextmanager
    async def _reading(self, key: str) -> AsyncIterator[None]:
        try:
            yield
        except SnapshotGone as error:
            self._files.pop(key, None)
            raise Overtaken(str(error)) from error
        except NotFound as error:
            self._files.pop(key, None)
            raise MissingFile(f"{key}: this data file is missing") from error

    async def _file(self, entry: Entry) -> _File:
        file = self._files.get(entry.path)
        if file is None:
            size = 0 if entry.stats is None else entry.stats.size
            distant = await Distant.at(self._store, entry.path, size)
            file = self._files[entry.path] = await blocking(_looked_at, distant)
        return file


def _looked_at(distant: Distant) -> _File:
    try:
        metadata = metadata_of(distant.tail)
        foreign = not column_forms(metadata.schema.to_arrow_schema()) or more_than_chunks(metadata)
        chunks = chunks_of(metadata)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{distant.key}: not a Parquet file ({error})") from error
    end = distant.size - len(distant.tail)
    if any(not 0 < each.extent.start <= each.extent.end <= end for group in chunks for each in group):
        raise Corrupt(f"{distant.key}: its footer speaks of bytes that it does not have")
    sizes = [sum(each.extent.end - each.extent.start for each in group) for group in chunks]
    return _File(distant, metadata, chunks, foreign, sizes)


def _chosen(metadata: Any, entry: Entry, wanted: Wanted, proved: Callable[[TypeHead], bool]) -> frozenset[int]:
    every = range(_current(metadata, entry, wanted, proved))
    ends = names.UNTIL in metadata.schema.names and ORIGIN in (metadata.metadata or {})
    tests = wanted.tests(entry, single=ends or (entry.stats is not None and entry.stats.unique))
    stats = of_groups(metadata, {path.field for path in paths(tests)})
    return frozenset(number for number in every if may_match(tests, stats[number], wanted.shape))


def _current(metadata: Any, entry: Entry, wanted: Wanted, proved: Callable[[TypeHead], bool]) -> int:
    """How many of the first row groups hold all rows that count, as far as they are told apart."""
    every, told, looked = metadata.num_row_groups, lasting_in(metadata.metadata), known(metadata.metadata)
    through = entry.last if looked is None else looked.commit_id
    sure = looked is None or proved(looked)
    if wanted.history or told is None or told.rows != metadata.num_rows or not sure or through > wanted.upper:
        return int(every)
    ends = accumulate(metadata.row_group(number).num_rows for number in range(every))
    return next((number for number, end in enumerate(ends, 1) if end >= told.first), 0)
