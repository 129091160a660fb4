"""Warm data of a session: the files that queries have read, where DuckDB can scan them again without a request.

Files never change and their keys are never used twice, so nothing here goes stale. Small files are loaded into one
DuckDB table per type, up to a quarter of the memory limit; all others stay on disk, in a folder that goes with the
session. What a file says of itself decides which of its typed columns may be relied on:

* a column counts if the file names its form, and it is the one that the type has now; in files that name none (of plain
  writers) a column of another Arrow type than text counts if the type is right;
* what does not count is NULL here, and the column is ``lacking``: then ``fields_json`` is asked.

Two rows of one identity and commit, which a plain writer can make, are one row here: the last.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt
from holdfast.objects.store import Store
from holdfast.ontology import names
from holdfast.ontology.columns import arrow_type
from holdfast.ontology.filters.scope import quoted
from holdfast.ontology.index import Entry
from holdfast.ontology.manifest import TypeId
from holdfast.ontology.rows import column_forms, partial_columns
from holdfast.ontology.shape import Shape
from holdfast.ontology.upgradefile import upgrade_file, versions_in
from holdfast.sql.duck import Duck
from holdfast.sql.scan import LocalFiles

PARALLEL = 16
"""Files on their way at a time."""
POOLED_BYTES = 4 * 1024 * 1024
"""Larger files are scanned where they lie."""
SYSTEM = ("commit_id", "schema_version_id", "fields_json", "_retracted")
"""The columns that every scan has, besides keys and fields."""
AT_ONCE = 256
"""Files that are loaded into a table by one statement: DuckDB keeps something of each until it ends."""
LISTED = 16
"""Files that a condition names one by one."""
SWELL = 3
"""About how much larger rows are in memory than in a file."""


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
    """None: it is in the type's table."""
    retracts: bool = False
    """It has the column of retractions."""


