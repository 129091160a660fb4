"""One data file that the session has fetched: what its rows and columns say, and the SQL that reads them.

``opened`` checks a fetched file before its rows are used. During a redaction it removes the payload that must go; rows
of older schema versions are upgraded. Both happen in a copy, since the file may be a hard link to the store's own.

Errors: ``Overtaken`` if the file has lost payload by a later commit than the read knows; ``OldCopy`` if it is older
than its index entry says, as a copy can be that another process put into the disk cache too late; ``Corrupt`` if it is
not a data file.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.errors import Corrupt
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.operand import quoted
from holdfast.ontology.format.data.batch import joined
from holdfast.ontology.format.data.columns import arrow_type, complete_forms
from holdfast.ontology.format.data.lifespans import ORIGIN
from holdfast.ontology.format.data.stored_rows import mark_in, upgrade_file, versions_in
from holdfast.ontology.format.index import Entry
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import concerned

NUMBER = "file_row_number"
"""DuckDB's name for the number of a row in its file."""
SYSTEM = ("commit_id", "schema_version_id", "fields_json", "_retracted")
"""The columns of every scan, besides keys and fields."""
_NEGATIVE_ZERO = "CAST('-0.0' AS DOUBLE)"
"""Adding it changes no number, but keeps DuckDB from using statistics: those of files leave NaN out, and DuckDB (1.5.5)
takes them for bounds of all values."""
MEMORY_FACTOR = 3
"""The approximate size of rows in memory relative to their size in a file."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file whose rows can be read: by its path, or in the table of its type."""

    entry: Entry
    size: int
    columns: tuple[str, ...]
    """Its complete typed columns."""
    lacking: frozenset[str]
    """Fields without such a column."""
    single: bool
    """No identity has two rows in it that could be its latest: it has one row of each, or its rows have ends."""
    path: str | None = None
    """The local file; None if its rows are in the table of the type."""
    retracts: bool = False
    """It has the column of retractions."""
    until: bool = False
    """Its rows say until when they were the latest (``lifespans``)."""
    partly: bool = False
    """Not all bytes are fetched: statements must declare what they read of it (``Reading``)."""
    groups: frozenset[int] | None = None
    """The row groups that are scanned; None for all."""
    within: tuple[tuple[int, int], ...] = ()
    """The first and last row numbers of consecutive ``groups``. DuckDB skips row groups outside of them."""


class Fetched(NamedTuple):
    """A fetched file with its number in the session."""

    number: int
    entry: Entry
    path: Path


class Opened(NamedTuple):
    loaded: Loaded
    memory_bytes: int
    """The approximate size of its rows in memory."""
    schema: pa.Schema


# --- opening ---


class OldCopy(Corrupt):
    """A file still has payload that its statistics say was destroyed."""

    default_remedy = "it was restored from an older backup: restore it from a later one, or erase or purge again"

    def __init__(self, key: str, mark: int) -> None:
        super().__init__(f"{key}: it is from before commit {mark}, which destroyed payload in it")
        self.key = key


def opened(shape: TypeInfo, file: Fetched, fence: RedactionFence, folder: Path) -> Opened:
    """``folder`` is for copies. Blocking."""
    number, entry, path = file
    path, mark = _redacted(shape, file, fence, folder)
    try:
        path = _upgraded(shape, number, path, folder)
        with pq.ParquetFile(path) as parquet:
            schema, footer = parquet.schema_arrow, parquet.metadata
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{entry.path}: not a Parquet file ({error})") from error
    mark = max(mark, mark_in(schema.metadata))
    fence.check(mark, entry.path)
    if entry.stats is not None and entry.stats.redacted > mark:
        raise OldCopy(entry.path, entry.stats.redacted)
    if missing := {*shape.keys, "commit_id", "fields_json"} - set(schema.names):
        missed = ", ".join(sorted(missing))
        raise Corrupt(f"{entry.path}: not a data file of an ontology, it has no column {missed}")
    if complete_forms(schema.metadata) is None:
        path = _without_doubles(shape, path, folder / "once" / f"{number}.parquet")
    columns = _complete_columns(shape, schema)
    unique = not entry.snapshot if entry.stats is None else entry.stats.unique
    until = names.UNTIL in schema.names and ORIGIN in (schema.metadata or {})
    loaded = Loaded(
        entry=entry,
        size=path.stat().st_size,
        columns=columns,
        lacking=frozenset(shape.payload) - frozenset(columns),
        single=unique or until,
        path=str(path),
        retracts=names.RETRACTED in schema.names,
        until=until,
    )
    bytes_in_file = sum(footer.row_group(each).total_byte_size for each in range(footer.num_row_groups))
    return Opened(loaded, MEMORY_FACTOR * bytes_in_file, schema.remove_metadata())


def _complete_columns(shape: TypeInfo, schema: pa.Schema) -> tuple[str, ...]:
    """The typed columns of a file that have all values of their fields."""
    forms = complete_forms(schema.metadata)

    def complete(name: str) -> bool:
        wanted = arrow_type(shape.nodes[name])
        declared = wanted != pa.string() if forms is None else forms.get(name) == shape.forms[name]
        return declared and name in schema.names and duck_type(schema.field(name).type) == duck_type(wanted)

    return tuple(filter(complete, shape.payload))


