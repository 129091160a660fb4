"""A data file that the session has: what its columns and rows say, and the SQL that reads it. Pure."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.ontology.filters.scope import quoted
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.data.rows import column_forms, partial_columns
from holdfast.ontology.format.index import Entry
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo

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
