"""A data file that the session has: what its columns and rows say, and the SQL that reads it.

A file that was fetched is checked, brought to the read's head, and upgraded, before its rows are loaded: ``Overtaken``
if it has lost payload by a later commit than the read knows; ``OldCopy`` if it is older than its index entry says, as a
copy can be that another process put into the disk cache too late; ``Corrupt`` if it is no data file.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.operand import quoted
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.data.lifespans import ORIGIN, known, lasting_in
from holdfast.ontology.format.data.rows import column_forms, partial_columns
from holdfast.ontology.format.data.stored_rows import mark_in, upgrade_file, versions_in
from holdfast.ontology.format.index import Entry
from holdfast.ontology.types import names
from holdfast.ontology.types.refs import TypeHead
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import concerned
from holdfast.sql.duck import Duck

NUMBER = "file_row_number"
"""DuckDB's name for the number of a row in its file."""
SYSTEM = ("commit_id", "schema_version_id", "fields_json", "_retracted")
"""The columns of every scan, besides keys and fields."""
_NOTHING = "CAST('-0.0' AS DOUBLE)"
"""Adding it changes no number, but keeps DuckDB from using statistics: those of files leave NaN out, and DuckDB (1.5.5)
takes them for bounds of all values."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file whose rows can be read: by its path, or in the table of its type."""

    entry: Entry
    rows: int
    size: int
    columns: tuple[str, ...]
    """The typed columns that count."""
    lacking: frozenset[str]
    """Fields whose column is NULL for some row that has a value."""
    unique: bool
    """No identity has two rows in it."""
    path: str | None = None
    """The local file; None if its rows are in the type's table."""
    retracts: bool = False
    """It has the column of retractions."""
    until: bool = False
    """Its rows say until when they were the latest."""
    through: int = 0
    """Up to which commit they do: the last of the file's own, or a later one."""
    beyond: bool = False
    """Some rows name commits after that, which nothing proves."""
    doubled: bool = False
    """An identity may have two rows of one commit, of which the first ends with that commit."""
    stray: bool = False
    """It has a column of such ends that does not count."""
    numbered: bool = True
    """DuckDB can number its rows: no column has the name of that number."""
    partly: bool = False
    """Not all of it is fetched: statements have to say what they read of it (``Reading``)."""
    groups: frozenset[int] | None = None
    """The row groups that are scanned; None for all."""
    within: tuple[tuple[int, int], ...] = ()
    """The first and last row numbers of runs of them: DuckDB skips row groups with no such number."""

    @property
    def single(self) -> bool:
        """Whether its rows alone tell its state: no identity has two that are the latest."""
        return self.unique or self.until


def tells_numbers(columns: Iterable[str]) -> bool:
    """Whether DuckDB can number the rows of a file with these columns."""
    return NUMBER not in map(str.lower, columns)


def usable(shape: TypeInfo, schema: pa.Schema) -> tuple[tuple[str, ...], frozenset[str]]:
    """The typed columns of a file that count, and the fields whose column lacks something."""
    forms, partial = column_forms(schema), partial_columns(schema)
    columns: list[str] = []
    lacking: set[str] = set()
    for name in shape.payload:
        wanted = arrow_type(shape.nodes[name])
        found = schema.field(name).type if name in schema.names else None
        said = forms.get(name) == shape.forms[name] if forms else wanted != pa.string()
        if found is not None and said and duck_type(found) == duck_type(wanted):
            columns.append(name)
            if name in partial:
                lacking.add(name)
        else:
            lacking.add(name)
    return tuple(columns), frozenset(lacking)


# --- what a statement reads of a file that is fetched in part ---


class Reading(str):
    """The path of a file as the parameter of a statement, with the columns and row groups that the statement reads."""

    __slots__ = ("columns", "groups")
    columns: frozenset[str]
    groups: frozenset[int] | None

    @classmethod
    def of(cls, path: str, columns: Iterable[str], groups: frozenset[int] | None = None) -> "Reading":
        made = cls(path)
        made.columns, made.groups = frozenset(columns), groups
        return made


def readings(params: Iterable[Any]) -> list[Reading]:
    """Those among the parameters of a statement."""
    return [each for each in params if isinstance(each, Reading)]


