"""Duck: one DuckDB database of a session's own, in memory, behind bars.

* It keeps to ``memory_limit`` and spills into ``folder``, which is ours and goes when the session goes.
* It reads files below the folders that it was given, and nothing else: no network, no other files, no extensions, no
  Python objects by name; and nobody can change its settings afterwards.
* Statements run off the loop, each on a cursor of its own. A caller that is cancelled interrupts its statement.
* To open takes as long as some questions, so it can be begun while files are on their way: statements wait for it, and
  those that did are run by the thread that opened it: no way to the loop and back, and its memory is at hand.
* Threads of its own cost a small first statement more than they save it. Who puts no statements of others to it may
  have it opened with none (``alone``): it gets them, and its settings are locked, before the first statement that has
  not waited, or before those that have if they read much (``wide``).

Errors: ``SqlFailed`` (fix the statement) for what DuckDB refuses, ``OutOfMemory`` where the limit does not suffice even
with spilling, ``MissingFile`` where a file that was handed over has gone.
"""

import asyncio
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
from pydantic import ByteSize, TypeAdapter

from holdfast.base.aio import blocking
from holdfast.base.errors import HoldfastError, Invalid, Refused
from holdfast.sql.spare import Spare

T = TypeVar("T")
Params = Mapping[str, Any] | Sequence[Any]

THREAD_BYTES = 64 * 1024 * 1024
"""Memory for which there is one thread."""
LINES_MOST, LINE_MOST = 8, 300
"""Of an error message."""
BATCH_ROWS = 10_000
"""Rows of a streamed result that are in memory at a time."""
# The files that it gets never change.
_LAST = "SET GLOBAL parquet_metadata_cache = true; SET lock_configuration = true"
_BYTES = TypeAdapter(ByteSize)
_SIZE = re.compile(r"\s*\d+(\.\d+)?\s*[kmgt]i?b\s*", re.IGNORECASE)


class SqlFailed(Invalid):
    """DuckDB refused a statement."""


class MalformedJson(SqlFailed):
    """A text that a statement reads as JSON is none."""


class OutOfMemory(Invalid):
    """A statement needs more memory than it may have, even though it may spill to disk."""

    default_remedy = (
        "raise ontology.s3_duckdb_memory_limit, read it with stream() in no order, "
        "or ask for less: a filter, fewer columns, a limit"
    )


class MissingFile(HoldfastError):
    """A file that was handed to DuckDB is not there any more: whoever handed it over gets it again."""

    kind = "unavailable"


class Statement(NamedTuple):
    """One statement of a text, and whether it only reads."""

    text: str
    reads: bool
    kind: str


