"""A data file of which some bytes are here: the footer from the beginning, and those columns that statements have read.

It lies in the session's folder, as large as the object is, with every byte at its own place and holes elsewhere. A
statement names the columns that it reads (``byte_ranges.Reading``), and what is missing of them is fetched before it
runs. So DuckDB sees a whole file. Of some row groups alone it is a file of its own, with a footer that names no others.

Errors: ``SnapshotGone`` if the object was replaced since the footer was read, ``NotFound`` if it is gone.
"""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from holdfast.base.aio import blocking, map_bounded
from holdfast.ontology.format.parquet.byte_ranges import Extent, Placed, missing, requests, together
from holdfast.ontology.format.parquet.ranged import Distant
from holdfast.ontology.format.parquet.splice import MARK, keeping

PARALLEL = 4


class Sparse:
    def __init__(
        self, distant: Distant, chunks: Sequence[Sequence[Placed]], groups: Sequence[int], rows: int, path: Path
    ) -> None:
        """``chunks`` of all row groups of the object; ``groups`` are those that the file has, with so many rows."""
        self.key = distant.key
        self._distant = distant
        self._groups, self._rows = groups, rows
        self._every = len(groups) == len(chunks)
        self._chunks = [each for number in groups for each in chunks[number]]
        self._whole = [each.extent for each in self._chunks]
        if self._every:
            self._whole = [Extent(len(MARK), distant.size - len(distant.tail))]
        self._path = path
        self._here: list[Extent] = []
        self._turn = asyncio.Lock()

    @property
    def complete(self) -> bool:
        return not missing(self._whole, self._here)

    async def begin(self) -> None:
        """A file with nothing but a footer."""
        await blocking(self._begin)

    def _begin(self) -> None:
        tail, at = self._distant.tail, self._distant.size - len(self._distant.tail)
        if not self._every:
            tail = keeping(tail, self._groups, self._rows, self.key)
            at = max((each.end for each in self._whole), default=len(MARK))
        with self._path.open("wb") as file:
            file.write(MARK)
            file.seek(at)
            file.write(tail)

    async def fill(self, columns: Collection[str] | None) -> None:
        """Fetch what is not here of these columns; None for all."""
        async with self._turn:
            wanted = self._whole
            if columns is not None:
                wanted = [each.extent for each in self._chunks if each.column in columns]
            parts = requests(wanted, self._here, self._whole)
            await map_bounded(parts, self._fetch, limit=PARALLEL)
            self._here = together([*self._here, *parts])

    async def _fetch(self, part: Extent) -> None:
        body = await self._distant.bytes_of(*part)
        await blocking(self._put, part.start, body)

    def _put(self, at: int, body: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(at)
            file.write(body)
