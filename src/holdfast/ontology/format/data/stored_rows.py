"""Stored rows of data files, without the user's classes: identities and digests, rows, redacted and upgraded files.

A file of a plain writer has no ``_retracted`` column: nothing in it is retracted.

``redacted`` gives a file without the payload that a redaction destroys, with a mark: the number of the latest commit
whose redaction changed the file. A state from before that commit cannot be read from the file. ``upgraded_rows`` and
``upgrade_file`` give rows and files as of the newest version of a schema. All functions block.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.batch import LARGE, Current, Identity, Row, Segment, concatenated, digest, joined
from holdfast.ontology.format.data.columns import forms_metadata, typed_columns
from holdfast.ontology.format.data.footer import REDACTED
from holdfast.ontology.format.data.rows import from_parquet, from_table, stored_keys, to_parquet
from holdfast.ontology.format.redactions import Redaction, erased_text, is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import concerned, upgraded

_WANTED = (*names.ENTITY_KEYS, *names.RELATION_KEYS, "commit_id", "fields_json", names.RETRACTED)
READ_ROWS = 65_536
"""Rows that are decoded at a time to compare states."""
_FOREIGN = ("\\u", '": ', ', "')
"""Signs that another writer has spelled the JSON: escapes and spaces."""


def read_current(body: bytes, path: str, oldest: int, newest: int) -> Segment | list[tuple[Identity, Current]]:
    """The rows of a file of the commits from ``oldest`` to ``newest``; as columns if there are many."""

    def tables() -> Iterator[pa.Table]:
        for table in stored_batches(body, path, READ_ROWS):
            commits = table.column("commit_id")
            wanted = pc.and_(pc.greater_equal(commits, oldest), pc.less_equal(commits, newest))
            yield table.filter(wanted).combine_chunks()

    if _row_count(body, path) >= LARGE and (segment := _segment(tables())) is not None:
        return segment
    return [
        (row.identity, Current(commit_id, digest(row.fields_json), row.retracted, other_digest(row.fields_json, path)))
        for table in tables()
        for commit_id, row in _each(table)
    ]


def read_rows(body: bytes, path: str, seen: Callable[[pa.Table], pa.Table] | None = None) -> list[tuple[int, Row]]:
    table = _columns(body, path, ("schema_version_id",) if seen is not None else ())
    return list(_each(table if seen is None else seen(table)))


def _row_count(body: bytes, path: str) -> int:
    try:
        return int(pq.read_metadata(pa.BufferReader(body)).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{path}: not a Parquet file ({error})") from error


def _segment(tables: Iterable[pa.Table]) -> Segment | None:
    """None if rows must be compared one by one: an identity twice, a null, or JSON in another spelling than ours."""
    parts: list[Segment] = []
    for table in tables:
        if any(column.null_count for column in table.columns):
            return None
        bodies = table.column("fields_json").cast(pa.string()).combine_chunks()
        if pc.any(_spelled_otherwise(bodies)).as_py():
            return None
        keys = joined([table.column(name).cast(pa.string()).combine_chunks() for name in stored_keys(table)])
        commits = table.column("commit_id").to_numpy().astype(np.int64)
        gone = table.column(names.RETRACTED) if names.RETRACTED in table.column_names else None
        retracted = None if gone is None else gone.combine_chunks().to_numpy(zero_copy_only=False)
        parts.append(Segment.of(keys, bodies, commits, retracted))
    if any(part.digested for part in parts):
        parts = [part.with_digests() for part in parts]
    whole = concatenated(parts)
    return whole if pc.count_distinct(whole.joined).as_py() == len(whole.joined) else None


def other_digest(fields_json: str, path: str) -> bytes | None:
    """The digest of the same fields in our spelling, if another writer has spelled them otherwise."""
    if not any(sign in fields_json for sign in _FOREIGN):
        return None
    try:
        ours = json.dumps(json.loads(fields_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except ValueError as error:
        raise Corrupt(f"{path}: fields_json is not JSON: {fields_json[:60]!r}") from error
    return None if ours == fields_json else digest(ours)


def other_digests(bodies: pa.Array, path: str) -> pa.Array:
    """``other_digest`` of each of these texts."""
    found: list[bytes | None] = [None] * len(bodies)
    for place in pc.indices_nonzero(_spelled_otherwise(bodies)).to_pylist():
        found[place] = other_digest(bodies[place].as_py(), path)
    return pa.array(found, pa.binary(16))


def _spelled_otherwise(bodies: pa.Array) -> pa.Array:
    """Which of these texts may be in another spelling than ours."""
    return reduce(pc.or_, [pc.match_substring(bodies, sign) for sign in _FOREIGN])


def stored_batches(body: bytes, path: str, size: int) -> Iterator[pa.Table]:
    """The columns that every file has, ``size`` rows at a time."""
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            wanted = [name for name in _WANTED if name in file.schema_arrow.names]
            for batch in file.iter_batches(size, columns=wanted, use_threads=False):
                yield _checked(pa.Table.from_batches([batch]), path)
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{path}: not a Parquet file ({error})") from error


def _columns(body: bytes, path: str, more: Sequence[str] = ()) -> pa.Table:
    return _checked(from_parquet(body, key=path, columns=(*_WANTED, *more)), path)


def _checked(table: pa.Table, path: str) -> pa.Table:
    if missing := {*stored_keys(table), "commit_id", "fields_json"} - set(table.column_names):
        raise Corrupt(f"{path}: not a data file of an ontology, it has no column {', '.join(sorted(missing))}")
    return table


def _each(table: pa.Table) -> Iterator[tuple[int, Row]]:
    return zip(table.column("commit_id").to_pylist(), from_table(table), strict=True)


# --- redacted files ---

_FOOTER_END = 8
"""Bytes after a Parquet footer: its length, and PAR1."""


def mark_in(metadata: Mapping[bytes, bytes] | None) -> int:
    """The mark among the metadata of a file; 0 if it has none."""
    found = (metadata or {}).get(REDACTED, b"0")
    return int(found) if found.isdigit() else 0


def mark_of(body: bytes, path: str) -> int:
    """The mark of a file. The footer of a file without one is not parsed."""
    footer = int.from_bytes(body[-_FOOTER_END:-4], "little") if len(body) > _FOOTER_END else 0
    if body.find(REDACTED, max(0, len(body) - _FOOTER_END - footer)) < 0:
        return 0
    return mark_in(from_parquet(body, key=path, columns=("commit_id",)).schema.metadata)


def redacted(body: bytes, path: str, redaction: Redaction, commit_id: int) -> bytes | None:
    """The file without the redacted payload, or unchanged if that is already gone; None if it never had any."""
    table = from_parquet(body, key=path)
    commits = table.column("commit_id")
    mask = pc.and_(pc.greater_equal(commits, redaction.first), pc.less_equal(commits, redaction.last))
    if redaction.identity is None:
        left = table.filter(pc.invert(mask))
        return _marked(left, commit_id) if left.num_rows < table.num_rows else body
    keys = names.key_columns(redaction.type_id.kind)
    for name, value in zip(keys, redaction.identity, strict=True):
        mask = pc.and_(mask, pc.equal(table.column(name).cast(pa.string()), value))
    mask = pc.fill_null(mask, False)
    if not pc.any(mask).as_py():
        return None
    texts = table.column("fields_json").to_pylist()
    erased = {number for number, wanted in enumerate(mask.to_pylist()) if wanted}
    if all(is_erased(texts[number]) for number in erased):
        return body
    for number in erased:
        texts[number] = erased_text(redaction.key_field, texts[number])
    for number, column in enumerate(table.schema):
        if column.name == "fields_json":
            table = table.set_column(number, column.name, pa.array(texts, pa.string()))
        elif column.name not in names.SYSTEM_COLUMNS and column.name != redaction.key_field:
            nothing = pa.scalar(None, column.type)
            table = table.set_column(number, column.name, pc.if_else(mask, nothing, table.column(number)))
    if names.RETRACTED not in table.column_names:
        return _marked(table.append_column(names.RETRACTED, mask), commit_id)
    place = table.schema.get_field_index(names.RETRACTED)
    retracted = pc.or_(pc.fill_null(table.column(place), False), mask)
    return _marked(table.set_column(place, names.RETRACTED, retracted), commit_id)


def _marked(table: pa.Table, commit_id: int) -> bytes:
    metadata = table.schema.metadata or {}
    mark = max(commit_id, mark_in(metadata))
    return to_parquet(table.replace_schema_metadata({**metadata, REDACTED: str(mark).encode()}))


# --- upgraded rows ---


def upgraded_rows(info: TypeInfo, stored: Sequence[Row], versions: Sequence[int]) -> list[Row]:
    """The rows as of the newest version of the schema.

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
    """The schema versions of the rows of a file. A missing version is 1."""
    with pq.ParquetFile(path) as file:
        if "schema_version_id" not in file.schema_arrow.names:
            return {1}
        found = file.read(columns=["schema_version_id"], use_threads=False).column(0).unique().to_pylist()
    return {int(each) if each is not None else 1 for each in found}


def upgraded_table(table: pa.Table, info: TypeInfo) -> pa.Table:
    """The table with upgraded ``fields_json``."""
    count = table.num_rows
    known = "schema_version_id" in table.column_names
    versions = table.column("schema_version_id").to_pylist() if known else [1] * count
    made = upgraded_rows(info, rows.from_table(table), [each if each is not None else 1 for each in versions])
    place = table.schema.get_field_index("fields_json")
    return table.set_column(place, "fields_json", pa.array([row.fields_json for row in made], pa.string()))


def upgrade_file(path: Path, target: Path, info: TypeInfo) -> None:
    """Writes a file with upgraded rows, one row group at a time."""
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
            writer.add_key_value_metadata(forms_metadata(info.columns, partial))
            writer.close()
