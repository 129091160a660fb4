"""Staged tables: the rows of one step of a job, as Parquet in the store, so that every later step sees the same rows.

    meta/pipeline/staged/{run}/{table}/{unique}.parquet     a part: rows that one task has written
    meta/pipeline/staged/{run}/{table}.json                 the parts that make the table; created once

A task that runs twice writes two parts, and only the one that it returned counts. The first driver that creates
``{table}.json`` decides which rows the table has; another driver of the same run reads that one. So a snapshot is taken
once per run, and a run that continues after its driver was killed continues with the same rows.

Nothing outside the run refers to staged tables. The run removes them when it ends; ``sweep`` removes those that a run
left behind and that nothing was added to for a day, by the store's clock.

Errors: ``Corrupt`` for a table's document that cannot be read; ``NotFound`` if parts were removed too early.
"""

from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from io import BytesIO

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base import codec
from holdfast.base.aio import blocking
from holdfast.base.codec import MALFORMED
from holdfast.base.errors import Corrupt
from holdfast.objects.client import ambient_of
from holdfast.objects.store import CREATE, Lost, Object, Store

STAGED = "meta/pipeline/staged/"
FORMAT = "holdfast.pipeline.staged"
PART_BYTES = 32 * 1024 * 1024
"""A task begins another part at this size, because a part is held in memory until it is written."""
GROUP_ROWS = 16_384
DEAD_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Part:
    key: str
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Staged:
    name: str
    schema: pa.Schema
    parts: tuple[Part, ...]
    """None for a table without rows."""
    declared: bool = False
    """Declared only: it has no rows, and stands for a large table in plans that are shown."""

    @property
    def empty(self) -> bool:
        return not self.parts and not self.declared

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


@dataclass(frozen=True)
class Target:
    """A table that is being staged."""

    run_id: str
    name: str
    schema: pa.Schema

    @property
    def key(self) -> str:
        return f"{run_folder(self.run_id)}{self.name}.json"

    @property
    def folder(self) -> str:
        return f"{run_folder(self.run_id)}{self.name}/"


def run_folder(run_id: str) -> str:
    return f"{STAGED}{run_id}/"


async def find_staged(store: Store, target: Target) -> Staged | None:
    found = await store.find(target.key)
    return None if found is None else _read(found, target)


async def publish(store: Store, target: Target, parts: list[Part]) -> Staged:
    """Publish these parts as the table; returns the one that another driver of the run has published first, if any."""
    document = {"format": FORMAT, "version": 1, "name": target.name, "parts": [asdict(part) for part in parts]}
    outcome = await store.put(target.key, codec.encode(document), CREATE)
    if isinstance(outcome, Lost):
        return _read(await store.get(target.key), target)
    return Staged(target.name, target.schema, tuple(parts))


def _read(found: Object, target: Target) -> Staged:
    document = codec.decode(found.body, key=found.key)
    codec.expect(document, format_name=FORMAT, newest=1, key=found.key)
    try:
        return Staged(target.name, target.schema, tuple(Part(**part) for part in document["parts"]))
    except MALFORMED as error:
        raise Corrupt(f"{found.key}: not a staged table ({error})") from error


async def write_parts(store: Store, target: Target, batches: AsyncIterator[pa.RecordBatch]) -> list[Part]:
    """Write rows as parts of limited size. Without rows there is no part."""
    ids = ambient_of(store).ids
    parts: list[Part] = []
    waiting: list[pa.RecordBatch] = []
    writing: _Writing | None = None

    async def put(part: _Writing) -> None:
        key = f"{target.folder}{ids.unique()}.parquet"
        body = await blocking(part.finish)
        await store.put(key, body, CREATE)
        parts.append(Part(key, part.rows, len(body)))

    async for batch in batches:
        if not batch.num_rows:
            continue
        writing = writing if writing is not None else _Writing(target.schema)
        waiting.append(batch)
        if sum(each.num_rows for each in waiting) >= GROUP_ROWS:
            await blocking(writing.add, waiting)
            waiting = []
            if writing.size >= PART_BYTES:
                await put(writing)
                writing = None
    if writing is not None:
        await blocking(writing.add, waiting)
        await put(writing)
    return parts


class _Writing:
    """One Parquet file in memory. Blocking."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._sink = BytesIO()
        self._writer = pq.ParquetWriter(self._sink, schema, compression="zstd")
        self.rows = 0

    @property
    def size(self) -> int:
        return self._sink.tell()

    def add(self, batches: list[pa.RecordBatch]) -> None:
        if batches:
            table = pa.Table.from_batches(batches, self._schema)
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
            self.rows += table.num_rows
            del table
            batches.clear()
            # Arrow keeps freed memory for each thread, and every row group is written by another one.
            pa.default_memory_pool().release_unused()

    def finish(self) -> bytes:
        self._writer.close()
        pa.default_memory_pool().release_unused()
        return self._sink.getvalue()


async def read_part(store: Store, key: str) -> AsyncIterator[pa.RecordBatch]:
    """The rows of one part, in batches."""
    found = await store.get(key)
    batches = await blocking(_opened, found.body)
    while (batch := await blocking(next, batches, None)) is not None:
        yield batch


def _opened(body: bytes) -> Iterator[pa.RecordBatch]:
    return iter(pq.ParquetFile(BytesIO(body)).iter_batches(GROUP_ROWS))


async def remove(store: Store, run_id: str) -> None:
    """Remove what a run has staged."""
    await store.delete_many([key async for key in store.keys(run_folder(run_id))])


async def sweep(store: Store, now_ns: int) -> int:
    """Remove what dead runs have left; returns the number of runs. One LIST if there is nothing."""
    folders = [folder async for page in store.list(STAGED, delimiter=True) for folder in page.folders]
    removed = 0
    for folder in folders:
        entries = [entry async for page in store.list(folder) for entry in page.entries]
        if all(entry.modified_ns < now_ns - DEAD_NS for entry in entries):
            await store.delete_many([entry.key for entry in entries])
            removed += 1
    return removed
