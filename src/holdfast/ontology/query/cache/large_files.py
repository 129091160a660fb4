"""Large files: the columns that a question reads, of the row groups that can hold what it asks for.

A lookup by key in a file of tens of megabytes needs the footer and mostly one row group; a grouping of a million rows
needs three columns of ten. So the footer is fetched first, and then what the statement reads (``remote_parquet``).
Which row groups those are follows from the statistics in the footer, used as those of whole files are (``prune``): what
concerns keys alone may be asked of every group, the rest only where no row left out could have hidden another one: of
history, and of the oldest file if its rows say themselves until when they last. Row groups of rows that have ended by
then are left out where a snapshot has them apart (``lifespans``).

DuckDB scans the local file that has the object's bytes at their own offsets; a statement names the columns and row
groups that it reads (``loaded.Reading``), and what is missing of them is fetched before it runs. Of some row groups it
asks by the numbers of their rows: DuckDB skips the other row groups, whose bytes may not be here, by their row counts.

What was fetched stays for the session, and the footer with it.

Errors: ``Overtaken`` if the file was replaced between two ranges, ``MissingFile`` if it is gone.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pyarrow.parquet as pq

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.ontology.format.data.footer import of_groups
from holdfast.ontology.format.data.lifespans import ORIGIN, known, lasting_in
from holdfast.ontology.format.data.remote_parquet import WHOLE_BYTES, RemoteParquet, chunks_only
from holdfast.ontology.format.data.rows import column_forms
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.loaded import Arrival, Loaded, Reader, Reading, arrived
from holdfast.ontology.query.cache.prune import may_match, paths
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import Overtaken, SnapshotGone
from holdfast.ontology.types.expressions.ast import And
from holdfast.ontology.types.refs import TypeHead
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MissingFile

SHARE = 2
"""Where more than one part in so many of a file is needed, all row groups are scanned."""
RUNS = 4
"""Neighbouring row groups are one run, and each run is a scan; of more than so many all row groups are scanned."""
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
        described = entry.stats is not None and bool(entry.stats.columns)
        whole = described and (self.history or (single and entry.path == self.oldest))
        return And((*self.keys.terms, *self.rest.terms)) if whole else self.keys


def large(entry: Entry) -> bool:
    """Whether its footer is fetched first."""
    return entry.stats is not None and entry.stats.size > WHOLE_BYTES


@dataclass
class _File:
    """One file of which parts have been fetched."""

    remote: RemoteParquet
    foreign: bool
    """Another writer's, who may have put more into it than chunks and a footer."""
    every: Loaded | None = None
    nodes: Any = None
    """The fields of the type that ``every`` was made for."""
    fence: int = 0
    """The fence that it was made under."""


