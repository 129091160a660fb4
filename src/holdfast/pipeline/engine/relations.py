"""The relational side of one run of a job: staged tables by name, views over them, and queries.

    async with relations(env, run_id) as work:
        await work.scan("objects", ObjectsTable(prefixes))              # read once, then staged
        await work.map("claims", "SELECT ... FROM objects", Claims())   # rows through a kernel, then staged
        work.view("missing", "SELECT ... FROM claims ANTI JOIN objects ON ...")
        rows = await work.rows("SELECT rule, count(*) AS n FROM missing GROUP BY rule")

The order of ``scan`` and ``map`` is the order in which the job reads the store: each is complete before the next one
begins. A step that this run has already staged is not done again. ``rows`` fails above its limit: the driver holds
counts and hours, not the rows of a job.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.base.errors import Corrupt, check
from holdfast.objects.store import Store
from holdfast.pipeline.engine.protocol import Engine, Kernel, Planner, Progress, Query, Spread
from holdfast.pipeline.engine.staged import (
    Part,
    Staged,
    Target,
    find_staged,
    publish,
    remove,
    run_folder,
    write_parts,
)
from holdfast.pipeline.tables.table import Conditions, Table, Wanted

MOST_ROWS = 100_000
_WORD = re.compile(r"[a-z_]+")

Watch = Callable[[str], Progress]


@dataclass(frozen=True)
class Step:
    """One step of a job for ``explain``: what it does, and for a query its text and the engine's plan."""

    step: str
    does: str
    sql: str = ""
    plan: str = ""


class Relations:
    def __init__(self, store: Store, engine: Engine, planner: Planner, run_id: str, watch: Watch) -> None:
        self._store = store
        self._engine = engine
        self._planner = planner
        self._run_id = run_id
        self._watch = watch
        self._there: set[str] | None = None
        """The documents of tables that were staged when this driver began; listed when the first one is needed."""
        self._tables: dict[str, Staged] = {}
        self._views: dict[str, str] = {}

    async def scan(self, name: str, table: Table, conditions: Conditions | None = None) -> Staged:
        """Stage the rows of a data source."""
        target = Target(self._run_id, name, table.schema)
        cores = await self._engine.cores()
        wanted = Wanted(tuple(table.schema.names), conditions or Conditions(), cores)
        staged = await self._find(target)
        if staged is None:
            parts = await self._planner.scan(table, wanted, target, self._watch(name))
            staged = await self._stage(target, parts)
        self._tables[name] = staged
        return staged

    async def map(self, name: str, select: str, kernel: Kernel, spread: Spread) -> Staged:
        """Stage the rows that a kernel returns for the rows of a SELECT. Without rows nothing is staged: the next
        driver of the run finds the same staged tables, and so no rows either.
        """
        target = Target(self._run_id, name, kernel.schema)
        staged = await self._find(target)
        if staged is None:
            parts = await self._planner.map(self.query(select), kernel, spread, target, self._watch(name))
            staged = Staged(name, kernel.schema, ()) if parts is None else await self._stage(target, parts)
        self._tables[name] = staged
        return staged

    async def bind(self, name: str, schema: pa.Schema) -> Staged:
        """A table that an earlier step of this run has staged."""
        staged = await self._find(Target(self._run_id, name, schema))
        if staged is None:
            raise Corrupt(f"run {self._run_id} has not staged {name}")
        self._tables[name] = staged
        return staged

    async def put(self, name: str, schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]) -> Staged:
        """Stage rows that the driver reads elsewhere, such as the keys of a report; it holds one part of them at a
        time."""
        target = Target(self._run_id, name, schema)
        staged = await self._find(target)
        if staged is None:
            staged = await self._stage(target, await write_parts(self._store, target, batches))
        self._tables[name] = staged
        return staged

    async def _find(self, target: Target) -> Staged | None:
        if self._there is None:
            pages = [page async for page in self._store.list(run_folder(self._run_id), delimiter=True)]
            self._there = {entry.key for page in pages for entry in page.entries}
        return await find_staged(self._store, target) if target.key in self._there else None

    async def _stage(self, target: Target, parts: list[Part]) -> Staged:
        found = await publish(self._store, target, parts)
        if self._there is not None:
            self._there.add(target.key)
        return found

    def declare(self, name: str, schema: pa.Schema) -> None:
        """Declare a table, so that queries over it can be explained. Reads and writes nothing."""
        self._tables[name] = Staged(name, schema, (), declared=True)

    def empty(self, name: str, schema: pa.Schema) -> None:
        """A table without rows. Nothing is written."""
        self._tables[name] = Staged(name, schema, ())

    def view(self, name: str, select: str) -> None:
        """Name a SELECT over the tables and views that exist by now."""
        self._views[name] = select

    async def rows(self, select: str, *, most: int = MOST_ROWS) -> list[dict[str, Any]]:
        found = await self._planner.fetch(self.query(f"SELECT * FROM (\n{select}\n) LIMIT {most + 1}"))
        check(found.num_rows <= most, f"a job's query gives more than {most} rows to its driver: {select[:200]}")
        return list(found.to_pylist())

    async def explain(self, step: str, does: str, select: str) -> Step:
        query = self.query(select)
        return Step(step, does, query.text(), await self._planner.explain(query))

    def query(self, select: str) -> Query:
        """The query with the views and tables that it uses, directly or indirectly."""
        needed: set[str] = set()
        pending = [select]
        while pending:
            for word in set(_WORD.findall(pending.pop())) - needed:
                if word in self._tables or word in self._views:
                    needed.add(word)
                    pending.append(self._views.get(word, ""))
        views = tuple((name, text) for name, text in self._views.items() if name in needed)
        return Query(select, views, {name: staged for name, staged in self._tables.items() if name in needed})

    async def remove(self) -> None:
        """Remove what this run has staged, when it has ended."""
        await remove(self._store, self._run_id)


@asynccontextmanager
async def relations(store: Store, engine: Engine, run_id: str, watch: Watch) -> AsyncIterator[Relations]:
    async with engine.planner(store, run_id) as planner:
        yield Relations(store, engine, planner, run_id, watch)
