"""What a job needs of an engine: relational steps over staged tables, and tasks.

**Relational steps** (``Planner``). Rows are read once from a data source, or computed by a kernel, and *staged*:
written to the store as Parquet (``staged``). SQL runs over staged tables only, so whatever an engine does with a
statement, twice or in any order, it sees one snapshot. The same text runs on Spark and on DuckDB.

A **kernel** works on rows inside a task, with the store open: it reads manifests, checks objects, decodes frames. It is
picklable and small: work travels as rows, never inside the kernel.

A kernel may run twice, at once or one after the other: what it writes it creates, under names that follow from its
input or that no other task can have.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from holdfast.objects.store import Store
from holdfast.pipeline.engine.staged import Part, Staged, Target
from holdfast.pipeline.tables.table import Table, Wanted

Progress = Callable[[int, int], None]
"""Called with the number of tasks that have ended, and the number of all tasks."""


def unwatched(done: int, total: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True)
class Query:
    """A SELECT over staged tables. ``views`` are named SELECTs that it may use, each only those before it."""

    select: str
    views: tuple[tuple[str, str], ...] = ()
    tables: Mapping[str, Staged] = field(default_factory=dict)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        """The query as one statement. ``names`` maps staged tables to the names that an engine gives them."""
        bound = [(name, f"SELECT * FROM {other}") for name, other in (names or {}).items()]
        bound += [(name, _without_rows(staged.schema)) for name, staged in self.tables.items() if staged.empty]
        steps = ",\n".join(f"{name} AS (\n{text}\n)" for name, text in (*bound, *self.views))
        return f"WITH {steps}\n{self.select}" if steps else self.select


_TYPES = {pa.string(): "STRING", pa.int64(): "BIGINT", pa.bool_(): "BOOLEAN", pa.float64(): "DOUBLE"}


def _without_rows(schema: pa.Schema) -> str:
    columns = ", ".join(f"CAST(NULL AS {_TYPES[column.type]}) AS {column.name}" for column in schema)
    return f"SELECT {columns} WHERE 1 = 0"


@dataclass(frozen=True)
class Spread:
    """How rows are divided among the tasks of a kernel."""

    by: tuple[str, ...]
    """Rows that are equal in these columns go to the same task, one after the other."""
    worth: int
    """The amount of work that is worth a task of its own."""
    order: tuple[str, ...] = ()
    """The order of rows within a task; the columns of ``by`` come first."""
    work: str = "1"
    """The work of a row: an SQL expression over its columns."""

    @property
    def sorting(self) -> tuple[str, ...]:
        return (*self.by, *self.order)

    def tasks(self, work: int, most: int) -> int:
        """The number of tasks; ``most`` of them can get rows, and one without rows costs the start of a Python worker
        too.
        """
        return min(MOST_TASKS, max(1, -(-work // self.worth)), most)


MOST_TASKS = 10_000


class Kernel(Protocol):
    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that it returns."""
        ...

    def rows(self, store: Store, given: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]: ...


async def grouped(
    given: AsyncIterator[pa.RecordBatch], by: Sequence[str], *, most: int | None = None
) -> AsyncIterator[list[dict[str, Any]]]:
    """For kernels: groups of consecutive rows that are equal in these columns; of a larger group ``most`` at a time."""
    rows: list[dict[str, Any]] = []
    async for batch in given:
        for row in batch.to_pylist():
            if rows and (len(rows) == most or any(row[name] != rows[0][name] for name in by)):
                yield rows
                rows = []
            rows.append(row)
    if rows:
        yield rows


class Planner(Protocol):
    """Plans and runs the relational steps of one job."""

    async def scan(self, table: Table, wanted: Wanted, target: Target, progress: Progress) -> list[Part]:
        """Read a data source once, its parts spread over tasks, and write the rows as parts of a staged table."""
        ...

    async def map(
        self, query: Query, kernel: Kernel, spread: Spread, target: Target, progress: Progress
    ) -> list[Part] | None:
        """Run the rows of a query through a kernel, and write what it gives as parts of a staged table; None if there
        are no rows to run.
        """
        ...

    async def fetch(self, query: Query) -> pa.Table:
        """All rows of a query, in this process."""
        ...

    async def explain(self, query: Query) -> str:
        """The engine's physical plan."""
        ...


class Engine(Protocol):
    async def cores(self) -> int:
        """How many tasks run at the same time. The first call starts what is needed, such as Spark."""
        ...

    def planner(self, store: Store, name: str) -> AbstractAsyncContextManager[Planner]: ...

    async def close(self) -> None: ...
