"""SQL that scans files: which of their columns are read, and which of their rows. Pure."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.format.parquet.byte_ranges import Reading
from holdfast.ontology.query.cache.loaded import NUMBER, Loaded, duck_type
from holdfast.ontology.types import names
from holdfast.ontology.types.typeinfo import TypeInfo

SYSTEM = ("commit_id", "schema_version_id", "fields_json", "_retracted")
"""The columns that every scan has, besides keys and fields."""
_NOTHING = "CAST('-0.0' AS DOUBLE)"
"""What changes no number that it is added to, but keeps DuckDB from its statistics: those of files leave NaN out, and
DuckDB (1.5.5) takes them for bounds of all values."""
LISTED = 16
"""Files that a condition names one by one."""


def projected(shape: TypeInfo, loaded: Loaded, columns: Sequence[str]) -> list[str]:
    """The columns of a file as every scan of the type has them."""
    found = [quoted(name) for name in shape.keys]
    for name in columns:
        if name == names.RETRACTED:
            gone = "coalesce(_retracted, false)" if loaded.retracts else "false"
            found.append(f"{gone} AS _retracted")
        elif name == names.UNTIL:
            found.append(_ends(loaded))
        elif name == shape.key_text and name in loaded.columns and name not in loaded.lacking:
            found.append(f"{quoted(shape.keys[0])} AS {quoted(name)}")  # the same text: one column less is read
        elif name in loaded.columns and arrow_type(shape.nodes[name]) == pa.float64():
            found.append(f"{quoted(name)} + {_NOTHING} AS {quoted(name)}")
        elif name in SYSTEM or name in loaded.columns:
            found.append(quoted(name))
        else:
            found.append(f"NULL::{duck_type(arrow_type(shape.nodes[name]))} AS {quoted(name)}")
    return found


def reading(shape: TypeInfo, file: Loaded, columns: Sequence[str]) -> Reading:
    """Where a file lies, for a scan of these columns: those that the scan may read, whatever other files it reads."""
    ends = (names.UNTIL, "commit_id") if file.until else ()
    found = (name for name in columns if name in SYSTEM or name in file.columns)
    return Reading.of(file.path or "", (*shape.keys, *ends, *found))


def declared(shape: TypeInfo) -> list[str]:
    """The same columns, as those of a table."""
    columns = [f"{quoted(name)} VARCHAR" for name in shape.keys]
    columns += ["commit_id BIGINT", "schema_version_id BIGINT", "fields_json VARCHAR", "_retracted BOOLEAN"]
    columns.append("_until BIGINT")
    return [*columns, *(f"{quoted(name)} {duck_type(arrow_type(shape.nodes[name]))}" for name in shape.payload)]


def numbered(shape: TypeInfo, file: Loaded, columns: Sequence[str], latest_at: int) -> Sql:
    """The rows of one large file with their numbers, without those of which it says that they are replaced."""
    latest = lasting([file], latest_at)
    condition = f" WHERE {latest}" if latest else ""
    if file.table is not None:
        named = ", ".join(map(quoted, (*shape.keys, *columns)))
        return Sql(f"SELECT {named}, rowid AS {NUMBER} FROM {file.table}{condition}")
    listed = ", ".join((*projected(shape, file, columns), NUMBER))
    name, params = _names([file], shape, columns)
    return Sql(f"SELECT {listed} FROM read_parquet({name}, {NUMBER} = true){condition}", tuple(params))


def written(file: Loaded) -> str:
    """The name of a file in SQL. It is the session's own, and no value: to bind it takes longer than to read it, and
    DuckDB imports pandas, if there is one, for the first parameter of a process."""
    return "'{}'".format((file.path or "").replace("'", "''"))


def _names(files: Sequence[Loaded], shape: TypeInfo, columns: Sequence[str]) -> tuple[str, list[Reading]]:
    """Names of files in SQL. Those of which only parts are here are bound, so that their readings go with them."""
    names_of = ", ".join("?::VARCHAR" if each.partly else written(each) for each in files)
    return names_of, [reading(shape, each, columns) for each in files if each.partly]


def among(wanted: Sequence[int], present: set[int]) -> tuple[str, list[Any]]:
    """A condition for rows of these files. Plain comparisons where they are short: they cost next to nothing.

    Files that are loaded between the making of a statement and its run have higher numbers than all that are present.
    """
    others = present.difference(wanted)
    if others and len(wanted) <= LISTED:
        return f"_file IN ({_listed(wanted)})", []
    if len(others) <= LISTED:
        without = f" AND _file NOT IN ({_listed(others)})" if others else ""
        return f"_file <= {max(present):d}{without}", []
    return "_file IN (SELECT unnest(?::INTEGER[]))", [list(wanted)]


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))


def _ends(loaded: Loaded) -> str:
    """Until when rows last, as far as it is proved."""
    if not loaded.until:
        return "NULL::BIGINT AS _until"
    return f"CASE WHEN _until <= {loaded.through:d} THEN _until END AS _until" if loaded.beyond else "_until"


def lasting(files: Sequence[Loaded], latest_at: int | None) -> str:
    """A condition for rows that none they know of replaces by that commit; of history, not by their own.

    Files that say more than is proved are alone, or with others that are proved as far as they are.
    """
    if not any(each.until for each in files):
        return ""
    apart = all(each.current is not None for each in files)
    if latest_at is None:
        # Where rows are told apart no identity has two of one commit.
        return "" if apart else "_until IS DISTINCT FROM commit_id"
    sure = min([latest_at, *(each.through for each in files if each.beyond)])
    if any(each.through > sure or each.beyond for each in files):
        return f"(_until IS NULL OR _until > {sure:d})"
    return _first(files) if apart else "_until IS NULL"


def _first(files: Sequence[Loaded]) -> str:
    """The same for the latest rows of files that have them first, by their numbers: DuckDB asks each row for its end,
    and a question takes a third longer, but it leaves row groups out and compares numbers in next to no time."""
    most = max(each.current or 0 for each in files)
    if all(each.current == each.rows for each in files):
        return ""
    one_number = all(each.current in (each.rows, most) for each in files)
    return f"{NUMBER} < {most:d}" if one_number else "_until IS NULL"


def alike(loaded: Loaded) -> tuple[Any, ...]:
    """Files that one scan can read: one without ends of rows has none in it either."""
    return loaded.columns, loaded.retracts, loaded.stray, loaded.through if loaded.beyond else -1


class Pool(NamedTuple):
    """The table of a type's small files, and the numbers of those that are in it."""

    table: str
    numbers: set[int]


