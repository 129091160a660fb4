"""Reads the columns of a data file that the specification fixes, of any writer: identities, commits, fields.

Knows nothing of the user's classes. A file of a plain writer has no ``_retracted`` column: nothing in it is retracted.
"""

import json
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.format.data.batch import LARGE, LONG_BYTES, Current, Identity, Row, Segment, digest, joined
from holdfast.ontology.format.data.rows import from_parquet, from_table, stored_keys
from holdfast.ontology.types import names

_WANTED = (*names.ENTITY_KEYS, *names.RELATION_KEYS, "commit_id", "fields_json", names.RETRACTED)
LARGE_BYTES = 8 << 20
"""A file of this size is looked at in pieces,"""
PIECE_ROWS = 8_192
"""of so many rows."""
_HABITS = ("\\u", '": ', ', "')
"""How the JSON of other writers differs from ours: escapes and spaces."""


def read_current(body: bytes, path: str, oldest: int, newest: int) -> Segment | list[tuple[Identity, Current]]:
    """What a file says of the commits from ``oldest`` to ``newest``; as columns where it says much."""
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
    """None where it takes a look at every row: an identity twice, a gap, or JSON in another spelling than ours."""
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