class Warm:
    def __init__(self, store: Store, memory_limit: str = "256MB") -> None:
        self._store = store
        self._memory_limit = memory_limit
        self._folder: Path | None = None
        self._duck: Duck | None = None
        self._files: LocalFiles | None = None
        self._loaded: dict[str, Loaded] = {}
        self._pools: dict[TypeId, str] = {}
        self._pooled: dict[TypeId, set[int]] = {}
        """The numbers of the files in each table."""
        self._room = 0
        self._count = 0
        self._tables = 0
        self._one = asyncio.Lock()

    @property
    def duck(self) -> Duck:
        if self._duck is None:
            self._open()
        if self._duck is None:
            raise RuntimeError("the database did not open")
        return self._duck

    def _open(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-sql-"))
        self._files = LocalFiles(self._store, self._folder)
        duck = Duck(self._folder, memory_limit=self._memory_limit, readable=self._files.folders)
        duck.execute("CREATE SCHEMA store")
        duck.lock()
        self._room = duck.memory_bytes // 4
        self._duck = duck

    async def close(self) -> None:
        duck, folder, files = self._duck, self._folder, self._files
        self._duck = self._folder = self._files = None
        self._loaded.clear()
        self._pools.clear()
        self._pooled.clear()
        if duck is not None:
            await blocking(duck.close)
        if files is not None:
            await files.close()
        if folder is not None:
            await blocking(shutil.rmtree, folder, ignore_errors=True)

    def forget(self) -> None:
        """Read everything again. Statements on their way keep the tables that they were made for."""
        self._loaded.clear()
        self._pools.clear()
        self._pooled.clear()

    def known(self, entry: Entry) -> bool:
        """Whether it can be scanned without a request."""
        return entry.path in self._loaded

    async def load(self, shape: Shape, entries: Sequence[Entry]) -> list[Loaded]:
        """These files, fetched where they are not here yet. ``MissingFile`` if one is gone."""
        if any(entry.path not in self._loaded for entry in entries):
            async with self._one:
                missing = [entry for entry in entries if entry.path not in self._loaded]
                if self._duck is None:
                    await blocking(self._open)
                fetched = await map_bounded(missing, self._fetch, limit=PARALLEL)
                await blocking(self._take_in, shape, fetched)
        return [self._loaded[entry.path] for entry in entries]

    async def _fetch(self, entry: Entry) -> tuple[int, Entry, Path]:
        self._count += 1
        number = self._count
        if self._files is None:
            raise RuntimeError("the session is closed")
        size = entry.stats.size if entry.stats is not None else None
        return number, entry, await self._files.place(entry.path, f"{number}.parquet", size)

    # --- blocking, one at a time ---

    def _take_in(self, shape: Shape, fetched: Iterable[tuple[int, Entry, Path]]) -> None:
        pooled: list[tuple[Loaded, Path, str]] = []
        for number, entry, fetched_to in fetched:
            loaded, swollen, signature, path = self._examined(shape, number, entry, fetched_to)
            if loaded.size <= POOLED_BYTES and swollen <= self._room:
                self._room -= swollen
                pooled.append((loaded, path, signature))
            else:
                self._loaded[entry.path] = loaded
        pooled.sort(key=lambda each: each[2])
        for _, group in groupby(pooled, key=lambda each: each[2]):
            alike = list(group)
            for start in range(0, len(alike), AT_ONCE):
                self._insert(shape, alike[start : start + AT_ONCE])

    def _examined(self, shape: Shape, number: int, entry: Entry, path: Path) -> tuple[Loaded, int, str, Path]:
        try:
            path = self._upgraded(shape, number, path)
            with pq.ParquetFile(path) as file:
                schema, footer = file.schema_arrow, file.metadata
                columns, lacking = _usable(shape, schema)
                swollen = SWELL * sum(footer.row_group(each).total_byte_size for each in range(footer.num_row_groups))
                rows = footer.num_rows
        except (pa.ArrowException, OSError) as error:
            raise Corrupt(f"{entry.path}: not a Parquet file ({error})") from error
        if missing := {*shape.keys, "commit_id", "fields_json"} - set(schema.names):
            missed = ", ".join(sorted(missing))
            raise Corrupt(f"{entry.path}: not a data file of an ontology, it has no column {missed}")
        ours = bool(column_forms(schema))
        if not ours:
            rows = self._without_doubles(shape, path, rows)
        unique = not entry.snapshot if entry.stats is None else entry.stats.unique
        size = path.stat().st_size
        retracts = names.RETRACTED in schema.names
        loaded = Loaded(number, entry, rows, size, columns, lacking, unique, str(path), retracts)
        return loaded, swollen, f"{retracts} {schema.remove_metadata()}", path

    def _upgraded(self, shape: Shape, number: int, path: Path) -> Path:
        """The file, or one of its own with the rows as the class of now has them."""
        upgrades = shape.upgrades
        if upgrades is None or self._folder is None or not any(map(upgrades.concerns, versions_in(path))):
            return path
        target = self._folder / "upgraded" / f"{number}.parquet"
        upgrade_file(path, target, upgrades, {name: shape.nodes[name] for name in shape.payload})
        if path.parent == self._folder:
            path.unlink()
        return target

    def _without_doubles(self, shape: Shape, path: Path, rows: int) -> int:
        """Of each identity and commit the last row is kept; the file is rewritten if need be. How many there are."""
        identity = ", ".join(map(quoted, (*shape.keys, "commit_id")))
        found = self.duck.fetch(
            f"SELECT count(DISTINCT ({identity})) AS n FROM read_parquet($path)", {"path": str(path)}
        )
        (distinct,) = found.column("n").to_pylist()
        if distinct == rows:
            return rows
        with pq.ParquetFile(path) as file:
            table = file.read()
        columns = (table.column(name).to_pylist() for name in (*shape.keys, "commit_id"))
        last = {key: number for number, key in enumerate(zip(*columns, strict=True))}
        pq.write_table(table.take(sorted(last.values())), path)
        return len(last)

    def _insert(self, shape: Shape, group: Sequence[tuple[Loaded, Path, str]]) -> None:
        pool = self._pool(shape)
        first = group[0][0]
        listed = ", ".join(self._projected(shape, first, (*SYSTEM, *shape.payload)))
        paths = [str(path) for _, path, _ in group]
        # The name of a file is its number.
        self.duck.execute(
            f"INSERT INTO {pool} SELECT CAST(parse_filename(filename, true) AS INTEGER), {listed} "
            "FROM read_parquet($paths, filename = true)",
            {"paths": paths},
        )
        for loaded, path, _ in group:
            path.unlink()
            entry = loaded.entry
            kept = (loaded.number, entry, loaded.rows, loaded.size, loaded.columns, loaded.lacking, loaded.unique)
            self._loaded[entry.path] = Loaded(*kept, path=None, retracts=loaded.retracts)
            self._pooled.setdefault(shape.type_id, set()).add(loaded.number)

    def _pool(self, shape: Shape) -> str:
        pool = self._pools.get(shape.type_id)
        if pool is None:
            pool = f"store.pool_{self._tables}"
            self._tables += 1
            columns = [f"{quoted(name)} VARCHAR" for name in shape.keys]
            columns += ["commit_id BIGINT", "schema_version_id BIGINT", "fields_json VARCHAR", "_retracted BOOLEAN"]
            columns += [f"{quoted(name)} {duck_type(arrow_type(shape.nodes[name]))}" for name in shape.payload]
            self.duck.execute(f"CREATE TABLE {pool} (_file INTEGER, {', '.join(columns)})")
            self._pools[shape.type_id] = pool
        return pool

    def _projected(self, shape: Shape, loaded: Loaded, columns: Sequence[str]) -> list[str]:
        """The columns of a file as every scan of the type has them."""
        found = [quoted(name) for name in shape.keys]
        for name in columns:
            if name == names.RETRACTED:
                gone = "coalesce(_retracted, false)" if loaded.retracts else "false"
                found.append(f"{gone} AS _retracted")
            elif name in SYSTEM or name in loaded.columns:
                found.append(quoted(name))
            else:
                found.append(f"NULL::{duck_type(arrow_type(shape.nodes[name]))} AS {quoted(name)}")
        return found

    # --- SQL ---

    def scans(self, shape: Shape, files: Sequence[Loaded], columns: Sequence[str]) -> list[tuple[str, list[Any]]]:
        """SELECTs that together give all rows of these files, by keys and these columns, and their parameters."""
        found: list[tuple[str, list[Any]]] = []
        pooled = [each.number for each in files if each.path is None]
        if pooled:
            listed = ", ".join(map(quoted, (*shape.keys, *columns)))
            text = f"SELECT {listed} FROM {self._pools[shape.type_id]}"
            condition, params = _among(pooled, self._pooled[shape.type_id])
            found.append((f"{text}{condition}", params))
        on_disk = sorted((each for each in files if each.path is not None), key=_alike)
        for _, group in groupby(on_disk, key=_alike):
            same = list(group)
            listed = ", ".join(self._projected(shape, same[0], columns))
            text = f"SELECT {listed} FROM read_parquet(?::VARCHAR[], union_by_name = true)"
            found.append((text, [[each.path for each in same]]))
        return found


def _among(wanted: Sequence[int], present: set[int]) -> tuple[str, list[Any]]:
    """A condition for rows of these files. Plain comparisons where they are short: they cost next to nothing."""
    others = present.difference(wanted)
    if not others:
        return "", []
    for some, word in ((wanted, "IN"), (others, "NOT IN")):
        if len(some) <= LISTED:
            return f" WHERE _file {word} ({', '.join(map(str, sorted(some)))})", []
    return " WHERE _file IN (SELECT unnest(?::INTEGER[]))", [list(wanted)]


def _alike(loaded: Loaded) -> tuple[Any, ...]:
    """Files that one scan can read."""
    return loaded.columns, loaded.retracts


def _usable(shape: Shape, schema: pa.Schema) -> tuple[tuple[str, ...], frozenset[str]]:
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
