"""Stored rows: identities, commits and fields of a data file of any writer; as read, redacted, upgraded. Blocking.

Knows nothing of the user's classes. A file of a plain writer has no ``_retracted`` column: nothing in it is retracted.

``redacted`` gives a file without what a redaction destroys, and the mark that it then bears: the number of the latest
commit whose order changed the file's bytes. A state from before that commit cannot be read from the file.
``upgraded_rows`` and ``upgrade_file`` give rows and files as the newest version of a schema has them.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data import rows
from holdfast.ontology.format.data.batch import LARGE, LONG_BYTES, Current, Identity, Row, Segment, digest, joined
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.format.data.footer import REDACTED
from holdfast.ontology.format.data.rows import from_parquet, from_table, stored_keys, to_parquet
from holdfast.ontology.format.redactions import Redaction, erased_text, is_erased
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import concerned, upgraded

_WANTED = (*names.ENTITY_KEYS, *names.RELATION_KEYS, "commit_id", "fields_json", names.RETRACTED)
LARGE_BYTES = 8 << 20
"""A file of this size is read in pieces,"""
PIECE_ROWS = 8_192
"""of so many rows."""
_HABITS = ("\\u", '": ', ', "')
"""Signs that JSON was spelled by another writer: escapes and spaces."""


def read_current(body: bytes, path: str, oldest: int, newest: int) -> Segment | list[tuple[Identity, Current]]:
    """The rows of a file for the commits from ``oldest`` to ``newest``; as columns if there are many."""
    if len(body) > LARGE_BYTES and (found := _in_pieces(body, path, oldest, newest)) is not None:
        return found
    table = _columns(body, path)
    segment = _segment(table, oldest, newest) if table.num_rows >= LARGE else None
    if segment is not None:
        return segment
    return [
        (row.identity, Current(commit_id, digest(row.fields_json), row.retracted, other_digest(row.fields_json, path)))
        for commit_id, row in _each(table)
        if oldest <= commit_id <= newest
    ]


def read_rows(body: bytes, path: str, seen: Callable[[pa.Table], pa.Table] | None = None) -> list[tuple[int, Row]]:
    table = _columns(body, path, ("schema_version_id",) if seen is not None else ())
    return list(_each(table if seen is None else seen(table)))


def _in_pieces(body: bytes, path: str, oldest: int, newest: int) -> Segment | None:
    """The same of a large file, of which some rows are held at a time; None where that is not possible."""
    if not _long(body, path):
        return None  # of short rows the fields themselves are kept, and comparing them is quicker
    found: list[Segment] = []
    for table in stored_batches(body, path, PIECE_ROWS):
        part = _segment(table, oldest, newest)
        if part is None:
            return None
        found.append(part.short())
    if not found:
        return None
    keys = pa.concat_arrays([each.joined for each in found])
    if pc.count_distinct(keys).as_py() != len(keys):
        return None
    marks = pa.concat_arrays([each.marks for each in found])
    commits, retracted = (np.concatenate([getattr(each, name) for each in found]) for name in ("commits", "retracted"))
    return Segment(keys, marks, True, commits, retracted)


def _long(body: bytes, path: str) -> bool:
    """Whether the rows of a file are so long that digests are kept of them."""
    try:
        with pq.ParquetFile(pa.BufferReader(body)) as file:
            meta = file.metadata
            groups = [meta.row_group(number) for number in range(meta.num_row_groups)]
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{path}: not a Parquet file ({error})") from error
    return bool(sum(group.total_byte_size for group in groups) > 2 * LONG_BYTES * max(meta.num_rows, 1))


def _segment(table: pa.Table, oldest: int, newest: int) -> Segment | None:
    """None if rows must be checked one by one: an identity twice, a gap, or JSON in another spelling than ours."""
    commits = table.column("commit_id")
    wanted = pc.and_(pc.greater_equal(commits, oldest), pc.less_equal(commits, newest))
    table = table.filter(wanted).combine_chunks()
    if any(column.null_count for column in table.columns):
        return None
    bodies = table.column("fields_json").cast(pa.string()).combine_chunks()
    keys = joined([table.column(name).cast(pa.string()).combine_chunks() for name in stored_keys(table)])
    foreign = any(pc.any(pc.match_substring(bodies, habit)).as_py() for habit in _HABITS)
    if foreign or pc.count_distinct(keys).as_py() != len(keys):
        return None
    gone = table.column(names.RETRACTED) if names.RETRACTED in table.column_names else None
    return Segment.of(
        keys,
        bodies,
        table.column("commit_id").to_numpy().astype(np.int64),
        None if gone is None else gone.combine_chunks().to_numpy(zero_copy_only=False),
    )


def other_digest(fields_json: str, path: str) -> bytes | None:
    """Of the same fields in our spelling, where theirs may be another."""
    if not any(habit in fields_json for habit in _HABITS):
        return None
    try:
        ours = json.dumps(json.loads(fields_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except ValueError as error:
        raise Corrupt(f"{path}: fields_json is not JSON: {fields_json[:60]!r}") from error
    return None if ours == fields_json else digest(ours)


def stored_batches(body: bytes, path: str, size: int) -> Iterator[pa.Table]:
    """The columns that every file has, some rows at a time."""
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


# --- without what a redaction destroys ---

FOOTER_END = 8
"""Bytes after a Parquet footer: its length, and the format's own mark."""


def mark_in(metadata: Mapping[bytes, bytes] | None) -> int:
    """The mark among the metadata of a file; 0 if it has none."""
    found = (metadata or {}).get(REDACTED, b"0")
    return int(found) if found.isdigit() else 0


def mark_of(body: bytes, path: str) -> int:
    """The mark of a file. Cheap for a file without one, because its footer is not parsed."""
    footer = int.from_bytes(body[-FOOTER_END:-4], "little") if len(body) > FOOTER_END else 0
    if body.find(REDACTED, max(0, len(body) - FOOTER_END - footer)) < 0:
        return 0
    return mark_in(from_parquet(body, key=path, columns=("commit_id",)).schema.metadata)


def redacted(body: bytes, path: str, redaction: Redaction, commit_id: int) -> bytes | None:
    """The file without the redacted payload, or unchanged if that is gone already; None if it never had any."""
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


# --- under the newest schema ---


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
