"""Parquet objects read by byte ranges: the footer, then the wanted columns and row groups.

Ranges are written at their own offsets into a local sparse file with the length of the object. pyarrow and DuckDB read
that file by its path. Of its chunks (one column in one row group each) they read only those that they are asked for, so
``fetch`` these first. No library ever waits for the network.

Chunks that are adjacent, or nearly so, are one range, because a request costs more than some bytes. If there would be
many ranges, those closest together become one; if most of the missing bytes are wanted, all of them are fetched.

All ranges are of one version of the object: ``SnapshotGone`` if it was replaced in between. ``NotFound`` if it is gone,
``Corrupt`` for bytes that are not a Parquet file.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology.types.errors import SnapshotGone

WHOLE_BYTES = 4 << 20
"""Files up to this size are fetched by one request."""
TAIL_BYTES = 64 << 10
"""Bytes that are first fetched from the end of a larger file. A longer footer takes a second request."""
GAP_BYTES = 256 << 10
"""Ranges with a gap up to this size are one request."""
GAP_SHARE = 1.0
"""Longer gaps are fetched, too, the shortest first, up to so many bytes per wanted byte."""
RANGES = 4
"""The maximum number of ranges of one ``fetch``, before long ones are divided."""
RANGE_BYTES = 24 << 20
SHARE = 0.6
"""If at least this share of the missing bytes is wanted, all of them are fetched."""
SPAN_BYTES = 16 << 20
"""The approximate number of bytes that ``tables`` fetches at once."""
PARALLEL = 4
_MAGIC = b"PAR1"


class Extent(NamedTuple):
    """Bytes of a file from ``start`` to before ``end``."""

    start: int
    end: int


class Chunk(NamedTuple):
    """The values of a column in a row group. ``column`` is the name of the top-level column."""

    column: str
    extent: Extent


class RemoteParquet:
    """An object of the store, its footer, and a local file with the fetched bytes."""

    def __init__(self, store: Store, key: str, path: Path, size: int, version: str, body: bytes, metadata: Any) -> None:
        self.key, self.path, self.size = key, path, size
        self.metadata = metadata
        self.schema: pa.Schema = metadata.schema.to_arrow_schema()
        self.chunks = chunks_of(metadata)
        """The chunks of each row group."""
        self._store, self._version = store, version
        self._here = [Extent(size - len(body), size)]
        self._data = [Extent(len(_MAGIC), size - len(body))] if len(body) < size else []
        """Everything except the footer."""
        self._lock = asyncio.Lock()

    @classmethod
    async def open(cls, store: Store, key: str, path: Path, size: int | None = None) -> Self:
        """Fetch the footer into a new file at ``path``; by one request if the size is known."""
        size = (await store.head(key)).size if size is None else size
        part = await store.range(key, 0 if size <= WHOLE_BYTES else size - TAIL_BYTES, size)
        if part.size != size:  # replaced since the size was noted
            return await cls.open(store, key, path, part.size)
        body = part.body
        footer = int.from_bytes(body[-8:-4], "little") + 8
        if len(body) < footer <= size:
            longer = await store.range(key, size - footer, size)
            if longer.of != part.of:
                return await cls.open(store, key, path, longer.size)
            body = longer.body
        metadata = await blocking(_begun, key, path, size, body)
        return cls(store, key, path, size, part.of, body, metadata)

    @property
    def complete(self) -> bool:
        """Whether all bytes were fetched."""
        return not missing(self._data, self._here)

    def group_bytes(self, columns: Collection[str] | None = None) -> list[int]:
        """The bytes of each row group, of some columns or of all."""
        return [
            sum(each.extent.end - each.extent.start for each in group if columns is None or each.column in columns)
            for group in self.chunks
        ]

    async def fetch(self, columns: Collection[str] | None = None, groups: Iterable[int] | None = None) -> None:
        """Fetch the missing bytes of these columns and row groups; None for all of them."""
        async with self._lock:
            if columns is None and groups is None:
                wanted = self._data
            else:
                some = (self.chunks[number] for number in (range(len(self.chunks)) if groups is None else groups))
                wanted = [each.extent for group in some for each in group if columns is None or each.column in columns]
            parts = requests(wanted, self._here, self._data)
            await map_bounded(parts, self._fetch, limit=PARALLEL)
            self._here = combined([*self._here, *parts])

    async def _fetch(self, wanted: Extent) -> None:
        part = await self._store.range(self.key, *wanted)
        if part.of != self._version:
            raise SnapshotGone(
                f"{self.key}: it was replaced while it was read", remedy="resolve the type's files again"
            )
        await blocking(self._put, wanted.start, part.body)

    def _put(self, at: int, body: bytes) -> None:
        with self.path.open("r+b") as file:
            file.seek(at)
            file.write(body)

    # --- fetched row groups ---

    def read(self, groups: Sequence[int], columns: Sequence[str] | None = None) -> pa.Table:
        """Row groups that were fetched, in this order. Blocking."""
        try:
            with pq.ParquetFile(self.path, metadata=self.metadata) as file:
                return file.read_row_groups(list(groups), columns=columns, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"{self.key}: it cannot be read ({error})") from error

    async def tables(self, groups: Sequence[int], columns: Sequence[str] | None = None) -> AsyncIterator[pa.Table]:
        """These row groups in their order, each as a table. Several are fetched at a time."""
        sizes = self.group_bytes(columns)
        span: list[int] = []
        for number in groups:
            if span and sum(sizes[each] for each in span) + sizes[number] > SPAN_BYTES:
                async for table in self._span(span, columns):
                    yield table
                span = []
            span.append(number)
        async for table in self._span(span, columns):
            yield table

    async def _span(self, groups: Sequence[int], columns: Sequence[str] | None) -> AsyncIterator[pa.Table]:
        await self.fetch(columns, groups)
        for number in groups:
            yield await blocking(self.read, [number], columns)


@asynccontextmanager
async def remote_parquet(store: Store, key: str, size: int | None = None) -> AsyncIterator[RemoteParquet]:
    """A remote Parquet file with a temporary local file."""
    with NamedTemporaryFile(prefix=".holdfast-") as file:
        yield await RemoteParquet.open(store, key, Path(file.name), size)


def _begun(key: str, path: Path, size: int, body: bytes) -> Any:
    """Begin the local file, and parse the footer."""
    with path.open("wb") as file:
        file.write(_MAGIC)
        file.truncate(size)
        file.seek(size - len(body))
        file.write(body)
    try:
        metadata = pq.read_metadata(path)
        extents = [each.extent for group in chunks_of(metadata) for each in group]
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{key}: not a Parquet file ({error})") from error
    if any(not 0 < start <= end <= size for start, end in extents):
        raise Corrupt(f"{key}: its footer names bytes that it does not have")
    return metadata


# --- the ranges to request (pure) ---


def chunks_of(metadata: Any) -> list[list[Chunk]]:
    """The chunks of each row group, from pyarrow's footer. A column without values may have none."""
    names = [each.name for each in metadata.schema.to_arrow_schema() for _ in range(_leaves(each.type))]
    found: list[list[Chunk]] = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        found.append([])
        for place, name in enumerate(names):
            column = group.column(place)
            # An offset is 0 or missing if there is no such page.
            begin = min(filter(None, (column.data_page_offset, column.dictionary_page_offset)), default=0)
            if begin and column.total_compressed_size:
                found[-1].append(Chunk(name, Extent(begin, begin + column.total_compressed_size)))
    return found