class Duck:
    def __init__(
        self, folder: Path, *, memory_limit: str = "256MB", readable: Sequence[Path] = (), threads: int | None = None
    ) -> None:
        """``readable`` are the folders besides ``folder`` whose files it may read. It is not open yet."""
        self.folder = folder
        self.names = 0
        """How many files have got a name in its folder."""
        self.written = False
        """Whether anything but questions was put to it."""
        self.memory_bytes = _bytes_in(memory_limit)
        """What it may use; 0 as long as that is not known, of a limit that only DuckDB understands."""
        self._memory_limit = memory_limit
        self._folders = [f"{path}/" for path in (folder, *readable)]
        self._threads = threads
        self.wide = False
        """Whether what waits for it reads so much that threads pay."""
        self._alone = False
        """It has no threads yet, and settings can be changed."""
        self._early = True
        """Those that waited for it have not all run."""
        self._cursors: set[int] = set()
        self._root: duckdb.DuckDBPyConnection | None = None
        self.opening: asyncio.Future[None] | None = None
        """Until it is open: whatever opens it in the background, and serves who waits for it then."""
        self._lock = threading.Lock()

    def open(self, *, alone: bool = False) -> None:
        """Blocking. From here on it reads only what it was given, and no setting can be changed; if it is ``alone``, by
        those that have not waited for it."""
        root = self._connected(1 if alone else _most_threads(self.memory_bytes, self._threads))
        try:
            if not self.memory_bytes:
                (found,) = root.execute("SELECT current_setting('memory_limit')").fetchall()
                self.memory_bytes = int(_BYTES.validate_python(found[0]))
            # None of these settings can be given to connect(). The folders are our own; DuckDB imports pandas, if there
            # is one, to bind its first parameter.
            folders = ", ".join("'{}'".format(each.replace("'", "''")) for each in self._folders)
            root.execute(
                f"SET GLOBAL TimeZone = 'UTC'; SET allowed_directories = [{folders}]; "
                f"SET enable_external_access = false{'' if alone else f'; {_LAST}'}"
            )
        except BaseException:
            root.close()
            raise
        self._root, self._alone = root, alone
        if self.wide:
            self.join()

    def _connected(self, threads: int | None) -> "duckdb.DuckDBPyConnection":
        """A database without bars. ``Invalid`` for a memory limit that is none."""
        config: dict[str, Any] = {
            "memory_limit": self._memory_limit,
            "temp_directory": f"{self.folder}/spill",
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "allow_community_extensions": False,
            "python_enable_replacements": False,
            "allow_persistent_secrets": False,
            "enable_external_file_cache": False,  # the system has these files in memory already
        }
        if threads is not None:
            config["threads"] = threads
        try:
            return duckdb.connect(":memory:", config=config)
        except duckdb.Error as error:
            raise Invalid(
                f"DuckDB does not open with a memory limit of {self._memory_limit!r}: {error}",
                remedy="set ontology.s3_duckdb_memory_limit to a size, such as 256MB",
            ) from error

    def join(self) -> None:
        """Blocking: give it its threads, and lock its settings, if that was left for later."""
        with self._lock:
            if self._root is not None and self._alone:
                most = _most_threads(self.memory_bytes, self._threads)
                threads = "RESET threads" if most is None else f"SET threads = {most:d}"
                with closing(self._root.cursor()) as cursor:
                    with suppress(duckdb.Error):  # the system has no thread to give: it goes on without
                        cursor.execute(threads)
                    cursor.execute(_LAST)
                self._alone = False

    def serve(self) -> None:
        """Blocking, once it is open."""
        self._early = False
        self.join()

    async def ready(self) -> None:
        """Until it is open."""
        if self._root is None and self.opening is not None:
            await asyncio.shield(self.opening)

    async def close(self) -> None:
        if (root := self.let_go()) is not None:
            await blocking(root.close)

    @property
    def open_already(self) -> bool:
        return self._root is not None

    @property
    def untouched(self) -> bool:
        """Whether it is as it was when it was opened, and nothing goes on in it."""
        return self._root is not None and not (self.written or self._cursors or self._alone)

    def take_over(self, spare: Spare) -> None:
        """Be open with one that was opened before, on the same terms and with the same folder."""
        self._root, self.names, self.memory_bytes = spare.root, spare.names, spare.memory_bytes

    def let_go(self) -> "duckdb.DuckDBPyConnection | None":
        """What it was open with; from here on it is closed."""
        with self._lock:
            root, self._root, self.opening = self._root, None, None
        return root

    def name(self) -> int:
        """A number that no file in its folder has had."""
        self.names += 1
        return self.names

    @contextmanager
    def _cursor(self) -> "Iterator[duckdb.DuckDBPyConnection]":
        self._join_if_late()
        cursor = self._begun()
        try:
            yield cursor
        finally:
            self._ended(cursor)

    def _begun(self) -> "duckdb.DuckDBPyConnection":
        if self._root is None:
            raise Refused("the database is not open", remedy="ask within the session's `async with`")
        cursor = self._root.cursor()
        self._cursors.add(id(cursor))
        return cursor

    def _ended(self, cursor: "duckdb.DuckDBPyConnection") -> None:
        cursor.close()
        self._cursors.discard(id(cursor))

    def _join_if_late(self) -> None:
        """Whoever has a first answer on its way needs the processors: it is left to the next statement."""
        if self._alone and not self._early:
            _guarded(self.join)

    # --- blocking: for code that is off the loop already, of a database that is open ---

    def execute(self, text: str, params: Params | None = None) -> None:
        self.written = True
        with self._cursor() as cursor:
            _guarded(lambda: cursor.execute(text, params))

    def fetch(self, text: str, params: Params | None = None) -> pa.Table:
        with self._cursor() as cursor:
            return _guarded(lambda: cursor.execute(text, params).to_arrow_table())

    def statements(self, text: str) -> list[Statement]:
        """The statements of a text, parsed and not run."""
        reading = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
        with self._cursor() as cursor:
            found = _guarded(lambda: cursor.extract_statements(text))
        return [
            Statement(each.query.strip(), each.type in reading, str(each.type).rpartition(".")[2]) for each in found
        ]

    # --- for everybody else ---

    async def table(
        self, text: str, params: Params | None = None, then: Callable[[pa.Table], pa.Table] | None = None
    ) -> pa.Table:
        """The whole result; ``then`` makes another table of it, without another way off the loop and back."""
        await self.ready()
        cursor = self._begun()
        return await self._watched(cursor, lambda: cursor.execute(text, params).to_arrow_table(), close=True, then=then)

    async def run(self, text: str, params: Params | None = None) -> None:
        """For what has no result. A caller that is cancelled interrupts it, and goes on when it has ended."""
        self.written = True
        await self.ready()
        cursor = self._begun()
        work = asyncio.ensure_future(self._watched(cursor, lambda: cursor.execute(text, params), close=True))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            with suppress(duckdb.Error):  # it ended by itself just now
                cursor.interrupt()
            await asyncio.wait([work])
            if not work.cancelled():
                work.exception()  # of a statement that was interrupted
            raise

    async def batches(
        self, text: str, params: Params | None = None, *, rows: int = BATCH_ROWS
    ) -> AsyncIterator[pa.RecordBatch]:
        """The result in pieces; only one of them is in memory."""
        await self.ready()
        cursor = self._begun()
        try:
            reader = await self._watched(cursor, lambda: cursor.execute(text, params).to_arrow_reader(rows))
            while True:
                batch = await self._watched(cursor, lambda: next(iter(reader), None))
                if batch is None:
                    return
                yield batch
        finally:
            await blocking(self._ended, cursor)

    async def _watched(
        self,
        cursor: "duckdb.DuckDBPyConnection",
        work: Callable[[], T],
        *,
        close: bool = False,
        then: Callable[[T], T] | None = None,
    ) -> T:
        """Off the loop; a caller that is cancelled interrupts it."""

        def run() -> T:
            try:
                self._join_if_late()
                found = _guarded(work)
            finally:
                if close:
                    self._ended(cursor)
            return found if then is None else then(found)

        try:
            return await blocking(run)
        except asyncio.CancelledError:
            with suppress(duckdb.Error):  # it ended by itself just now
                cursor.interrupt()
            raise


