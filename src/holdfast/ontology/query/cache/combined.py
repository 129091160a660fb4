"""All files of a type combined into one table, for a session that asks about the same type repeatedly.

The table is a DuckDB file of its own in the session's folder, compressed, with the typed columns as the type has them
now, and with ``_until`` across all files: the state at any commit is a condition on each row, and nothing is joined or
grouped, however many commits there were and whether they were compacted or not. Making it costs as much as some thirty
questions, so it is made in the background, after ``AFTER`` questions about the same files, from files that are all
local already: it makes no request. Files of later commits are read beside it, until there are enough for another one.

If the table does not fit into the memory limit, it is not made and the files are read as before. Running statements may
still use the previous table, so that one is kept; older ones are removed.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from holdfast.base.aio import blocking
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.operand import fill
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.stats import FileStats, Span
from holdfast.ontology.query.cache.loaded import Loaded, tells_numbers
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import Duck, MissingFile, OutOfMemory

AFTER = 8
"""Questions about the same files before they are gathered."""
BESIDE = 16
"""Files of later commits that are read beside a table before another one is worth it."""
SHARE = 4
"""Files of more than the memory limit over this are left as they are."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """The first files of a type's list, as one."""

    paths: tuple[str, ...]
    loaded: Loaded


class Gatherer:
    def __init__(self, duck: Duck, folder: Path) -> None:
        self._duck = duck
        self._folder = folder
        self._most_bytes = duck.memory_bytes // SHARE
        self._made: dict[TypeId, Gathered] = {}
        self._kept: dict[TypeId, list[str]] = {}
        """The databases of each type that are still there, oldest first."""
        self._asked: dict[TypeId, int] = {}
        self._hopeless: dict[TypeId, tuple[str, ...]] = {}
        """Files that did not fit."""
        self._count = 0
        self._epoch = 0
        self.changes = 0
        """How often there was another table to read."""
        self._task: asyncio.Task[None] | None = None

    def find(self, type_id: TypeId, entries: Sequence[Entry], fence: RedactionFence) -> Gathered | None:
        """The table that stands for the first of these files, if there is one."""
        found = self._made.get(type_id)
        if found is None or len(found.paths) > len(entries) or found.loaded.heeded < fence.number:
            return None
        same = all(path == entry.path for path, entry in zip(found.paths, entries, strict=False))
        if same:
            fence.check(found.loaded.redacted, found.loaded.entry.path)
        return found if same else None

    def due(self, type_id: TypeId, entries: Sequence[Entry], fence: RedactionFence, *, after: int) -> bool:
        """One more question about these files: whether they should be gathered now."""
        found = self.find(type_id, entries, fence)
        if found is not None and len(entries) - len(found.paths) <= BESIDE:
            return False
        self._asked[type_id] = self._asked.get(type_id, 0) + 1
        if (task := self._task) is not None:
            if not task.done():  # of another type: this one's turn comes
                return False
            self._task = None
            task.result()
        return self._asked[type_id] >= after and self._hopeless.get(type_id) != tuple(each.path for each in entries)

    def fits(self, entries: Sequence[Entry]) -> bool:
        """Whether these files are not too large."""
        return sum(0 if each.stats is None else each.stats.size for each in entries) <= self._most_bytes

    def begin(self, shape: TypeInfo, files: Sequence[Loaded], rows: Sql, ends: Sql | None) -> None:
        """Gather these files, the first ones of the type's list, in the background."""
        self._asked[shape.type_id] = 0
        if sum(each.size for each in files) > self._most_bytes:
            self._hopeless[shape.type_id] = tuple(each.entry.path for each in files)
            return
        self._task = asyncio.create_task(self._gather(shape, files, _statement(shape, rows, ends), self._epoch))

    async def done(self) -> None:
        """Until nothing is being gathered."""
        if self._task is not None:
            await self._task

    def forget(self) -> None:
        """Whatever was gathered, or is being gathered, is not to be used any more."""
        self._epoch += 1
        self.changes += 1
        self._made.clear()
        self._asked.clear()

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            if not task.cancelled():
                task.result()

    async def _gather(self, shape: TypeInfo, files: Sequence[Loaded], statement: Sql, epoch: int) -> None:
        type_id = shape.type_id
        self._count += 1
        name = f"gathered_{self._count}"
        paths = tuple(each.entry.path for each in files)
        try:
            await self._duck.run(f"ATTACH '{self._folder / name}.db' AS {name}")
            await self._duck.run(f"CREATE TABLE {name}.rows AS {statement.text}", list(statement.params))
            await self._duck.run(f"CHECKPOINT {name}")
        except (OutOfMemory, MissingFile):  # of the session's own folder: the disk is full
            self._hopeless[type_id] = paths
            await self._remove(name)
            return
        kept = self._kept.setdefault(type_id, [])
        kept.append(name)
        if epoch == self._epoch:
            self.changes += 1
            self._made[type_id] = Gathered(paths, _loaded(files, shape, f"{name}.rows", -self._count))
        while len(kept) > 2:  # this one, and the one before
            await self._remove(kept.pop(0))

    async def _remove(self, name: str) -> None:
        with suppress(MissingFile):
            await self._duck.run(f"DETACH DATABASE IF EXISTS {name}")
        await blocking((self._folder / f"{name}.db").unlink, missing_ok=True)


