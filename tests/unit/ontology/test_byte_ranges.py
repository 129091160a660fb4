"""Which ranges of a file are fetched: all that is wanted, in few requests, and not much else."""

from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.ontology.format.parquet import byte_ranges
from holdfast.ontology.format.parquet.byte_ranges import (
    Extent,
    Reading,
    chunks_of,
    missing,
    more_than_chunks,
    readings,
    requests,
    together,
)

MANY = settings(max_examples=300, deadline=None)
EXTENT = st.tuples(st.integers(0, 400), st.integers(1, 60)).map(lambda at: Extent(at[0], at[0] + at[1]))
EXTENTS = st.lists(EXTENT, max_size=12)
WHOLE = [Extent(0, 460)]


@pytest.fixture(autouse=True, scope="module")
def _small() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_ranges, "GAP_BYTES", 3)
        patch.setattr(byte_ranges, "RANGE_BYTES", 50)
        yield


def places(extents: list[Extent]) -> set[int]:
    return {at for start, end in extents for at in range(start, end)}


@MANY
@given(extents=EXTENTS, gap=st.integers(0, 20), most=st.none() | st.integers(1, 5))
def test_what_is_put_together_has_all_of_it_in_order(extents: list[Extent], gap: int, most: int | None) -> None:
    found = together(extents, gap, most)
    assert places(found) >= places(extents)
    assert all(before.end < after.start for before, after in pairwise(found))
    assert most is None or len(found) <= most
    if most is None:
        between = places(found) - places(extents)
        assert all(after.start - before.end > gap for before, after in pairwise(found))
        assert len(between) <= gap * max(0, len(extents) - 1)


@MANY
@given(wanted=EXTENTS, here=EXTENTS)
def test_what_is_missing_is_what_is_wanted_and_not_here(wanted: list[Extent], here: list[Extent]) -> None:
    found = missing(wanted, together(here))
    assert places(found) == places(wanted) - places(here)
    assert found == sorted(found)


@MANY
@given(wanted=EXTENTS, here=EXTENTS)
def test_requests_bring_all_that_is_wanted_and_never_twice_what_is_missing(
    wanted: list[Extent], here: list[Extent]
) -> None:
    has = together(here)
    found = requests(wanted, has, WHOLE)
    assert places(found) | places(here) >= places(wanted)
    assert sum(end - start for start, end in found) == len(places(found)), "no byte comes twice"
    assert all(0 < end - start <= 50 for start, end in found)
    lacking = missing(wanted, has)
    assert bool(found) == bool(lacking), "nothing is fetched where nothing is missing"
    rest = places(missing(WHOLE, has))
    least = together(lacking, 3, 4)
    if len(places(least)) < byte_ranges.SHARE * len(places(together(missing(WHOLE, has), 3))):
        assert together(found) == least, "some of it, in few ranges"
    elif lacking:
        assert places(found) >= rest, "most of it: then all"


def test_a_zone_of_many_row_groups_is_one_range_and_single_columns_of_them_are_few() -> None:
    apart = [Extent(number * 20, number * 20 + 10) for number in range(20)]
    assert len(requests(apart, [], [Extent(0, 4000)])) == 8, "390 bytes in one range, which is divided"
    few = [Extent(0, 10), Extent(100, 110), Extent(200, 210), Extent(300, 310)]
    assert requests(few, [], WHOLE) == few
    assert requests([*few, Extent(320, 330)], [], WHOLE) == [*few[:3], Extent(300, 330)], "the closest are one"
    assert requests(few, [Extent(0, 210)], [Extent(0, 2000)]) == few[3:]
    assert requests([Extent(0, 300)], [], WHOLE) == [Extent(at, min(at + 50, 460)) for at in range(0, 460, 50)]


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_chunks_lie_within_the_file_whatever_it_holds(rows: int) -> None:
    sink = pa.BufferOutputStream()
    columns = {"key": pa.array([f"k{n}" for n in range(rows)], pa.string()), "empty": pa.nulls(rows, pa.int64())}
    pq.write_table(
        pa.table({**columns, "tags": pa.array([["a"]] * rows, pa.list_(pa.string()))}), sink, row_group_size=3
    )
    body = sink.getvalue()
    metadata = pq.read_metadata(pa.BufferReader(body))
    found = chunks_of(metadata)
    assert len(found) == metadata.num_row_groups
    extents = [each.extent for group in found for each in group]
    assert all(4 <= start < end <= body.size - metadata.serialized_size - 8 for start, end in extents)
    assert sum(end - start for start, end in extents) == len(places(extents)), "each by itself"
    if rows:
        assert {each.column for each in found[0]} == {"key", "empty", "tags"}
    assert not more_than_chunks(metadata)


def test_readings_are_found_among_parameters() -> None:
    one, other = Reading.of("1.parquet", ["a"]), Reading.of("2.parquet", ["b", "c"])
    assert readings(["text", 7, one, "3.parquet", other, None]) == [one, other]
    assert (other, other.columns) == ("2.parquet", frozenset({"b", "c"}))
