"""Large files of a bucket, fetched in part: the columns that statements read, of the row groups that can matter.

The footer is fetched first (``remote_parquet``). Its statistics select row groups as the statistics of files select
files (``prune``). Conditions on keys apply to every row group. Other conditions apply only where a row group that is
left out cannot hide an older row: to history, and to the oldest file if its rows have ends. For a state, row groups
whose rows have all ended are left out, too.

DuckDB scans a local file that has the object's bytes at their own offsets. The columns and row groups that a statement
reads are fetched before it runs (``loaded.Reading``). A scan names row groups by the numbers of their rows: DuckDB
skips other row groups, whose bytes may be missing, by their row counts.

Fetched bytes and footers stay for the session.

Errors: ``Overtaken`` if the file was replaced between two requests, ``MissingFile`` if it is gone.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.format.data.columns import FORMS
from holdfast.ontology.format.data.footer import last_end, of_groups, span_of
from holdfast.ontology.format.data.lifespans import ORIGIN
from holdfast.ontology.format.data.remote_parquet import WHOLE_BYTES, RemoteParquet, chunks_only
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.loaded import NUMBER, Fetched, Loaded, Reading, opened
from holdfast.ontology.query.cache.prune import may_match, paths
from holdfast.ontology.types import names
from holdfast.ontology.types.errors import Overtaken, SnapshotGone
from holdfast.ontology.types.expressions.ast import And
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MissingFile

SHARE = 2
"""If more than one part in so many of a file is needed, all row groups are scanned."""
RUNS = 4
"""Consecutive row groups are one run, and each run is a scan. For more runs all row groups are scanned."""
FILES_AT_ONCE = 4


@dataclass(frozen=True)
class Wanted:
    """Which rows a query needs of the files of a type."""

    shape: TypeInfo
    keys: And
    """Conditions on keys alone."""
    rest: And
    oldest: str | None
    """The oldest file: no row of it hides a row of another file."""
    history: bool
    upper: int
    """The last commit of the query's window."""

    def conditions(self, entry: Entry, *, single: bool) -> And:
        """Rows of a file that do not satisfy these conditions are not needed."""
        described = entry.stats is not None and bool(entry.stats.columns)
        hides_nothing = self.history or (single and entry.path == self.oldest)
        return And((*self.keys.terms, *self.rest.terms)) if described and hides_nothing else self.keys


def large(entry: Entry) -> bool:
    """Whether the footer of a file is fetched first."""
    return entry.stats is not None and entry.stats.size > WHOLE_BYTES


@dataclass
class _File:
    remote: RemoteParquet
    foreign: bool
    """It is another writer's, who may have put more into it than chunks and a footer; or rows cannot be numbered."""
    loaded: Loaded | None = None
    nodes: Any = None
    """The fields of the type that ``loaded`` was made for."""
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
        """Open files again. Statements that are running keep the files that they were made for."""
        self._files.clear()

    async def part(self, file: Fetched, fence: RedactionFence, wanted: Wanted) -> Loaded | None:
        """The file with the row groups that a query needs. Its columns are fetched when they are read.

        None if the whole file must be fetched: another writer's, or one with rows to upgrade.
        """
        if wanted.shape.upgraders:
            return None
        async with self._errors(file.entry.path):
            known = await self._file(file)
            if known.foreign:
                return None
            if known.loaded is None or known.nodes is not wanted.shape.nodes or known.fence != fence.number:
                here = file._replace(path=known.remote.path)
                found = await blocking(opened, wanted.shape, here, fence, here.path.parent)
                known.loaded, known.nodes, known.fence = found.loaded, wanted.shape.nodes, fence.number
                self._remote[str(known.remote.path)] = known.remote
            if known.remote.complete:
                return known.loaded
            loaded = replace(known.loaded, partly=True)
            groups = await self._groups(known.remote, file.entry, wanted)
            if groups is None:
                return loaded
            runs = _runs(known.remote.metadata, groups)
            return replace(loaded, groups=groups, within=runs) if len(runs) <= RUNS else loaded

    async def _groups(self, remote: RemoteParquet, entry: Entry, wanted: Wanted) -> frozenset[int] | None:
        """The row groups that a query needs, if they are few; None for all."""
        if not wanted.conditions(entry, single=True).terms:
            return None
        groups = await blocking(needed_groups, remote.metadata, entry, wanted)
        sizes = remote.group_bytes()
        return None if sum(sizes[each] for each in groups) * SHARE > sum(sizes) else groups

    async def fill(self, reads: Iterable[Reading]) -> None:
        """Fetch the missing bytes of these readings."""
        wanted: dict[tuple[str, frozenset[int] | None], set[str]] = {}
        for each in reads:
            wanted.setdefault((str(each), each.groups), set()).update(each.columns)

        async def fetch(one: tuple[tuple[str, frozenset[int] | None], set[str]]) -> None:
            (path, groups), columns = one
            remote = self._remote[path]
            async with self._errors(remote.key):
                await remote.fetch(columns, groups)

        await map_bounded(wanted.items(), fetch, limit=FILES_AT_ONCE)

    @asynccontextmanager
    async def _errors(self, key: str) -> AsyncIterator[None]:
        try:
            yield
        except SnapshotGone as error:
            self._files.pop(key, None)
            raise Overtaken(str(error)) from error
        except NotFound as error:
            self._files.pop(key, None)
            raise MissingFile(f"{key}: this data file is missing") from error

    async def _file(self, fetched: Fetched) -> _File:
        entry = fetched.entry
        file = self._files.get(entry.path)
        if file is None:
            size = 0 if entry.stats is None else entry.stats.size
            path = fetched.path.with_suffix(".ranges.parquet")
            remote = await RemoteParquet.open(self._store, entry.path, path, size)
            ours = FORMS in (remote.metadata.metadata or {}) and chunks_only(remote.metadata)
            file = self._files[entry.path] = _File(remote, not (ours and can_be_numbered(remote.metadata.schema.names)))
        return file


