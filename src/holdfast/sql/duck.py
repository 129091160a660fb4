"""One in-memory DuckDB, sandboxed: no network, no extensions, no files outside its scratch directory.

* It keeps to ``memory_limit`` and spills into its own subdirectory of the session's scratch directory.
* ``open`` locks all settings before the first statement, so no statement can widen the sandbox.
* Statements run in a worker thread, each on its own cursor. If the caller is cancelled, the statement is interrupted
  and the caller continues when it has ended.
* SQL written by users gets a ``Duck`` of its own. It never shares one with statements of ours.

Errors: ``SqlFailed`` (fix the statement) if DuckDB rejects a statement, ``OutOfMemory`` if the memory limit is too
small even with spilling, ``MissingFile`` if a file named in a statement is missing.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
from pydantic import ByteSize, TypeAdapter

from holdfast.base.aio import blocking, interruptible
from holdfast.base.errors import HoldfastError, Invalid, Refused

T = TypeVar("T")
Params = Mapping[str, Any] | Sequence[Any]

THREAD_BYTES = 64 * 1024 * 1024
"""Memory per thread. With less, operators fail that could have spilled."""
ERROR_LINES, ERROR_LINE_CHARACTERS = 8, 300
"""How much of DuckDB's error message is passed on."""
BATCH_ROWS = 10_000
"""Rows of a streamed result that are in memory at a time."""
_BYTES = TypeAdapter(ByteSize)


class SqlFailed(Invalid):
    """DuckDB rejected a statement."""


class MalformedJson(SqlFailed):
    """A text that a statement reads as JSON is not JSON."""


class OutOfMemory(Invalid):
    """A statement needs more memory than the limit allows, even with spilling to disk."""

    default_remedy = (
        "raise ontology.s3_duckdb_memory_limit, read it with stream() in no order, "
        "or ask for less: a filter, fewer columns, a limit"
    )


class MissingFile(HoldfastError):
    """A file named in a statement is missing. The caller that placed it there fetches it again."""

    kind = "unavailable"


class Statement(NamedTuple):
    """One statement of a text, parsed but not run."""

    text: str
    reads: bool
    kind: str


