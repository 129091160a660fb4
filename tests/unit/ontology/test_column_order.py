"""Large files are written in two zones: the same rows for every reader, with ``fields_json`` behind all the rest."""

import hashlib
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.ontology import Entity, Field
from holdfast.ontology.format.parquet.column_order import FROM_BYTES, zoned
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.unit.ontology.desk import Desk

ROWS = 1_000


def file(rows: int, group_rows: int, *, behind: str = "fields_json") -> bytes:
    texts = [hashlib.blake2b(str(number).encode()).hexdigest() * 40 for number in range(rows)]
    table = pa.table(
        {
            "commit_id": pa.repeat(7, rows),
            "entity_key": [f"k{number:06d}" for number in range(rows)],
            behind: texts,
            "tags": [["a", str(number % 5)] if number % 3 else None for number in range(rows)],
            "age": pa.array(range(rows)),
        }
    )
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, compression="none", use_dictionary=["commit_id", "tags"]) as writer:
        writer.write_table(table, row_group_size=group_rows)
        writer.add_key_value_metadata({b"note": b"kept"})
    return bytes(sink.getvalue().to_pybytes())


def extents(metadata: pq.FileMetaData, *, behind: bool) -> list[tuple[int, int]]:
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            if (column.path_in_schema == "fields_json") == behind:
                begin = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
                found.append((begin, begin + column.total_compressed_size))
    return found


def test_a_file_in_zones_has_the_same_rows_for_every_reader(tmp_path: Path) -> None:
    plain = file(ROWS, 90)
    assert len(plain) > FROM_BYTES
    made = zoned(pa.py_buffer(plain))
    for name, body in (("plain", plain), ("made", made)):
        (tmp_path / f"{name}.parquet").write_bytes(body)
    assert pq.read_table(tmp_path / "made.parquet").equals(pq.read_table(tmp_path / "plain.parquet"))
    before, after = (pq.read_metadata(tmp_path / f"{name}.parquet") for name in ("plain", "made"))
    assert (after.metadata, after.num_row_groups) == (before.metadata, before.num_row_groups)
    found = [
        duckdb.sql(f"SELECT * FROM '{tmp_path / name}.parquet' WHERE age % 7 = 1 ORDER BY entity_key").fetchall()
        for name in ("plain", "made")
    ]
    assert found[0] == found[1]
    assert len(found[0]) == 143


def test_fields_json_lies_behind_all_the_rest_without_gaps() -> None:
    made = zoned(pa.py_buffer(file(ROWS, 90)))
    metadata = pq.read_metadata(pa.BufferReader(made))
    front, behind = (extents(metadata, behind=each) for each in (False, True))
    whole = [*front, *behind]
    assert whole == sorted(whole), "row groups and columns keep their order"
    assert [start for start, _ in whole] == [4, *(end for _, end in whole[:-1])]
    assert len(made) == whole[-1][1] + metadata.serialized_size + 8
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        first = group.column(0)
        size = sum(group.column(place).total_compressed_size for place in range(group.num_columns))
        middle = min(filter(None, (first.dictionary_page_offset, first.data_page_offset))) + size // 2
        assert middle < len(made), "where readers look that divide a file"


@pytest.mark.parametrize("body", [file(100, 9), file(ROWS, ROWS), file(ROWS, 90, behind="other")])
def test_small_files_and_those_of_one_row_group_stay_as_they_are(body: bytes) -> None:
    assert zoned(pa.py_buffer(body)) == body


async def test_commits_and_snapshots_are_written_in_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    class Thing(Entity):
        id: Field[str] = Field(primary_key=True)
        value: Field[int]

    for place in ("maintain.merge", "format.data.rows"):
        monkeypatch.setattr(f"holdfast.ontology.{place}.ROW_GROUP", 4)
    monkeypatch.setattr("holdfast.ontology.format.parquet.column_order.FROM_BYTES", 1)
    desk = Desk()
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        for number in range(3):
            onto.ensure([Thing(id=f"k{each:02d}", value=number) for each in range(10 + number)])
            await onto.commit()
    await Compactor(desk.store, desk.ambient, whole=True).compact(TypeId("entity", "Thing"))
    bodies = [each.body for key, each in desk.shelf.objects.items() if key.endswith(".parquet")]
    assert len(bodies) == 4
    for body in bodies:
        metadata = pq.read_metadata(pa.BufferReader(body))
        assert metadata.num_row_groups > 1
        assert max(extents(metadata, behind=False)) < min(extents(metadata, behind=True))
    async with Ontology(desk.store, desk.ambient, [Thing]) as onto:
        assert await onto.query(Thing).where(Thing.value == 2).count() == 12