def reading(shape: TypeInfo, file: Loaded, columns: Collection[str]) -> Reading:
    """Where a file lies, for a scan of these columns."""
    ends = (names.UNTIL, "commit_id") if file.until else ()
    found = (name for name in columns if (name in SYSTEM or name in file.columns) and not _is_key(shape, file, name))
    return Reading.of(file.path or "", (*shape.keys, *ends, *found), file.groups)


# --- SQL ---


def listed_columns(shape: TypeInfo, loaded: Loaded, columns: Sequence[str]) -> list[str]:
    """The columns of a file in SQL, as every scan of the type has them."""
    found = [quoted(name) for name in shape.keys]
    for name in columns:
        if name == names.RETRACTED:
            gone = "coalesce(_retracted, false)" if loaded.retracts else "false"
            found.append(f"{gone} AS _retracted")
        elif _is_key(shape, loaded, name):
            found.append(f"{quoted(shape.keys[0])} AS {quoted(name)}")  # one column less is read
        elif name in loaded.columns and arrow_type(shape.nodes[name]) == pa.float64():
            found.append(f"{quoted(name)} + {_NOTHING} AS {quoted(name)}")
        elif name in SYSTEM or name in loaded.columns:
            found.append(quoted(name))
        else:
            found.append(f"NULL::{duck_type(arrow_type(shape.nodes[name]))} AS {quoted(name)}")
    return found


def _is_key(shape: TypeInfo, loaded: Loaded, name: str) -> bool:
    """Whether a column has the very text that the column of the key has."""
    return name == shape.key_text and name in loaded.columns and name not in loaded.lacking


def proved_end(loaded: Loaded) -> str:
    """The commit that ended a row, as far as the file says and it is proved."""
    if not loaded.until:
        return "NULL::BIGINT"
    return f"CASE WHEN _until <= {loaded.through:d} THEN _until END" if loaded.beyond else "_until"


def written(path: str) -> str:
    """The path of one of the session's own files in SQL. It is not bound: binding takes longer than reading it, and
    DuckDB imports pandas, if it is installed, for the first parameter of a process."""
    return "'{}'".format(path.replace("'", "''"))


def alike(loaded: Loaded) -> tuple[Any, ...]:
    """Files with the same one can be read by one scan."""
    ends = (loaded.until, loaded.doubled, loaded.through if loaded.beyond else -1)
    return loaded.columns, loaded.lacking, loaded.retracts, loaded.stray, ends, loaded.within


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


# --- after it was fetched ---

SWELL = 3
"""About how much larger rows are in memory than in a file."""


class OldCopy(Corrupt):
    """A file still has payload that its statistics say was destroyed."""

    default_remedy = "it was restored from an older backup: restore it from a later one, or erase or purge again"

    def __init__(self, key: str, mark: int) -> None:
        super().__init__(f"{key}: it is from before commit {mark}, which destroyed payload in it")
        self.key = key


class Arrival(NamedTuple):
    """A fetched file: its number in the session, its index entry, and its path."""

    number: int
    entry: Entry
    path: Path


class Arrived(NamedTuple):
    loaded: Loaded
    swollen: int
    """About how many bytes its rows would take in memory."""
    schema: pa.Schema
    doubtful: bool
    """A plain writer's: an identity may have two rows of one commit."""


class Reader(NamedTuple):
    """The redactions and the chain as a read knows them; the session's database, whose folder takes new files."""

    fence: RedactionFence
    proved: Callable[[TypeHead], bool]
    """Whether the type had such a head."""
    duck: Duck


async def arrived(shape: TypeInfo, arrivals: Sequence[Arrival], reader: Reader) -> list[Arrived]:
    def look(arrival: Arrival) -> Arrived:
        found = _looked_at(shape, arrival, reader)
        return _once(shape, found, arrival.number, reader.duck) if found.doubtful else found

    return await blocking(lambda: [look(each) for each in arrivals])