def _redacted(shape: TypeInfo, file: Fetched, fence: RedactionFence, folder: Path) -> tuple[Path, int]:
    """The file, or a copy without the payload that a pending redaction destroys; and its mark."""
    if not fence.concerns(shape.type_id):
        return file.path, 0
    body = file.path.read_bytes()
    after = fence.seen(body, file.entry.path, shape.type_id)
    if after == body:
        return file.path, 0
    target = _copy_path(folder / "redacted" / f"{file.number}.parquet")
    target.write_bytes(after)
    _remove_own(file.path, folder)
    return target, fence.number


def _upgraded(shape: TypeInfo, number: int, path: Path, folder: Path) -> Path:
    """The file, or a copy with its rows upgraded to the newest version of the class."""
    if not shape.upgraders or not any(concerned(shape, version) for version in versions_in(path)):
        return path
    target = _copy_path(folder / "upgraded" / f"{number}.parquet")
    upgrade_file(path, target, shape)
    _remove_own(path, folder)
    return target


def _without_doubles(shape: TypeInfo, path: Path, target: Path) -> Path:
    """The file, or a copy in which each identity has only the last of its rows of a commit. A plain writer can write
    several.
    """
    with pq.ParquetFile(path) as file:
        keys = file.read(columns=[*shape.keys, "commit_id"], use_threads=False)
        texts = joined([keys.column(name).cast(pa.string()).combine_chunks() for name in (*shape.keys, "commit_id")])
        _, places = np.unique(texts.dictionary_encode().indices.to_numpy()[::-1], return_index=True)
        if len(places) == keys.num_rows:
            return path
        table = file.read(use_threads=False)
    pq.write_table(table.take(pa.array(np.sort(keys.num_rows - 1 - places))), _copy_path(target))
    return target


def _copy_path(target: Path) -> Path:
    target.parent.mkdir(exist_ok=True)
    return target


def _remove_own(path: Path, folder: Path) -> None:
    if path.is_relative_to(folder):
        path.unlink()


# --- files that are fetched in part ---


class Reading(str):
    """The path of a file as a parameter of a statement, with the columns and row groups that the statement reads."""

    __slots__ = ("columns", "groups")
    columns: frozenset[str]
    groups: frozenset[int] | None

    @classmethod
    def of(cls, path: str, columns: Iterable[str], groups: frozenset[int] | None = None) -> "Reading":
        made = cls(path)
        made.columns, made.groups = frozenset(columns), groups
        return made


def readings(params: Iterable[Any]) -> list[Reading]:
    """The readings among the parameters of a statement."""
    return [each for each in params if isinstance(each, Reading)]


def reading(shape: TypeInfo, file: Loaded, columns: Collection[str]) -> Reading:
    """A scan of these columns of a file."""
    ends = (names.UNTIL, "commit_id") if file.until else ()
    found = (name for name in columns if (name in SYSTEM or name in file.columns) and not _is_key(shape, file, name))
    return Reading.of(file.path or "", (*shape.keys, *ends, *found), file.groups)


# --- SQL ---


def listed_columns(shape: TypeInfo, loaded: Loaded, columns: Sequence[str]) -> list[str]:
    """The columns of a file in SQL, the same for every file of the type."""
    found = [quoted(name) for name in shape.keys]
    for name in columns:
        if name == names.RETRACTED:
            gone = "coalesce(_retracted, false)" if loaded.retracts else "false"
            found.append(f"{gone} AS _retracted")
        elif _is_key(shape, loaded, name):
            found.append(f"{quoted(shape.keys[0])} AS {quoted(name)}")  # one column less to read
        elif name in loaded.columns and arrow_type(shape.nodes[name]) == pa.float64():
            found.append(f"{quoted(name)} + {_NEGATIVE_ZERO} AS {quoted(name)}")
        elif name in SYSTEM or name in loaded.columns:
            found.append(quoted(name))
        else:
            found.append(f"NULL::{duck_type(arrow_type(shape.nodes[name]))} AS {quoted(name)}")
    return found


def _is_key(shape: TypeInfo, loaded: Loaded, name: str) -> bool:
    """Whether a column has the same text as the column of the key."""
    return name == shape.key_text and name in loaded.columns


def scan_signature(loaded: Loaded) -> tuple[Any, ...]:
    """Files with equal signatures can be read by one scan."""
    return loaded.columns, loaded.retracts, loaded.entry.last if loaded.until else None, loaded.within


_DUCK_TYPES: dict[pa.DataType, str] = {
    pa.string(): "VARCHAR",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
    pa.date32(): "DATE",
    pa.decimal128(38, 18): "DECIMAL(38, 18)",
    pa.binary(): "BLOB",
}


def duck_type(kind: pa.DataType) -> str | None:
    if isinstance(kind, pa.ListType):
        inner = duck_type(kind.value_type)
        return None if inner is None else f"{inner}[]"
    return _DUCK_TYPES.get(kind)