def _most_threads(memory_bytes: int, threads: int | None) -> int | None:
    """Every thread needs room of its own: with too little of it, operators fail that could have spilled."""
    if threads is not None or not memory_bytes:
        return threads
    room = max(1, memory_bytes // THREAD_BYTES)
    return room if room < (os.cpu_count() or 1) else None


def _bytes_in(memory_limit: str) -> int:
    """0 if it is not known, of a limit that only DuckDB understands."""
    return int(_BYTES.validate_python(memory_limit)) if _SIZE.fullmatch(memory_limit) else 0


def _guarded(work: Callable[[], T]) -> T:
    try:
        return work()
    except pa.ArrowException as error:
        raise SqlFailed(f"the result has no form as a table: {_first_line(error)}") from error
    except duckdb.OutOfMemoryException as error:
        raise OutOfMemory(f"DuckDB ran out of memory: {_first_line(error)}") from error
    except duckdb.IOException as error:
        raise MissingFile(f"DuckDB cannot read a file: {_first_line(error)}") from error
    except duckdb.PermissionException as error:
        raise SqlFailed(
            "the statement leaves the store: it names a file, an address or an extension",
            remedy="read the tables that are there: entities, relations and their histories",
        ) from error
    except duckdb.Error as error:
        kind = MalformedJson if "Malformed JSON" in str(error) else SqlFailed
        raise kind(_told(error)) from error


def _told(error: Exception) -> str:
    """What DuckDB says, with its suggestions and the place in the statement; not the pages that may follow."""
    lines = [line.rstrip() for line in str(error).strip().splitlines() if line.strip()]
    return "\n  ".join(line[:LINE_MOST] for line in lines[:LINES_MOST]) if lines else type(error).__name__


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.partition("\n")[0] if text else type(error).__name__
