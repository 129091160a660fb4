"""Parquet files read by ranges: the footer, then row groups one by one, so that a file of any size can be looked at.

A small file is fetched whole, in one request. Row groups that follow each other are fetched together. A file that is
replaced meanwhile, as a redaction does, is ``SnapshotGone``: what was read of it is of two files.
"""

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology.format.parquet.splice import Footer, Range, excerpt, excerpted, footer_bytes
from holdfast.ontology.types.errors import SnapshotGone

WHOLE_BYTES = 4 << 20
"""Files up to this size are fetched in one piece."""
TAIL_BYTES = 64 << 10
SPAN_BYTES = 16 << 20
"""About so much of a file is fetched at once."""


class Distant:
    """An object of which ranges are read: all of them of one and the same, or ``SnapshotGone``."""

    def __init__(self, store: Store, key: str, size: int, of: str, tail: bytes) -> None:
        self.key = key
        self.size = size
        self.tail = tail
        """The last bytes of the file, which are its footer."""
        self._store = store
        self._of = of

    @classmethod
    async def at(cls, store: Store, key: str, size: int) -> "Distant":
        """One request, unless the size is another by now, or the footer a large one."""
        tail = await store.range(key, max(0, size - TAIL_BYTES), size)
        if tail.size != size:
            return await cls.at(store, key, tail.size)
        found = cls(store, key, size, tail.of, tail.body)
        wanted = footer_bytes(tail.body, key)
        found.tail = tail.body[-wanted:] if wanted <= len(tail.body) else await found.bytes_of(size - wanted, size)
        return found

    async def bytes_of(self, start: int, end: int) -> bytes:
        found = await self._store.range(self.key, start, end)
        if found.of != self._of:
            raise _replaced(self.key)
        if len(found.body) != end - start:
            raise Corrupt(f"{self.key}: it ends before its footer says")
        return found.body


class Ranged:
    """A file of which row groups are read."""

    def __init__(self, key: str, footer: Footer, source: Distant | bytes) -> None:
        self.key = key
        self.footer = footer
        self._source = source

    @classmethod
    async def open(cls, store: Store, key: str, size: int | None = None) -> "Ranged":
        """With the size known, one request."""
        size = (await store.head(key)).size if size is None else size
        source: Distant | bytes
        if size > WHOLE_BYTES:
            source = await Distant.at(store, key, size)
            tail = source.tail
        else:
            found = await store.range(key, 0, size)
            if found.size != size:
                return await cls.open(store, key, found.size)
            source = tail = found.body
        return cls(key, await blocking(Footer.parse, tail, key), source)

    @property
    def columns(self) -> set[str]:
        return {chunk.column.partition(".")[0] for group in self.footer.groups[:1] for chunk in group.chunks}

    async def tables(self, groups: Sequence[int], columns: Sequence[str] | None = None) -> AsyncIterator[pa.Table]:
        """These row groups in their order, each as a table of these columns."""
        together: list[int] = []
        filled = 0
        for number in groups:
            size = sum(len(each) for each in excerpt(self.footer, number, columns)[0])
            if together and (number != together[-1] + 1 or filled + size > SPAN_BYTES):
                for table in await self._fetched(together, columns):
                    yield table
                together, filled = [], 0
            together.append(number)
            filled += size
        for table in await self._fetched(together, columns) if together else ():
            yield table

    async def _fetched(self, groups: Sequence[int], columns: Sequence[str] | None) -> list[pa.Table]:
        ranges: list[Range] = []
        found = [each for number in groups for each in excerpt(self.footer, number, columns)[0]]
        for each in sorted(found, key=lambda one: one.start):
            if ranges and ranges[-1].end == each.start:
                ranges[-1] = Range("", ranges[-1].start, each.end)
            else:
                ranges.append(each)
        bodies = [(each, await self._bytes_of(each)) for each in ranges]
        return await blocking(self._read, groups, columns, bodies)

    async def _bytes_of(self, wanted: Range) -> bytes:
        if isinstance(self._source, bytes):
            return self._source[wanted.start : wanted.end]
        return await self._source.bytes_of(wanted.start, wanted.end)

    def _read(
        self, groups: Sequence[int], columns: Sequence[str] | None, bodies: Sequence[tuple[Range, bytes]]
    ) -> list[pa.Table]:
        found: list[pa.Table] = []
        for number in groups:
            _, chunks = excerpt(self.footer, number, columns)
            try:
                with pq.ParquetFile(pa.BufferReader(excerpted(self.footer, number, chunks, bodies))) as file:
                    found.append(file.read(use_threads=False))
            except (pa.ArrowException, OSError) as error:
                raise Corrupt(f"{self.key}: row group {number} cannot be read ({error})") from error
        return found


def _replaced(key: str) -> SnapshotGone:
    return SnapshotGone(f"{key}: it was replaced while it was read", remedy="resolve the type's files again")