class Duck:
    def __init__(
        self, folder: Path, *, memory_limit: str = "256MB", spill: str = "spill", returns_memory: bool = False
    ) -> None:
        """``folder`` is the scratch directory, the only one whose files it may read. Databases that spill into
        different subdirectories may share it.

        DuckDB's allocator keeps freed pages for later statements, outside ``memory_limit`` and once per thread. With
        ``returns_memory`` it gives them back to the system: slower for many small statements, but the process takes no
        more than the limit.
        """
        self.folder = folder
        self.memory_bytes = 0
        """The memory limit in bytes, as DuckDB reports it; known once the database is open."""
        self._memory_limit = memory_limit
        self._spill = folder / spill
        self._returns_memory = returns_memory
        self._root: duckdb.DuckDBPyConnection | None = None

    def open(self) -> None:
        """Blocking. ``Invalid`` if DuckDB rejects the memory limit."""
        config: dict[str, Any] = {
            "memory_limit": self._memory_limit,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
            "allow_persistent_secrets": False,
            "enable_external_file_cache": False,  # these files are local: the page cache holds them already
        }
        if self._returns_memory:
            config["allocator_bulk_deallocation_flush_threshold"] = "1MB"
        try:
            root = duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise Invalid(
                f"DuckDB does not open with a memory limit of {self._memory_limit!r}: {error}",
                remedy="set ontology.s3_duckdb_memory_limit to a size, such as 256MB",
            ) from error
        try:
            self._lock_down(root)
        except BaseException:
            root.close()
            raise
        self._root = root

    def _lock_down(self, root: "duckdb.DuckDBPyConnection") -> None:
        (found,) = root.execute("SELECT current_setting('memory_limit')").fetchall()
        self.memory_bytes = int(_BYTES.validate_python(found[0]))
        threads = min(os.cpu_count() or 1, max(1, self.memory_bytes // THREAD_BYTES))
        folder = _quoted(f"{self.folder}/")
        # Values are written into the text: DuckDB imports pandas, where it is installed, to bind its first parameter.
        root.execute(
            f"SET GLOBAL TimeZone = 'UTC'; SET threads = {threads:d}; "
            f"SET temp_directory = {_quoted(str(self._spill))}; "
            "SET GLOBAL parquet_metadata_cache = true; "  # files in this directory never change
            f"SET allowed_directories = [{folder}]; SET enable_external_access = false; SET lock_configuration = true"
        )

    async def close(self) -> None:
        """Idempotent."""
        root, self._root = self._root, None
        if root is not None:
            await blocking(root.close)

    def _cursor(self) -> "duckdb.DuckDBPyConnection":
        if self._root is None:
            raise Refused("the database is not open", remedy="ask within the session's `async with`")
        return self._root.cursor()

    # --- blocking: for code that runs in a worker thread already ---

    @contextmanager
    def _blocking_cursor(self) -> "Iterator[duckdb.DuckDBPyConnection]":
        with _errors_translated(), self._cursor() as cursor:
            yield cursor

    def execute(self, text: str, params: Params | None = None) -> None:
        with self._blocking_cursor() as cursor:
            cursor.execute(text, params)

    def fetch(self, text: str, params: Params | None = None) -> pa.Table:
        with self._blocking_cursor() as cursor:
            return cursor.execute(text, params).to_arrow_table()

    def statements(self, text: str) -> list[Statement]:
        """The statements of a text, parsed but not run."""
        reading = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        with self._blocking_cursor() as cursor:
            found = cursor.extract_statements(text)
        return [
            Statement(each.query.strip(), each.type in reading, str(each.type).rpartition(".")[2]) for each in found
        ]

    # --- asynchronous: in a worker thread ---

    async def table(
        self, text: str, params: Params | None = None, then: Callable[[pa.Table], pa.Table] | None = None
    ) -> pa.Table:
        """The whole result. ``then`` transforms it in the same worker thread."""
        cursor = self._cursor()

        def work() -> pa.Table:
            with cursor:
                found = cursor.execute(text, params).to_arrow_table()
            return found if then is None else then(found)

        return await _interruptible(cursor, work)

    async def run(self, text: str, params: Params | None = None) -> None:
        """For a statement without a result."""
        cursor = self._cursor()

        def work() -> None:
            with cursor:
                cursor.execute(text, params)

        await _interruptible(cursor, work)

    async def batches(
        self, text: str, params: Params | None = None, *, rows: int = BATCH_ROWS
    ) -> AsyncIterator[pa.RecordBatch]:
        """The result in batches, one in memory at a time."""
        cursor = self._cursor()
        try:
            reader = await _interruptible(cursor, lambda: cursor.execute(text, params).to_arrow_reader(rows))
            while (batch := await _interruptible(cursor, lambda: next(iter(reader), None))) is not None:
                yield batch
        finally:
            await blocking(cursor.close)


async def _interruptible(cursor: "duckdb.DuckDBPyConnection", work: Callable[[], T]) -> T:
    """Run ``work`` in a worker thread. If the caller is cancelled, ``work`` has ended, or never runs, afterwards."""

    def run() -> T:
        with _errors_translated():
            return work()

    def interrupt() -> None:
        with suppress(duckdb.Error):  # it ended just now and closed its cursor
            cursor.interrupt()

    return await interruptible(interrupt, run)


@contextmanager
def _errors_translated() -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        raise SqlFailed(f"the result cannot be represented as an Arrow table: {_first_line(error)}") from error
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemory(f"DuckDB ran out of memory: {_first_line(error)}") from error
    except duckdb.IOException as error:
        raise MissingFile(f"DuckDB cannot read a file: {_first_line(error)}") from error
    except duckdb.PermissionException as error:
        raise SqlFailed(
            "the statement leaves the store: it names a file, an address or an extension",
            remedy="read the tables of this store: entities, relations and their histories",
        ) from error
    except duckdb.Error as error:
        kind = MalformedJson if "Malformed JSON" in str(error) else SqlFailed
        raise kind(_shortened(error)) from error


def _quoted(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def _shortened(error: Exception) -> str:
    """DuckDB's message with its suggestions and the position in the statement, without the pages that may follow."""
    lines = [line.rstrip() for line in str(error).strip().splitlines() if line.strip()]
    some = "\n  ".join(line[:ERROR_LINE_CHARACTERS] for line in lines[:ERROR_LINES])
    return some or type(error).__name__


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.partition("\n")[0] if text else type(error).__name__
