"""The state of one answer: batches and chunks read so far, files for DuckDB in a temporary directory, and counts."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible
from holdfast.objects.store import Store
from holdfast.sql.duck import Duck, MissingFile
from holdfast.sql.files import LocalFiles
from holdfast.sql.session import Session
from holdfast.telemetry.query.found import Read
from holdfast.telemetry.query.fresh import Batches
from holdfast.telemetry.query.known import Hour, Overtaken, Raw
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.extract import telemetry_of
from holdfast.telemetry.rollup.layout import HOUR_NS, hour_start_ns
from holdfast.telemetry.rollup.manifest import MAKE_ANEW, ChunkRef, Table
from holdfast.telemetry.rollup.points import Telemetry

AT_ONCE = 16


class Reading:
    def __init__(self, store: Store, batches: Batches, duck: Duck, files: LocalFiles) -> None:
        self._store = store
        self._batches = batches
        self._files = files
        self._folder = duck.folder
        self._refs: dict[Path, ChunkRef] = {}
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
            self._refs[path] = ref
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

    async def blame(self, error: HoldfastError) -> HoldfastError:
        """The error that names the chunk which cannot be read, if it is one; else the same."""
        for path, ref in self._refs.items():
            body = await blocking(path.read_bytes)
            try:
                await blocking(_decode, ref, body)
            except (Corrupt, Incompatible) as reason:
                return Corrupt(f"{ref.key}: the chunk is not what was written ({reason})", remedy=MAKE_ANEW)
        for path, ref in self._refs.items():  # Arrow takes what DuckDB does not
            if path.name in str(error):
                return Corrupt(f"{ref.key}: the chunk is not what was written", remedy=MAKE_ANEW)
        return error


def _decode(ref: ChunkRef, body: bytes) -> None:
    """Errors: those of a chunk that is none."""
    if ref.table is Table.ROLLUP:
        chunk.decode(body, key=ref.key)
    else:
        index.decode(ref.table, body, key=ref.key)


@asynccontextmanager
async def reading(store: Store, batches: Batches, memory_limit: str) -> AsyncIterator[Reading]:
    session = await Session.open(store, memory_limit)
    try:
        yield Reading(store, batches, session.duck, session.files)
    finally:
        await session.close()
