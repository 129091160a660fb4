"""Few rows of large files: the row groups that can hold what a question asks for, and nothing else of the file.

Who looks for a key in a file of tens of megabytes needs its footer and mostly one row group. The ranges of that are put
at their own places in a file that is empty elsewhere, under a footer that knows of no other row groups, so that whoever
scans it sees a data file with fewer rows. Which groups those are is told by the statistics in the footer, read as those
of whole files are (``prune``): what concerns keys alone may be asked of every group, the rest only where no row left
out could have hidden another one: of history, and of the oldest file if its rows say themselves until when they last.

What was fetched stays for the session, and the footer with it. After some pieces of a file it is fetched as a whole.

Errors: ``Overtaken`` if the file was replaced between two ranges, ``MissingFile`` if it is gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import NotFound
from holdfast.objects.store import Store
from holdfast.ontology import names
from holdfast.ontology.arrival import Arrival, Reader, arrived
from holdfast.ontology.errors import Overtaken, SnapshotGone
from holdfast.ontology.filters.ast import And
from holdfast.ontology.footer import of_groups
from holdfast.ontology.index import Entry
from holdfast.ontology.lifespans import ORIGIN
from holdfast.ontology.loaded import Loaded
from holdfast.ontology.prune import may_match
from holdfast.ontology.ranged import Ranged
from holdfast.ontology.shape import Shape
from holdfast.ontology.splice import MARK, Range, metadata_of
from holdfast.sql.duck import MissingFile

FROM_BYTES = 4 << 20
"""Smaller files come whole, in one request."""
SHARE = 2
"""Pieces of more than one part in so many are not worth it,"""
PIECES = 4
"""nor are more of them than this, of one file."""
RANGE_BYTES = 8 << 20
PARALLEL = 4


@dataclass(frozen=True)
class Wanted:
    """Which rows a question needs of the files of a type."""

    shape: Shape
    keys: And
    """What concerns keys alone."""
    rest: And
    oldest: str | None
    """The file that holds nothing newer than another: no row of it hides one."""
    history: bool

    def tests(self, entry: Entry, *, single: bool) -> And:
        """What must hold of a row of a file, or it is not needed."""
        told = entry.stats is not None and bool(entry.stats.columns)
        whole = told and (self.history or (single and entry.path == self.oldest))
        return And((*self.keys.terms, *self.rest.terms)) if whole else self.keys

    def concerns(self, entry: Entry) -> bool:
        """Whether it may pay to look at the footer first."""
        large = entry.stats is not None and entry.stats.size >= FROM_BYTES
        return large and bool(self.tests(entry, single=True).terms)


@dataclass
class _File:
    """One file of which pieces are here."""

    ranged: Ranged
    metadata: Any
    pieces: list[tuple[frozenset[int], Loaded]] = field(default_factory=list)


class Narrower:
    """The pieces of a session's files."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._files: dict[str, _File] = {}

    def forget(self) -> None:
        self._files.clear()

    async def piece(self, arrival: Arrival, reader: Reader, wanted: Wanted) -> Loaded | None:
        """What a question needs of a file; None if it had better come as a whole."""
        key = arrival.entry.path
        try:
            return await self._piece(arrival, reader, wanted)
        except SnapshotGone as error:
            self._files.pop(key, None)
            raise Overtaken(str(error)) from error
        except NotFound as error:
            self._files.pop(key, None)
            raise MissingFile(f"{key}: this data file is missing") from error

    async def _piece(self, arrival: Arrival, reader: Reader, wanted: Wanted) -> Loaded | None:
        file = await self._file(arrival.entry)
        if file.ranged.whole:
            return None
        groups = await blocking(_chosen, file.metadata, arrival.entry, wanted)
        for has, loaded in file.pieces:
            if groups <= has and loaded.heeded >= reader.sight.number:
                return loaded
        sizes = [sum(chunk.end - chunk.start for chunk in group.chunks) for group in file.ranged.footer.groups]
        if len(file.pieces) >= PIECES or sum(sizes[number] for number in groups) * SHARE > sum(sizes):
            return None
        await self._fetch(file.ranged, sorted(groups), arrival.path)
        ((loaded, *_),) = await arrived(wanted.shape, [arrival], reader)
        file.pieces.append((groups, loaded))
        return loaded

    async def _fetch(self, ranged: Ranged, groups: Sequence[int], path: Path) -> None:
        """These row groups of a file, as a file of their own."""
        parts = [
            Range("", low, min(low + RANGE_BYTES, each.end))
            for each in _ranges(ranged, groups)
            for low in range(each.start, each.end, RANGE_BYTES)
        ]
        bodies = await map_bounded(parts, ranged.bytes_of, limit=PARALLEL)
        await blocking(_write, path, ranged, groups, list(zip(parts, bodies, strict=True)))

    async def _file(self, entry: Entry) -> _File:
        file = self._files.get(entry.path)
        if file is None:
            ranged = await Ranged.open(self._store, entry.path, None if entry.stats is None else entry.stats.size)
            file = self._files[entry.path] = _File(ranged, await blocking(metadata_of, ranged.tail))
        return file


def _chosen(metadata: Any, entry: Entry, wanted: Wanted) -> frozenset[int]:
    ends = names.UNTIL in metadata.schema.names and ORIGIN in (metadata.metadata or {})
    tests = wanted.tests(entry, single=ends or (entry.stats is not None and entry.stats.unique))
    return frozenset(
        number for number, stats in enumerate(of_groups(metadata)) if may_match(tests, stats, wanted.shape)
    )


def _ranges(ranged: Ranged, groups: Sequence[int]) -> list[Range]:
    """Row groups that follow each other are one range."""
    found: list[Range] = []
    for number in groups:
        chunks = ranged.footer.groups[number].chunks
        start, end = min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)
        if found and found[-1].end == start:
            found[-1] = Range("", found[-1].start, end)
        else:
            found.append(Range("", start, end))
    return found


def _write(path: Path, ranged: Ranged, groups: Sequence[int], bodies: Sequence[tuple[Range, bytes]]) -> None:
    with path.open("wb") as file:
        file.write(MARK)
        for at, body in bodies:
            file.seek(at.start)
            file.write(body)
        file.seek(max(at.end for at, _ in bodies) if bodies else len(MARK))
        file.write(ranged.footer.keeping(groups))
