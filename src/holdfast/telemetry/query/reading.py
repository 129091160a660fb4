"""The state of one answer: batches and chunks read so far, files for DuckDB in a temporary directory, and counts."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.objects.store import Store
from holdfast.sql.duck import Duck, MissingFile
from holdfast.sql.files import LocalFiles
from holdfast.sql.session import Session
from holdfast.telemetry.query.found import Read
from holdfast.telemetry.query.fresh import Batches
from holdfast.telemetry.query.known import Hour, Overtaken, Raw
from holdfast.telemetry.rollup import chunk
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.layout import HOUR_NS, hour_start_ns
from holdfast.telemetry.rollup.manifest import ChunkRef
from holdfast.telemetry.rollup.points import Telemetry

AT_ONCE = 16


class Reading:
    def __init__(self, store: Store, batches: Batches, duck: Duck, files: LocalFiles) -> None:
        self._store = store
        self._batches = batches
        self._files = files
        self._folder = duck.folder
        self.duck = duck
        self.read = Read()

    def lacks(self, hours: Iterable[Hour]) -> None:
        """Note the inputs that could not be read when chunks were made."""
        lost = {each for hour in hours for unit in hour.units for each in unit.unreadable}
        self.read.unreadable = tuple(sorted({*self.read.unreadable, *lost}))

    async def fetch(self, refs: Sequence[ChunkRef]) -> list[Path]:
        """The chunks as files."""
        numbers = range(self.read.chunks, self.read.chunks + len(refs))
        self.read.chunks += len(refs)

        async def one(pair: tuple[int, ChunkRef]) -> Path:
            number, ref = pair
            try:
                path = await self._files.place(ref.key, f"chunk-{number}.parquet", ref.bytes)
            except MissingFile as error:
                raise Overtaken(ref.key) from error
            ref.check(await blocking(path.read_bytes))
            return path

        return await map_bounded(zip(numbers, refs, strict=True), one, limit=AT_ONCE)

    async def telemetry(self, hour: int, raw: Raw) -> Telemetry:
        """The points of these batches in the hour."""
        batches = await self._batches.all(raw.rows)
        self.read.batches += len(raw.rows)
        start_ns = hour_start_ns(hour)
        return await blocking(telemetry_of, batches, start_ns, start_ns + HOUR_NS, raw.taken)

    def finished(self) -> Read:
        """What was read, with the batches that could not be."""
        self.read.unreadable = tuple(sorted({*self.read.unreadable, *self._batches.unreadable}))
        self.read.expired = tuple(sorted(self._batches.expired))
        return self.read

    async def keep(self, table: pa.Table, name: str) -> Path:
        """A table as a file beside those of chunks."""
        path = self._folder / f"{name}.parquet"
        await blocking(lambda: path.write_bytes(chunk.to_parquet(table)))
        return path


@asynccontextmanager
async def reading(store: Store, batches: Batches, memory_limit: str) -> AsyncIterator[Reading]:
    session = await Session.open(store, memory_limit)
    try:
        yield Reading(store, batches, session.duck, session.files)
    finally:
        await session.close()