def _looked_at(shape: TypeInfo, arrival: Arrival, reader: Reader) -> Arrived:
    fence, proved, duck = reader
    folder = duck.folder
    number, entry, path = arrival
    path, mark = _carried_out(shape, arrival, fence, folder)
    try:
        path = _upgraded(shape, number, path, folder)
        with pq.ParquetFile(path) as file:
            schema, footer = file.schema_arrow, file.metadata
            columns, lacking = usable(shape, schema)
            swollen = SWELL * sum(footer.row_group(each).total_byte_size for each in range(footer.num_row_groups))
            rows = footer.num_rows
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{entry.path}: not a Parquet file ({error})") from error
    mark = max(mark, mark_in(schema.metadata))
    fence.check(mark, entry.path)
    if entry.stats is not None and entry.stats.redacted > mark:
        raise OldCopy(entry.path, entry.stats.redacted)
    if missing := {*shape.keys, "commit_id", "fields_json"} - set(schema.names):
        missed = ", ".join(sorted(missing))
        raise Corrupt(f"{entry.path}: not a data file of an ontology, it has no column {missed}")
    unique = not entry.snapshot if entry.stats is None else entry.stats.unique
    retracts = names.RETRACTED in schema.names
    until = names.UNTIL in schema.names and ORIGIN in (schema.metadata or {})
    looked = known(schema.metadata) if until else None
    sure = looked is not None and proved(looked)
    lasting = lasting_in(schema.metadata)
    loaded = Loaded(
        entry=entry,
        rows=rows,
        size=path.stat().st_size,
        columns=columns,
        lacking=lacking,
        unique=unique,
        path=str(path),
        retracts=retracts,
        until=until,
        through=looked.commit_id if sure and looked is not None else entry.last,
        beyond=looked is not None and not sure,
        doubled=until and (lasting is None or lasting.rows != rows),
        stray=names.UNTIL in schema.names and not until,
        numbered=tells_numbers((*schema.names, *shape.payload)),
    )
    return Arrived(loaded, swollen, schema.remove_metadata(), doubtful=not column_forms(schema))


def _once(shape: TypeInfo, found: Arrived, number: int, duck: Duck) -> Arrived:
    """The same without rows that another row of their identity and commit follows."""
    loaded, target = found.loaded, duck.folder / "once" / f"{number}.parquet"
    before = Path(loaded.path or "")
    path, rows = _without_doubles(shape, before, loaded.rows, duck, target)
    if path == before:
        return found
    return found._replace(loaded=replace(loaded, rows=rows, size=path.stat().st_size, path=str(path)))


def _carried_out(shape: TypeInfo, arrival: Arrival, fence: RedactionFence, folder: Path) -> tuple[Path, int]:
    """The file, or a copy without the payload that a pending redaction destroys; and its mark."""
    if not fence.concerns(shape.type_id):
        return arrival.path, 0
    body = arrival.path.read_bytes()
    after = fence.seen(body, arrival.entry.path, shape.type_id)
    if after == body:
        return arrival.path, 0
    return _instead(arrival.path, folder / "redacted" / f"{arrival.number}.parquet", after), fence.number


def _instead(path: Path, target: Path, body: bytes) -> Path:
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(body)
    if path.parent == target.parent.parent:
        path.unlink()
    return target


def _upgraded(shape: TypeInfo, number: int, path: Path, folder: Path) -> Path:
    """The file, or a copy with its rows upgraded to the newest version of the class."""
    if not shape.upgraders or not any(concerned(shape, version) for version in versions_in(path)):
        return path
    target = folder / "upgraded" / f"{number}.parquet"
    upgrade_file(path, target, shape)
    if path.is_relative_to(folder):
        path.unlink()
    return target


def _without_doubles(shape: TypeInfo, path: Path, rows: int, duck: Duck, target: Path) -> tuple[Path, int]:
    """The file, or a copy in which each identity has only the last of its rows of a commit; and the number of rows.

    The file itself is never changed: it may be a hard link to the store's.
    """
    identity = ", ".join(map(quoted, (*shape.keys, "commit_id")))
    found = duck.fetch(f"SELECT count(DISTINCT ({identity})) AS n FROM read_parquet($path)", {"path": str(path)})
    (distinct,) = found.column("n").to_pylist()
    if distinct == rows:
        return path, rows
    with pq.ParquetFile(path) as file:
        table = file.read()
    columns = (table.column(name).to_pylist() for name in (*shape.keys, "commit_id"))
    last = {key: number for number, key in enumerate(zip(*columns, strict=True))}
    target.parent.mkdir(exist_ok=True)
    pq.write_table(table.take(sorted(last.values())), target)
    return target, len(last)
