"""Parquet objects by ranges: what is wanted is fetched, in few requests, and of one version alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Corrupt
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import Part
from holdfast.ontology.format.data import remote_parquet
from holdfast.ontology.format.data.remote_parquet import (
    TAIL_BYTES,
    WHOLE_BYTES,
    Extent,
    RemoteParquet,
    combined,
    missing,
    requests,
)
from holdfast.ontology.types.errors import SnapshotGone
from tests.soak import examples

MANY = examples(60)
EXTENT = st.tuples(st.integers(0, 400), st.integers(1, 60)).map(lambda at: Extent(at[0], at[0] + at[1]))
EXTENTS = st.lists(EXTENT, max_size=12)
WHOLE = [Extent(0, 460)]


@contextmanager
def small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote_parquet, "GAP_BYTES", 3)
        patch.setattr(remote_parquet, "RANGE_BYTES", 50)
        yield


def places(extents: list[Extent]) -> set[int]:
    return {at for start, end in extents for at in range(start, end)}


@MANY
@given(wanted=EXTENTS, here=EXTENTS)
@small()
def test_requests_bring_all_that_is_wanted_and_never_twice_what_is_missing(
    wanted: list[Extent], here: list[Extent]
) -> None:
    has = combined(here)
    found = requests(wanted, has, WHOLE)
    assert places(found) | places(here) >= places(wanted)
    assert sum(end - start for start, end in found) == len(places(found)), "no byte comes twice"
    assert all(0 < end - start <= 50 for start, end in found)
    lacking = missing(wanted, has)
    assert bool(found) == bool(lacking), "nothing is fetched where nothing is missing"
    rest = places(missing(WHOLE, has))
    if len(places(lacking)) < remote_parquet.SHARE * len(places(combined(missing(WHOLE, has), 3))):
        assert len(combined(found)) <= min(4, len(combined(lacking, 3))), "some of it, in few ranges"
    elif lacking:
        assert places(found) >= rest, "most of it: then all"


# --- of a store ---

ROWS = 40_000


def noise(shift: int = 0) -> pa.Table:
    """It does not compress."""
    texts = [f"{(each + shift) * 2654435761 % 2**32:08x}" * 16 for each in range(ROWS)]
    return pa.table({"key": texts, "number": range(ROWS), "tags": [["a", str(each % 3)] for each in range(ROWS)]})


def parquet(table: pa.Table, group_rows: int = 5_000) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=group_rows, use_dictionary=False, compression="none")
    return bytes(sink.getvalue().to_pybytes())


class Counting(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.ranges: list[int] = []
        """How many bytes each request brought."""

    async def range(self, key: str, start: int, end: int) -> Part:
        part = await super().range(key, start, end)
        self.ranges.append(len(part.body))
        return part


async def test_columns_of_row_groups_are_fetched_once_and_read_from_the_local_file(tmp_path: Path) -> None:
    store, table = Counting(), noise()
    body = parquet(table)
    assert len(body) > WHOLE_BYTES
    await store.put("file", body)
    file = await RemoteParquet.open(store, "file", tmp_path / "here", len(body))
    assert store.ranges == [TAIL_BYTES]
    assert file.schema.names == ["key", "number", "tags"]
    await file.fetch(["number"], [1, 2])
    assert len(store.ranges) == 3, "one range in each row group"
    assert file.read([1, 2], ["number"]).column("number").to_pylist() == list(range(5_000, 15_000))
    await file.fetch(["number"], [2])
    assert len(store.ranges) == 3
    assert (tmp_path / "here").read_bytes() != body
    await file.fetch()
    assert file.complete
    assert (tmp_path / "here").read_bytes() == body
    assert sum(store.ranges) < len(body) + 2 * TAIL_BYTES


@pytest.mark.parametrize("known", [True, False], ids=["size known", "size of before"])
async def test_a_file_that_is_replaced_while_it_is_read_is_not_taken_for_one(tmp_path: Path, known: bool) -> None:
    store, before, after = MemoryStore(), parquet(noise()), parquet(noise(1))
    await store.put("file", before)
    file = await RemoteParquet.open(store, "file", tmp_path / "here", len(before) - (0 if known else 1))
    await store.put("file", after)
    with pytest.raises(SnapshotGone, match="it was replaced while it was read"):
        await file.fetch(["number"])


@pytest.mark.parametrize("body", [b"", b"PAR1", b"no footer", b"\x00" * 40, b"x" * 8 + b"\xff\x00\x00\x00PAR1"])
async def test_what_is_no_parquet_file_is_refused(body: bytes, tmp_path: Path) -> None:
    store = MemoryStore()
    await store.put("file", body)
    with pytest.raises(Corrupt, match="not a Parquet file"):
        await RemoteParquet.open(store, "file", tmp_path / "here", len(body))


async def test_a_footer_longer_than_the_first_request(tmp_path: Path) -> None:
    store = Counting()
    wide = pa.table({f"column {number}": [1.5] * 50 for number in range(300)})
    body = parquet(wide.append_column("key", pa.array(["x" * 100_000] * 50)), 2)
    await store.put("file", body)
    file = await RemoteParquet.open(store, "file", tmp_path / "here", len(body))
    assert len(store.ranges) == 2
    assert len(file.chunks) == 25
    assert store.ranges[1] > TAIL_BYTES
