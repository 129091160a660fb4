"""Rows to tables to files, and back: columns, their order, what does not fit into them."""

from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.rows import from_parquet, from_table, partial_columns, to_parquet, to_table
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.shop import Customer, Everything, Order, Product, everything, row


class TestTables:
    def test_fields_json_is_the_last_column(self) -> None:
        entity = to_table(type_info(Customer), [row(Customer(id="c1", name="Ada"))], 7, 3)
        assert entity.column_names == [
            *("commit_id", "entity_type", "entity_key", "schema_version_id"),
            *("id", "name", "tier", "fields_json"),
        ]
        assert entity.to_pylist()[0] == {
            "commit_id": 7,
            "entity_type": "Customer",
            "entity_key": "c1",
            "schema_version_id": 3,
            "fields_json": '{"id":"c1","name":"Ada","tier":null}',
            "id": "c1",
            "name": "Ada",
            "tier": None,
        }
        relation = to_table(type_info(Order), [row(Order(left_key="c1", right_key=5, number="n"))], 7, 3)
        assert relation.column_names == [
            *("commit_id", "relation_type", "left_key", "right_key", "instance_key"),
            *("schema_version_id", "placed", "fields_json"),
        ]

    def test_a_mark_only_where_something_is_retracted(self) -> None:
        rows = [row(Customer(id=key, name="x")) for key in ("a", "b")]
        assert "_retracted" not in to_table(type_info(Customer), rows, 1, 1).column_names
        table = to_table(type_info(Customer), [rows[0], rows[1]._replace(retracted=True)], 1, 1)
        assert table.column("_retracted").to_pylist() == [False, True]
        assert from_table(table) == [rows[0], rows[1]._replace(retracted=True)]

    def test_one_bad_value_does_not_spoil_its_column(self) -> None:
        rows = [row(Product(id=1)), Row(("x",), '{"id":"x","title":true}'), Row(("y",), '{"id":2.0}')]
        table = to_table(type_info(Product), rows, 1, 1)
        assert table.column("id").to_pylist() == [1, None, None]
        assert table.column("title").to_pylist() == ["", None, None]
        assert partial_columns(table.schema) == {"id", "title"}


class TestFiles:
    def table(self) -> pa.Table:
        rows = [row(everything(id=UUID(int=n), whole=n, tags=["a"] * n)) for n in range(3)]
        return to_table(type_info(Everything), rows, 1, 1)

    def test_compressed_with_statistics_of_everything_but_the_json(self) -> None:
        group = pq.ParquetFile(pa.BufferReader(to_parquet(self.table()))).metadata.row_group(0)
        columns = {group.column(n).path_in_schema: group.column(n) for n in range(group.num_columns)}
        assert {column.compression for column in columns.values()} == {"ZSTD"}
        assert (columns["whole"].statistics.min, columns["whole"].statistics.max) == (0, 2)
        assert columns["entity_key"].statistics.has_min_max
        assert not columns["fields_json"].is_stats_set


def test_columns_get_a_dictionary_only_where_values_repeat() -> None:
    rows = [row(Customer(id=f"c{number}", name=f"name {number}", tier=None)) for number in range(3_000)]
    body = to_parquet(to_table(type_info(Customer), rows, 1, 1))
    group = pq.ParquetFile(pa.BufferReader(body)).metadata.row_group(0)
    columns = {group.column(number).path_in_schema: group.column(number) for number in range(group.num_columns)}
    with_dictionary = {name for name, column in columns.items() if column.has_dictionary_page}
    assert with_dictionary == {"commit_id", "entity_type", "schema_version_id", "tier"}
    assert all(column.is_stats_set for name, column in columns.items() if name != "fields_json")
    assert from_table(from_parquet(body, key="k")) == sorted(rows)
