"""What runs inside a task of Spark: an asynchronous reader on an event loop and a store of its own.

Functions for tasks are small and picklable. The store's spec, with the settings and the keys of the driver, travels
inside them; the work travels as rows.
"""

import asyncio
import pickle
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.objects.client import Client
from holdfast.objects.open import check_exists, open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.engine.protocol import Kernel
from holdfast.pipeline.engine.staged import Part, Target, read_part, write_parts
from holdfast.pipeline.errors import in_one_line
from holdfast.pipeline.tables.table import Table, Wanted

PARTS = pa.schema([("key", pa.string()), ("rows", pa.int64()), ("bytes", pa.int64())])

Work = Callable[[Store, AsyncIterator[pa.RecordBatch]], AsyncIterator[pa.RecordBatch]]


def read_in_task(spec: StoreSpec, read: Callable[[Client], AsyncIterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Batches one after the other, on a loop and a store that live until they are read."""
    with in_one_line(task=True), asyncio.Runner() as runner:
        store = runner.run(_opened(spec))
        found = read(store)
        try:
            while (batch := runner.run(_following(found))) is not None:
                yield batch
        finally:
            runner.run(_closed(store, found))


async def _opened(spec: StoreSpec) -> Client:
    check_exists(spec, "every executor needs the directory that the driver has: use a shared filesystem, or a bucket")
    return await open_store(spec)


async def _following(found: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    return await anext(found, None)


async def _closed(store: Client, found: Any) -> None:
    try:
        await found.aclose()
    finally:
        await store.close()


@dataclass(frozen=True)
class InTask:
    """A function for ``mapInArrow``: work on the rows of one partition, with the store open."""

    spec: StoreSpec
    work: Work

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next(batches, None)
        if first is None:
            return  # a partition without rows opens no store
        yield from read_in_task(self.spec, lambda store: self.work(store, _given(first, batches)))


async def _given(first: pa.RecordBatch, others: Iterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    yield first
    for batch in others:
        yield batch


@dataclass(frozen=True)
class Scan:
    """Read parts of a data source, and write their rows."""

    table: Table
    wanted: Wanted
    target: Target

    async def __call__(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        async def rows() -> AsyncIterator[pa.RecordBatch]:
            async for batch in given:
                for payload in batch.column("payload").to_pylist():
                    part = pickle.loads(payload)  # noqa: S301  # the driver of this job has made it
                    async for found in self.table.read(store, part, self.wanted):
                        yield found

        yield _of_parts(await write_parts(store, self.target, rows()))


@dataclass(frozen=True)
class Map:
    """Run rows through a kernel, and write the rows that it returns."""

    kernel: Kernel
    target: Target

    async def __call__(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
        yield _of_parts(await write_parts(store, self.target, self.kernel.rows(store, given)))


async def read_parts(store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    """The rows of the parts whose keys are given."""
    async for batch in given:
        for key in batch.column("key").to_pylist():
            async for rows in read_part(store, key):
                yield rows


def _of_parts(parts: Sequence[Part]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": p.key, "rows": p.rows, "bytes": p.bytes} for p in parts], PARTS)