class LargeFiles:
    """The large files of a session, and what has been fetched of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, _File] = {}
        self._remote: dict[str, RemoteParquet] = {}
        """By the path of the local file."""

    def forget(self) -> None:
        """Open files anew. Statements that are under way still read the ones that they were made for."""
        self._files.clear()

    def known(self, entry: Entry) -> bool:
        """Whether its footer has been fetched."""
        return entry.path in self._files

    async def part(self, arrival: Arrival, reader: Reader, wanted: Wanted) -> Loaded | None:
        """A file with the row groups that a question needs, or with all; its columns come when they are read.

        None if it has to come as a whole: another writer's, or one whose rows are all gone through when it arrives.
        """
        if wanted.shape.upgraders:
            return None
        async with self._reading(arrival.entry.path):
            file = await self._file(arrival)
            if file.foreign:
                return None
            if file.every is None or file.nodes is not wanted.shape.nodes or file.fence != reader.fence.number:
                here = arrival._replace(path=file.remote.path)
                ((loaded, *_),) = await arrived(wanted.shape, [here], reader)
                file.every, file.nodes, file.fence = (
                    replace(loaded, partly=True),
                    wanted.shape.nodes,
                    reader.fence.number,
                )
                self._remote[str(file.remote.path)] = file.remote
            if file.remote.complete:
                return replace(file.every, partly=False)
            groups = await self._groups(file, arrival.entry, reader, wanted)
            if groups is None or not file.every.numbered:
                return file.every
            runs = _runs(file.remote.metadata, groups)
            return replace(file.every, groups=groups, within=runs) if len(runs) <= RUNS else file.every

    async def _groups(self, file: _File, entry: Entry, reader: Reader, wanted: Wanted) -> frozenset[int] | None:
        """The row groups that a question needs, if they are few; None for all."""
        if not wanted.tests(entry, single=True).terms:
            return None
        groups = await blocking(_chosen, file.remote.metadata, entry, wanted, reader.proved)
        sizes = file.remote.group_bytes()
        return None if sum(sizes[each] for each in groups) * SHARE > sum(sizes) else groups

    async def fill(self, reads: Iterable[Reading]) -> None:
        """Fetch what these readings need and is not here."""
        wanted: dict[tuple[str, frozenset[int] | None], set[str]] = {}
        for each in reads:
            wanted.setdefault((str(each), each.groups), set()).update(each.columns)

        async def fetch(one: tuple[tuple[str, frozenset[int] | None], set[str]]) -> None:
            (path, groups), columns = one
            remote = self._remote[path]
            async with self._reading(remote.key):
                await remote.fetch(columns, groups)

        await map_bounded(wanted.items(), fetch, limit=FILLED)

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

    async def _file(self, arrival: Arrival) -> _File:
        entry = arrival.entry
        file = self._files.get(entry.path)
        if file is None:
            size = 0 if entry.stats is None else entry.stats.size
            path = arrival.path.with_suffix(".ranges.parquet")
            remote = await RemoteParquet.open(self._store, entry.path, path, size)
            foreign = not column_forms(remote.schema) or not chunks_only(remote.metadata)
            file = self._files[entry.path] = _File(remote, foreign)
        return file


def _chosen(metadata: Any, entry: Entry, wanted: Wanted, proved: Callable[[TypeHead], bool]) -> frozenset[int]:
    every = range(_current(metadata, entry, wanted, proved))
    ends = names.UNTIL in metadata.schema.names and ORIGIN in (metadata.metadata or {})
    tests = wanted.tests(entry, single=ends or (entry.stats is not None and entry.stats.unique))
    stats = of_groups(metadata, {path.field for path in paths(tests)})
    return frozenset(number for number in every if may_match(tests, stats[number], wanted.shape))


def _runs(metadata: Any, groups: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The first and last row numbers of these row groups; neighbours are one run. One that has no row for none."""
    starts = [0, *accumulate(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))]
    runs: list[tuple[int, int]] = []
    for number in sorted(groups):
        first, last = starts[number], starts[number + 1] - 1
        if runs and runs[-1][1] + 1 == first:
            first = runs.pop()[0]
        runs.append((first, last))
    return tuple(runs) or ((0, -1),)


def share_of(file: Loaded, share: tuple[int, int]) -> Loaded:
    """A file with only its share of the row groups: which one, of how many. Blocking."""
    which, shares = share
    if not file.numbered:
        return file if which == 0 else replace(file, groups=frozenset(), within=((0, -1),))
    metadata = pq.read_metadata(file.path)
    count = metadata.num_row_groups
    groups = frozenset(each for each in range(count) if each * shares // count == which)
    groups = groups if file.groups is None else groups & file.groups
    return replace(file, groups=groups, within=_runs(metadata, groups))


def _current(metadata: Any, entry: Entry, wanted: Wanted, proved: Callable[[TypeHead], bool]) -> int:
    """How many of the first row groups hold all rows that count, as far as the file separates them from ended ones."""
    every, lasting, looked = metadata.num_row_groups, lasting_in(metadata.metadata), known(metadata.metadata)
    through = entry.last if looked is None else looked.commit_id
    sure = looked is None or proved(looked)
    if wanted.history or lasting is None or lasting.rows != metadata.num_rows or not sure or through > wanted.upper:
        return int(every)
    ends = accumulate(metadata.row_group(number).num_rows for number in range(every))
    return next((number for number, end in enumerate(ends, 1) if end >= lasting.first), 0)
