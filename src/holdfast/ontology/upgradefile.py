"""A data file with its rows upgraded, for whoever reads it: new fields, and typed columns made from them. Blocking."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ontology import names, rows
from holdfast.ontology.columns import typed_columns
from holdfast.ontology.typespec import Node
from holdfast.ontology.upgrade import Upgrades


def versions_in(path: Path) -> set[int]:
    """The versions of the schema that rows of a file have; 1 where it does not say."""
    with pq.ParquetFile(path) as file:
        if "schema_version_id" not in file.schema_arrow.names:
            return {1}
        found = file.read(columns=["schema_version_id"], use_threads=False).column(0).unique().to_pylist()
    return {int(each) if each is not None else 1 for each in found}


def upgraded_table(table: pa.Table, upgrades: Upgrades) -> pa.Table:
    """The same rows, with upgraded ``fields_json``; other columns as they are."""
    count = table.num_rows
    known = "schema_version_id" in table.column_names
    versions = table.column("schema_version_id").to_pylist() if known else [1] * count
    made = upgrades.rows(rows.from_table(table), [each if each is not None else 1 for each in versions])
    place = table.schema.get_field_index("fields_json")
    return table.set_column(place, "fields_json", pa.array([row.fields_json for row in made], pa.string()))


def upgrade_file(path: Path, target: Path, upgrades: Upgrades, nodes: Mapping[str, Node]) -> None:
    """Row group by row group, so that memory is bounded."""
    partial: set[str] = set()
    writer: pq.ParquetWriter | None = None
    target.parent.mkdir(exist_ok=True)
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, use_threads=False)
            kept = [name for name in group.column_names if name in names.SYSTEM_COLUMNS]
            table = upgraded_table(group.select(kept), upgrades)
            typed = typed_columns(nodes, table.column("fields_json").to_pylist())
            partial |= {name for name, made in typed.items() if made.partial}
            for name, made in typed.items():
                table = table.append_column(name, made.array)
            if writer is None:
                writer = pq.ParquetWriter(target, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.add_key_value_metadata(rows.marks(nodes, partial))
            writer.close()