def chunks_only(metadata: Any) -> bool:
    """Whether a file has no page indexes and Bloom filters. They are outside of its chunks, and readers may use them
    unasked."""
    columns = (
        group.column(number)
        for group in map(metadata.row_group, range(metadata.num_row_groups))
        for number in range(group.num_columns)
    )
    return not any(
        column.has_column_index or column.has_offset_index or getattr(column, "bloom_filter_offset", None) is not None
        for column in columns
    )


def _leaves(kind: Any) -> int:
    """The number of chunks of a column of this type. Their paths do not show it, because names may contain dots."""
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) or 1


def combined(extents: Iterable[Extent], gap: int = 0, most: int | None = None) -> list[Extent]:
    """Extents in order. Those with a gap up to ``gap`` are joined, then the closest ones until ``most`` remain."""
    found: list[Extent] = []
    for each in sorted(extents):
        if found and each.start - found[-1].end <= gap:
            found[-1] = Extent(found[-1].start, max(found[-1].end, each.end))
        else:
            found.append(each)
    if most is None or len(found) <= most:
        return found
    gaps = sorted(after.start - before.end for before, after in pairwise(found))
    return combined(found, gaps[len(found) - most - 1])


def missing(wanted: Sequence[Extent], here: Sequence[Extent]) -> list[Extent]:
    """The missing parts of the wanted ranges, in order. ``here`` is in order, and its ranges do not touch."""
    found: list[Extent] = []
    for start, end in combined(wanted):
        at = start
        for has in here:
            if at < has.start < end:
                found.append(Extent(at, has.start))
            if has.start < end and at < has.end:
                at = max(at, has.end)
        if at < end:
            found.append(Extent(at, end))
    return found


def requests(wanted: Sequence[Extent], here: Sequence[Extent], whole: Sequence[Extent]) -> list[Extent]:
    """The ranges to fetch so that all wanted bytes are here. ``whole`` is everything that could be wanted."""
    lacking, rest = missing(wanted, here), combined(missing(whole, here), GAP_BYTES)
    size = sum(end - start for start, end in lacking)
    if size >= SHARE * sum(end - start for start, end in rest):
        some = rest if lacking else []
    else:
        gaps = sorted(after.start - before.end for before, after in pairwise(lacking))
        filled = [gap for gap, total in zip(gaps, accumulate(gaps), strict=True) if total <= GAP_SHARE * size]
        some = combined(lacking, max([GAP_BYTES, *filled]), RANGES)
    return [Extent(low, min(low + RANGE_BYTES, end)) for start, end in some for low in range(start, end, RANGE_BYTES)]
