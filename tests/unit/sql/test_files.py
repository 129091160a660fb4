"""Objects as local files: small ones whole, large ones in ranges, read again if they are replaced meanwhile."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Unavailable
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Part
from holdfast.sql.duck import MissingFile
from holdfast.sql.files import RANGE_BYTES, WHOLE_BYTES, LocalFiles
from tests.unit.ontology.desk import Desk


def parquet(numbers: int) -> bytes:
    sink = io.BytesIO()
    noise = pa.array(np.random.default_rng(3).integers(0, 2**62, numbers))
    pq.write_table(pa.table({"n": noise}), sink, compression="none", use_dictionary=False)
    return sink.getvalue()


async def test_large_objects_are_fetched_in_ranges_without_a_request_for_their_size(tmp_path: Path) -> None:
    desk = Desk()
    body = parquet(1_200_000)
    assert len(body) > WHOLE_BYTES
    await desk.bare.put("a", body, OVERWRITE)
    files = LocalFiles(desk.store, tmp_path)
    desk.spent()
    assert (await files.place("a", "1.parquet", len(body))).read_bytes() == body
    assert desk.spent() == {"range": -(-len(body) // RANGE_BYTES)}
    for noted in (len(body) - 9, len(body) + 9, WHOLE_BYTES + 1, 2 * len(body)):
        assert (await files.place("a", "2.parquet", noted)).read_bytes() == body, "the expected size was wrong"
        assert desk.spent()["range"] >= 2


async def test_an_object_that_is_replaced_between_two_ranges_is_read_again(tmp_path: Path) -> None:
    """Also by an object of the same size, which its bytes alone do not reveal."""
    body = parquet(1_200_000)
    for other in (body[:-20] + bytes(reversed(body[-20:])), body[: WHOLE_BYTES // 2], body + body):

        class Replaced(Layer):
            left = 1

            async def range(self, key: str, start: int, end: int, other: bytes = other) -> Part:
                found = await super().range(key, start, end)
                if self.left:
                    self.left -= 1
                    await self.inner.put(key, other)
                return found

        desk = Desk()
        await desk.bare.put("a", body, OVERWRITE)
        files = LocalFiles(Replaced(desk.store), tmp_path)
        assert (await files.place("a", "1.parquet", len(body))).read_bytes() == other

    class Restless(Layer):
        count = 0

        async def range(self, key: str, start: int, end: int) -> Part:
            self.count += 1
            await self.inner.put(key, body + bytes([self.count]))
            return await super().range(key, start, end)

    desk = Desk()
    with pytest.raises(Unavailable, match="a: it was replaced 4 times"):
        await LocalFiles(Restless(desk.store), tmp_path).place("a", "2.parquet", len(body))


async def test_small_objects_are_fetched_whole_and_missing_ones_are_named(tmp_path: Path) -> None:
    desk = Desk()
    body = parquet(10)
    await desk.bare.put("a", body, OVERWRITE)
    files = LocalFiles(desk.store, tmp_path)
    desk.spent()
    for size in (None, len(body)):
        assert (await files.place("a", "1.parquet", size)).read_bytes() == body
        assert desk.spent() == {"get": 1}
    for size in (None, WHOLE_BYTES + 1):
        with pytest.raises(MissingFile, match="none: this data file is missing"):
            await files.place("none", "3.parquet", size)
