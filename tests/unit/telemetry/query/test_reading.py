"""A chunk is read only as it was written; an error of DuckDB is reported as that of the chunk which caused it."""

import time
import zlib

import pytest

from holdfast import pipeline
from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import OVERWRITE
from holdfast.platform.open import open_platform
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.fresh import Batches, Memory
from holdfast.telemetry.query.reading import reading
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import ChunkRef, Table
from tests.unit.pipeline.field import HOUR, START, Field


async def test_a_chunk_that_duckdb_alone_cannot_read_is_named() -> None:
    async with open_platform("memory:") as hf:
        await Field(hf.store).accept("a", "0", {0: Gauge("g", 1.0, START)}, at_ns=time.time_ns())
        await pipeline.run(hf.store)
        [key] = [key async for key in hf.store.keys(layout.rollup_folder(HOUR, START // HOUR))]
        ref = ChunkRef(Table.ROLLUP, key, 1, len((await hf.store.get(key)).body), 1, "g", HOUR)
        async with reading(hf.store, Batches(hf.store, Limits(), Memory()), "64MB") as workshop:
            [path] = await workshop.fetch([ref])
            other = Invalid("something else")
            assert await workshop.blame(other) is other
            blamed = await workshop.blame(Invalid(f'Failed to read file "{path}"'))
        assert isinstance(blamed, Corrupt)
        assert str(blamed).startswith(key)


async def test_no_bit_of_a_chunk_may_flip_unseen() -> None:
    async with open_platform("memory:") as hf:
        points = {number: Gauge("g", number / 7, START + number) for number in range(50)}
        await Field(hf.store).accept("a", "0", points, at_ns=time.time_ns())
        await pipeline.run(hf.store)
        folder = layout.rollup_folder(HOUR, START // HOUR)
        [key] = [key async for key in hf.store.keys(folder)]
        written = await hf.store.get(key)
        since, until = iso(START), iso(START + HOUR)
        answer = await hf.metrics().query("g", since=since, until=until, step="1h")
        assert answer.read.chunks == 1
        flipped = bytearray(written.body)
        for place in range(8 * len(written.body)):
            flipped[:] = written.body
            flipped[place // 8] ^= 1 << place % 8
            with pytest.raises(Corrupt, match="bytes are not those"):
                ChunkRef(Table.ROLLUP, key, 1, len(flipped), 1, crc32=zlib.crc32(written.body)).check(bytes(flipped))
        await hf.store.put(key, bytes(flipped), OVERWRITE)
        with pytest.raises(Corrupt, match="bytes are not those") as caught:
            await hf.metrics().query("g", since=since, until=until, step="1h")
        assert str(caught.value).startswith(key)