def needed_groups(metadata: Any, entry: Entry, wanted: Wanted) -> frozenset[int]:
    """The row groups that can have rows which a query needs. Blocking."""
    has_ends = names.UNTIL in metadata.schema.names and ORIGIN in (metadata.metadata or {})
    single = has_ends or (entry.stats is not None and entry.stats.unique)
    conditions = wanted.conditions(entry, single=single)
    stats = of_groups(metadata, {path.field for path in paths(conditions)})
    upper = min(wanted.upper, entry.last)

    def needed(number: int) -> bool:
        if has_ends and not wanted.history and (end := last_end(metadata, number)) is not None and end <= upper:
            return False
        return may_match(conditions, stats[number], wanted.shape)

    return frozenset(filter(needed, range(metadata.num_row_groups)))


def can_be_numbered(columns: Iterable[str]) -> bool:
    """Whether DuckDB can number the rows of a file: no column has the name of that number."""
    return NUMBER not in map(str.lower, columns)


def _runs(metadata: Any, groups: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """The first and last row numbers of consecutive row groups; for no row groups a range without rows."""
    starts = [0, *accumulate(metadata.row_group(number).num_rows for number in range(metadata.num_row_groups))]
    runs: list[tuple[int, int]] = []
    for number in sorted(groups):
        first, last = starts[number], starts[number + 1] - 1
        if runs and runs[-1][1] + 1 == first:
            first = runs.pop()[0]
        runs.append((first, last))
    return tuple(runs) or ((0, -1),)


class Position(NamedTuple):
    """A position in a file whose rows are ordered by commit, then by identity: the first column of it is enough."""

    commit_id: int
    key: str


def extents(footer: Any, key: str) -> list[tuple[Position, Position] | None]:
    """For each row group a position that none of its rows is before, and one that none is after; None if unknown."""
    found: list[tuple[Position, Position] | None] = []
    for number in range(footer.num_row_groups):
        (low, high, _), (first, last, _) = (span_of(footer, name, [number]) for name in ("commit_id", key))
        if isinstance(low, int) and isinstance(high, int) and isinstance(first, str) and isinstance(last, str):
            found.append((Position(low, first), Position(high, last)))
        else:
            found.append(None)
    return found


def between(file: Loaded, key: str, low: Position | None, high: Position | None) -> Loaded:
    """A file with the row groups that may have rows from ``low`` on and before ``high``. Blocking."""
    metadata = pq.read_metadata(file.path)
    wanted = (
        number
        for number, each in enumerate(extents(metadata, key))
        if each is None or ((low is None or each[1] >= low) and (high is None or each[0] < high))
    )
    groups = frozenset(wanted) if file.groups is None else frozenset(wanted) & file.groups
    return replace(file, groups=groups, within=_runs(metadata, groups))
