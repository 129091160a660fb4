"""Stored rows and files as the newest version of a schema has them, by the upgraders of their type."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.redactions import is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import concerned, upgraded


def upgraded_rows(info: TypeInfo, stored: Sequence[Row], versions: Sequence[int]) -> list[Row]:
    """The rows as of the newest version; those that nothing concerns stay the same. Blocking for many.

    ``UnreadableRow`` for a row on which an upgrader fails, or that does not fit the type afterwards.
    """
    found = list(stored)
    places = [
        number
        for number, (row, version) in enumerate(zip(stored, versions, strict=True))
        if not is_erased(row.fields_json) and concerned(info, version)
    ]
    if not places:
        return found
    made = rows.read(info, [_upgraded(info, stored[number], versions[number]) for number in places])
    _, bodies = rows.written_columns(info, made)
    for number, body in zip(places, bodies, strict=True):
        found[number] = stored[number]._replace(fields_json=body)
    return found


def _upgraded(info: TypeInfo, row: Row, version_id: int) -> Row:
    key = "/".join(filter(None, row.identity))
    return row._replace(fields_json=upgraded(info, key, row.fields_json, version_id))


def versions_in(path: Path) -> set[int]:
    """The versions of the schema that rows of a file have; 1 where it does not say."""
    with pq.ParquetFile(path) as file:
        if "schema_version_id" not in file.schema_arrow.names:
            return {1}
        found = file.read(columns=["schema_version_id"], use_threads=False).column(0).unique().to_pylist()
    return {int(each) if each is not None else 1 for each in found}


def upgraded_table(table: pa.Table, info: TypeInfo) -> pa.Table:
    """The same rows, with upgraded ``fields_json``; other columns as they are."""
    count = table.num_rows
    known = "schema_version_id" in table.column_names
    versions = table.column("schema_version_id").to_pylist() if known else [1] * count
    made = upgraded_rows(info, rows.from_table(table), [each if each is not None else 1 for each in versions])
    place = table.schema.get_field_index("fields_json")
    return table.set_column(place, "fields_json", pa.array([row.fields_json for row in made], pa.string()))


def upgrade_file(path: Path, target: Path, info: TypeInfo) -> None:
    """Row group by row group, so that memory is bounded."""
    partial: set[str] = set()
    writer: pq.ParquetWriter | None = None
    target.parent.mkdir(exist_ok=True)
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            group = file.read_row_group(number, use_threads=False)
            kept = [name for name in group.column_names if name in names.SYSTEM_COLUMNS]
            table = upgraded_table(group.select(kept), info)
            typed = typed_columns(info.columns, table.column("fields_json").to_pylist())
            partial |= {name for name, made in typed.items() if made.partial}
            for name, made in typed.items():
                table = table.append_column(name, made.array)
            if writer is None:
                writer = pq.ParquetWriter(target, table.schema)
            writer.write_table(table)
        if writer is not None:
            writer.add_key_value_metadata(rows.marks(info.columns, partial))
            writer.close()
