"""The engine in this process: DuckDB for relational steps, and kernels and tasks on the caller's loop and store.

No Java, no other process. DuckDB gets half of the memory setting, and spills into a scratch directory below the
temporary one, which is removed when the planner ends. The other half is for what DuckDB does not count: a row group
that is being written, the part that it belongs to, the rows that a kernel works on. Freed memory is returned to the
system, so the halves do not add up from step to step. Staged parts are read as local files, each fetched once.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.scratch import Scratch
from holdfast.objects.store import Store
from holdfast.pipeline.engine.staged import Part, Staged, Target, write_parts
from holdfast.pipeline.tables.table import Table, Wanted

if TYPE_CHECKING:
    from holdfast.pipeline.engine.protocol import Kernel, Progress, Query, Spread
    from holdfast.sql.duck import Duck

MEMORY = 256 * 1000 * 1000
"""Bytes by which the relational steps of a job may grow this process."""
BATCH_ROWS = 2_000
"""Rows that a kernel gets at a time: of each it may make several, as Python objects."""
FOLDER = "holdfast-local-"
FILES_AT_ONCE = 4
_TYPES = {pa.string(): "VARCHAR", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN", pa.float64(): "DOUBLE"}


class Inline:
    """Jobs in this process."""

    def __init__(self, *, cores: int = 1, memory: int = MEMORY) -> None:
        self._cores = cores
        self._memory = memory

    async def cores(self) -> int:
        return self._cores

    @asynccontextmanager
    async def planner(self, store: Store, name: str) -> "AsyncIterator[LocalPlanner]":
        planner = LocalPlanner(store, self._memory)
        try:
            yield planner
        finally:
            await planner.close()

    async def close(self) -> None:
        """Holds nothing that must be closed."""


class LocalPlanner:
    def __init__(self, store: Store, memory: int) -> None:
        self._store = store
        self._memory = memory
        self._scratch: Scratch | None = None
        self._duck: Duck | None = None
        self._bound: dict[str, Staged] = {}

    async def scan(self, table: Table, wanted: Wanted, target: Target, progress: "Progress") -> list[Part]:
        return await self.read(table, wanted, await table.plan(self._store, wanted), target, progress)

    async def read(
        self, table: Table, wanted: Wanted, parts: Sequence[Any], target: Target, progress: "Progress"
    ) -> list[Part]:
        """Stage these parts of a data source."""

        async def rows() -> AsyncIterator[pa.RecordBatch]:
            for done, part in enumerate(parts, 1):
                async for batch in table.read(self._store, part, wanted):
                    yield batch
                progress(done, len(parts))

        return await write_parts(self._store, target, rows())

    async def map(
        self, query: "Query", kernel: "Kernel", spread: "Spread", target: Target, progress: "Progress"
    ) -> list[Part] | None:
        duck = await self._with(query)
        ordered = f"SELECT * FROM (\n{query.text()}\n) ORDER BY {', '.join(spread.sorting)}"
        async with aclosing(duck.batches(ordered, rows=BATCH_ROWS)) as rows:  # type: ignore[type-var]  # it is a generator
            with _limit_named():
                first = await anext(rows, None)
                if first is None:
                    return None

                async def given() -> AsyncIterator[pa.RecordBatch]:
                    yield first
                    async for batch in rows:
                        yield batch

                found = await write_parts(self._store, target, kernel.rows(self._store, given()))
        progress(1, 1)
        return found

    async def fetch(self, query: "Query") -> pa.Table:
        duck = await self._with(query)
        with _limit_named():
            return await duck.table(query.text())

    async def explain(self, query: "Query") -> str:
        duck = await self._with(query)
        found = await duck.table(f"EXPLAIN {query.text()}")
        return "\n".join(found.column(1).to_pylist())

    async def _with(self, query: "Query") -> "Duck":
        """The database, with the staged tables of a query as views."""
        duck = await self._open()
        for name, staged in query.tables.items():
            if not staged.empty and self._bound.get(name) != staged:
                await self._bind(duck, name, staged)
                self._bound[name] = staged
        return duck

    async def _open(self) -> "Duck":
        from holdfast.sql.duck import Duck  # noqa: PLC0415  # loads DuckDB, which takes a while

        if self._duck is None:
            self._scratch = await blocking(Scratch, FOLDER)
            await blocking(self._scratch.sweep)
            self._duck = Duck(self._scratch.path, memory_limit=f"{self._memory // 2}B", returns_memory=True)
            await blocking(self._duck.open)
        return self._duck

    async def _bind(self, duck: "Duck", name: str, staged: Staged) -> None:
        from holdfast.sql.files import LocalFiles  # noqa: PLC0415  # as above

        files = LocalFiles(self._store, duck.folder)

        async def place(part: Part) -> Path:
            return await files.place(part.key, part.key.rpartition("/")[2], part.bytes)

        if not staged.parts:
            columns = ", ".join(f"{column.name} {_TYPES[column.type]}" for column in staged.schema)
            await duck.run(f"CREATE OR REPLACE TABLE {name} ({columns})")
            return
        paths = await map_bounded(staged.parts, place, limit=FILES_AT_ONCE)
        listed = ", ".join(f"'{path}'" for path in paths)
        await duck.run(f"CREATE OR REPLACE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")

    async def close(self) -> None:
        if self._duck is not None:
            await self._duck.close()
        if self._scratch is not None:
            await blocking(self._scratch.close)


@contextmanager
def _limit_named() -> Iterator[None]:
    """Names the setting of this engine, where DuckDB's own error names that of sessions."""
    from holdfast.sql.duck import OutOfMemory  # noqa: PLC0415  # as above

    try:
        yield
    except OutOfMemory as error:
        raise OutOfMemory(str(error), remedy="raise pipeline.memory, or run the job on Spark") from error
