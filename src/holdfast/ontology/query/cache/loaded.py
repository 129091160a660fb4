"""A data file that the session has locally: where its rows are, and which of its typed columns are complete. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.data.rows import column_forms, partial_columns
from holdfast.ontology.format.index import Entry
from holdfast.ontology.types.typeinfo import TypeInfo

NUMBER = "file_row_number"
"""What DuckDB calls the number of a row in its file."""
_NUMBERS = {NUMBER, "rowid"}
"""The same, and what it calls that of a row in its table."""


def tells_numbers(columns: Iterable[str]) -> bool:
    """Whether DuckDB tells the numbers of rows with these columns: none of them is called like one."""
    return _NUMBERS.isdisjoint(map(str.lower, columns))


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file that can be scanned."""

    number: int
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
    """Where it lies, unless its rows are in a table."""
    retracts: bool = False
    """It has the column of retractions."""
    until: bool = False
    """Its rows say until when they were the latest."""
    through: int = 0
    """Up to which commit they do: the last of the file's own, or a later one."""
    beyond: bool = False
    """Some speak of commits after that, and nothing proves those."""
    lasting: int | None = None
    """So many rows come first that do not end, and all others have ended; None where they are not told apart."""
    stray: bool = False
    """It has a column of such ends that does not count."""
    table: str | None = None
    """The table that it is alone in; None and no path: it is in the type's table of small files."""
    redacted: int = 0
    """The latest commit that destroyed payload in it."""
    heeded: int = 0
    """Of the commits that destroy payload, the latest that whoever loaded it knew of, and carried out in it."""
    numbered: bool = True
    """DuckDB tells the numbers of its rows: no column is called like them, of it or of what is made of it."""
    partly: bool = False
    """Not all of it is fetched: statements have to say what they read of it (``reach.Reading``)."""

    @property
    def pooled(self) -> bool:
        """Whether it is in the type's table of small files."""
        return self.path is None and self.table is None

    @property
    def current(self) -> int | None:
        """How many of its first rows are all that no row it knows of has replaced; None where no number tells."""
        if not self.numbered:
            return None
        return self.lasting if self.until else self.rows

    @property
    def single(self) -> bool:
        """Whether its state has every identity once, without grouping."""
        return self.unique or self.until


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
