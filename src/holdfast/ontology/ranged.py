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
from holdfast.ontology.errors import SnapshotGone
from holdfast.ontology.splice import Footer, Range, excerpt, excerpted, footer_bytes

WHOLE_BYTES = 4 << 20
"""Files up to this size are fetched in one piece."""
TAIL_BYTES = 64 << 10
SPAN_BYTES = 16 << 20
"""About so much of a file is fetched at once."""


class Ranged:
    """A file of which parts are read."""

    def __init__(self, store: Store, key: str, footer: Footer, of: str, body: bytes | None, tail: bytes) -> None:
        self.key = key
        self.footer = footer
        self.tail = tail
        """The last bytes of the file, which hold the footer."""
        self._store = store
        self._of = of
        self._body = body

    @classmethod
    async def open(cls, store: Store, key: str, size: int | None = None) -> "Ranged":
        """With the size known, one request."""
        size = (await store.head(key)).size if size is None else size
        first = size - TAIL_BYTES if size > WHOLE_BYTES else 0
        tail = await store.part(key, first, size)
        if tail.size != size:
            return await cls.open(store, key, tail.size)
        if (wanted := footer_bytes(tail.body, key)) > len(tail.body):
            found = await store.part(key, size - wanted, size)
            if found.of != tail.of:
                raise _replaced(key)
            tail = found
        footer = await blocking(Footer.parse, tail.body, key)
        return cls(store, key, footer, tail.of, tail.body if first == 0 else None, tail.body[-wanted:])

    @property
    def whole(self) -> bool:
        """It was fetched in one piece."""
        return self._body is not None

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
        for number in groups:
            for each in excerpt(self.footer, number, columns)[0]:
                if ranges and ranges[-1].end == each.start:
                    ranges[-1] = Range("", ranges[-1].start, each.end)
                else:
                    ranges.append(each)
        bodies = [(each, await self.bytes_of(each)) for each in ranges]
        return await blocking(self._read, groups, columns, bodies)

    async def bytes_of(self, wanted: Range) -> bytes:
        if self._body is not None:
            return self._body[wanted.start : wanted.end]
        found = await self._store.part(self.key, wanted.start, wanted.end)
        if found.of != self._of:
            raise _replaced(self.key)
        if len(found.body) != len(wanted):
            raise Corrupt(f"{self.key}: it ends before its footer says")
        return found.body

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
