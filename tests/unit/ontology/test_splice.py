"""Parquet files put together from others: the same rows, whatever they are made of."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.parquet import thrift
from holdfast.ontology.format.parquet.splice import Assembly, Footer, constant, footer_bytes, keeping, metadata_of

COLUMNS = pa.schema(
    [
        ("commit_id", pa.int64()),
        ("key", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", tz="UTC")),
        ("cost", pa.decimal128(38, 18)),
        ("nested", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.float64()))])),
    ]
)
ROW = st.fixed_dictionaries(
    {
        "commit_id": st.just(0),
        "key": st.text(max_size=5),
        "tags": st.none() | st.lists(st.none() | st.text(max_size=3), max_size=3),
        "at": st.none() | st.datetimes(),
        "cost": st.none() | st.decimals(-1000, 1000, places=3),
        "nested": st.none() | st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.just([1.5])}),
    }
)


def parquet(rows: list[dict[str, object]], group_rows: int, *, words: bool = True) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(rows, schema=COLUMNS)
    with pq.ParquetWriter(sink, COLUMNS, compression="zstd", use_dictionary=words, store_schema=False) as writer:
        if rows:
            writer.write_table(table, row_group_size=group_rows)
        writer.add_key_value_metadata({b"name": b"value"})
    return bytes(sink.getvalue().to_pybytes())


@given(
    parts=st.lists(st.lists(ROW, max_size=7), min_size=1, max_size=4), group_rows=st.integers(1, 5), words=st.booleans()
)
def test_rows_of_all_parts_in_their_order(parts: list[list[dict[str, object]]], group_rows: int, words: bool) -> None:
    bodies = {f"part {number}": parquet(rows, group_rows, words=words) for number, rows in enumerate(parts)}
    footers = {name: Footer.parse(body, name) for name, body in bodies.items()}
    assembly = Assembly(footers["part 0"])
    for name, footer in footers.items():
        assembly.add(name, footer, replace={"commit_id": constant("commit_id", 12_345)})
    tail = assembly.finish({b"other": b"pairs"})
    whole = b"".join(
        piece if isinstance(piece, bytes) else bodies[piece.source][piece.start : piece.end]
        for piece in assembly.pieces
    )
    assert len(whole) == assembly.size
    found = pq.read_table(pa.BufferReader(whole))
    given = pa.Table.from_pylist([{**row, "commit_id": 12_345} for rows in parts for row in rows], schema=COLUMNS)
    assert found.replace_schema_metadata(None).equals(given)
    meta = metadata_of(tail)
    assert (meta.num_rows, meta.metadata) == (given.num_rows, {b"other": b"pairs"})


@given(rows=st.lists(ROW, max_size=12), group_rows=st.integers(1, 5), kept=st.sets(st.integers(0, 11)))
def test_a_footer_of_some_row_groups_is_the_same_decoded_or_not(
    rows: list[dict[str, object]], group_rows: int, kept: set[int]
) -> None:
    body = parquet(rows, group_rows)
    tail = body[-footer_bytes(body, "file") :]
    footer = Footer.parse(tail, "file")
    groups = sorted(number for number in kept if number < len(footer.groups))
    count = sum(footer.groups[number].rows for number in groups)
    quick, slow = metadata_of(keeping(tail, groups, count, "file")), metadata_of(footer.keeping(groups))
    assert quick.equals(slow)
    assert (quick.num_rows, quick.num_row_groups, quick.metadata) == (count, len(groups), slow.metadata)
    assert all(quick.row_group(number).equals(slow.row_group(number)) for number in range(len(groups)))


@pytest.mark.parametrize("cut", [1, 5, 40, 200])
def test_a_footer_that_ends_too_soon_is_corrupt(cut: int) -> None:
    body = parquet([{"commit_id": 1, "key": "k"}] * 9, 2)
    tail = body[-footer_bytes(body, "file") :]
    with pytest.raises(Corrupt, match="footer cannot be read"):
        keeping(tail[:cut] + tail[-8:], [0], 2, "file")


@pytest.mark.parametrize("body", [b"", b"PAR1", b"no footer", b"\x00" * 40, b"x" * 8 + b"\xff\x00\x00\x00PAR1"])
def test_what_is_no_footer_is_refused(body: bytes) -> None:
    with pytest.raises(Corrupt):
        Footer.parse(body, "file")


@given(st.binary(max_size=60))
def test_bytes_that_are_no_struct_are_refused_or_written_again(body: bytes) -> None:
    try:
        found = thrift.read(body)
    except Corrupt:
        return
    assert thrift.read(thrift.write(found)) == found