def scans(
    shape: TypeInfo, files: Sequence[Loaded], columns: Sequence[str], latest_at: int | None, pool: Pool
) -> list[tuple[str, list[Any]]]:
    """See ``Warm.scans``."""
    found: list[tuple[str, list[Any]]] = []
    pooled = [each.number for each in files if each.pooled]
    named = ", ".join(map(quoted, (*shape.keys, *columns)))
    for each in files:
        if each.table is not None:
            latest = lasting([each], latest_at)
            found.append((f"SELECT {named} FROM {each.table}{f' WHERE {latest}' if latest else ''}", []))
    if pooled:
        text = f"SELECT {named} FROM {pool.table}"
        condition, params = among(pooled, pool.numbers)
        latest = lasting([each for each in files if each.pooled], latest_at)
        conditions = " AND ".join(each for each in (condition, latest) if each)
        found.append((f"{text} WHERE {conditions}" if conditions else text, params))
    on_disk = sorted((each for each in files if each.path is not None), key=alike)
    for _, group in groupby(on_disk, key=alike):
        same = sorted(group, key=lambda each: not each.until)
        listed = ", ".join(projected(shape, same[0], columns))
        latest = lasting(same, latest_at)
        options = ", union_by_name = true" if len(same) > 1 else ""
        if NUMBER in latest:
            options += f", {NUMBER} = true"
        named_files, readings = _names(same, shape, columns)
        text = f"SELECT {listed} FROM read_parquet([{named_files}]{options})"
        found.append((f"{text} WHERE {latest}" if latest else text, [*readings]))
    return found