def ended(keys: Sequence[str], base: Sql | None, rest: Sql) -> Sql:
    """Of every identity in ``rest`` all rows there are, and the commit of the next one. Both have keys and commits."""
    by = ", ".join(map(quoted, keys))
    some = Sql(f"SELECT {by}, commit_id FROM rest")
    if base is not None:
        some = fill(f"{{}} UNION ALL SELECT {by}, commit_id FROM ({{}}) SEMI JOIN rest USING ({by})", some, base)
    return fill(
        f"SELECT * FROM (WITH rest AS MATERIALIZED ({{}}) SELECT {by}, commit_id, lead(commit_id) OVER "
        f"(PARTITION BY {by} ORDER BY commit_id) AS ended FROM ({{}}))",
        rest,
        some,
    )


def _statement(shape: TypeInfo, rows: Sql, ends: Sql | None) -> Sql:
    if ends is None:
        return rows
    by = " AND ".join(f"r.{quoted(name)} = e.{quoted(name)}" for name in (*shape.keys, "commit_id"))
    return fill(
        "SELECT r.* REPLACE (CASE WHEN e.commit_id IS NULL THEN r._until ELSE e.ended END AS _until) "
        f"FROM ({{}}) r LEFT JOIN ({{}}) e ON {by}",
        rows,
        ends,
    )


def _loaded(files: Sequence[Loaded], shape: TypeInfo, table: str, number: int) -> Loaded:
    rows, size = sum(each.rows for each in files), sum(each.size for each in files)
    stats = FileStats(rows, size, unique=False, keys=_key_spans([each.entry for each in files], len(shape.keys)))
    return Loaded(
        number=number,
        entry=Entry(files[0].entry.first, files[-1].entry.last, table, stats=stats),
        rows=rows,
        size=size,
        columns=shape.payload,
        lacking=frozenset().union(*(each.lacking for each in files)),
        unique=False,
        retracts=any(each.retracts for each in files),
        until=True,
        through=files[-1].entry.last,
        table=table,
        redacted=max(each.redacted for each in files),
        heeded=min(each.heeded for each in files),
        numbered=tells_numbers(shape.payload),
    )


def _key_spans(entries: Sequence[Entry], columns: int) -> tuple[Span, ...]:
    """What holds of the keys of all of them."""
    found: list[Span] = []
    for column in range(columns):
        spans = [
            each.stats.keys[column] if each.stats is not None and column < len(each.stats.keys) else Span(None, None)
            for each in entries
        ]
        lows, highs = [span.low for span in spans], [span.high for span in spans]
        known = [all(isinstance(one, str) for one in some) for some in (lows, highs)]
        found.append(Span(min(map(str, lows)) if known[0] else None, max(map(str, highs)) if known[1] else None))
    return tuple(found)
