"""Answers queries at one pinned head: chooses and fetches the files, and runs one statement over them in DuckDB.

Pinning costs one conditional GET. The files of a type are kept from query to query and brought forward by later
commits, so a warm query without anything new costs that one request. The first query reads the indexes of its types at
the same time as the manifests that prove them.

If a file is gone, because a snapshot was superseded and removed, the files are resolved again at the same head, first
by the index and then by the chain: the rows are the same. If a file has lost payload by a later commit (``Overtaken``),
the query starts again at the current head, so no answer combines files from before and after a redaction.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import NotModified, Store
from holdfast.ontology.chain.chain import Chain, KnownHead
from holdfast.ontology.chain.history import When, Window, window
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of, retry_overtaken
from holdfast.ontology.chain.resolve import Resolved, resolve, resolve_by_chain
from holdfast.ontology.filters.operand import Sql
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.head import parse as parse_head
from holdfast.ontology.format.index import Entry, Index, entries_of, read_index
from holdfast.ontology.query.cache.large_files import Wanted
from holdfast.ontology.query.cache.loaded import readings
from holdfast.ontology.query.cache.prune import Choice, choose, split
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.statement import Ask, Need, Rows, Tables, plan, rows_of, types_of
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.refs import Place, TypeHead, TypeId, fold
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MalformedJson, MissingFile

T = TypeVar("T")
Then = Callable[[pa.Table], pa.Table]
"""Makes the answer from the result of a statement, in a thread."""

ADDED_LIMIT = 64
"""Files of new commits after which the index is read again: a snapshot may cover them by now."""


@dataclass(frozen=True, slots=True)
class _TypeFiles:
    """The files of a type as of a commit."""

    head: TypeHead
    commit_id: int
    resolved: Resolved
    added: int = 0
    """Files of new commits since the index was read."""
    stale: bool = False
    """The files must be resolved again."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One table of a query, and how its files were chosen."""

    table: Table
    choices: Sequence[Choice]


class Snapshot:
    """One pinned head, for all tables of a query."""

    def __init__(self, engine: "Engine", ledger: Ledger, fence: RedactionFence, indexes: Iterable[Index] = ()) -> None:
        """``indexes`` were read while the head was pinned."""
        self.engine = engine
        self.ledger = ledger
        self.fence = fence
        self._indexes = {each.type_id: each for each in indexes}
        self.planned: list[Planned] = []

    async def window(self, when: When) -> Window:
        return await window(when, self.engine.chain, self.ledger)

    async def rows(self, ask: Ask) -> Rows:
        """The rows of a query, with their files fetched."""
        found = plan(ask, await self.window(ask.when))
        return rows_of(found, await self.tables(found.needs))

    async def tables(self, needs: Sequence[Need]) -> Tables:
        """The tables with the files that can contain their rows; several types at once. Statements still apply the
        predicates, except conditions on keys alone.
        """
        by_type: dict[TypeId, list[Need]] = {}
        for need in needs:
            by_type.setdefault(need.shape.type_id, []).append(need)
        found: dict[Need, Table] = {}

        async def load(group: Sequence[Need]) -> None:
            for need in group:
                found[need] = await self._table(need)

        if len(by_type) == 1:
            await load(needs)
        else:
            await map_bounded(by_type.values(), load, limit=len(by_type))
        return found

    async def _table(self, need: Need) -> Table:
        engine, (shape, span, predicate) = self.engine, (need.shape, need.span, need.predicate)
        index = self._indexes.pop(shape.type_id, None)
        resolved = await engine.files(shape.type_id, self.ledger, span.upper, index)
        self.fence.check_all(resolved.entries)
        # Rows from before the type was dropped and created again are not rows of this type.
        span = Window(max(span.lower, resolved.generation - 1), span.upper, span.history)
        entries = with_valid_stats(resolved.entries, self.ledger, shape, self.fence)
        choices = choose(entries, span, predicate, shape)
        used = [each.entry for each in choices if each.use != "pruned"]
        parts = split(predicate, shape)
        wanted = Wanted(shape, parts.keys, parts.rest, used[0].path if used else None, span.history, span.upper)
        held = await engine.warm.load(shape, used, self.fence, wanted)
        table = Table(shape, held, span, parts.keys)
        self.planned.append(Planned(table, choices))
        return table


def with_valid_stats(
    entries: Sequence[Entry], ledger: Ledger, shape: TypeInfo, fence: RedactionFence
) -> Sequence[Entry]:
    """The files, without statistics of columns that are not true of the rows as they are read.

    Rows change when they are read during a redaction and by upgraders. If a type is known by its newest schema alone,
    columns of files from before that schema may have another meaning.
    """
    if fence.concerns(shape.type_id):
        since = ledger.commit_id + 1
    elif shape.upgraders or shape.python is None:
        ref = ledger.schemas.get(shape.type_id)
        since = ledger.commit_id + 1 if ref is None else ref.since
    else:
        return entries
    return [
        replace(each, stats=each.stats.of_keys()) if each.stats is not None and each.first < since else each
        for each in entries
    ]


async def ledger_of_life(chain: Chain, ledger: Ledger, type_id: TypeId, upper: int) -> Ledger | None:
    """The last ledger before a type that existed at commit ``upper`` was dropped: this one, if it was not. None if it
    was purged, or did not exist.
    """
    if upper >= ledger.generation_of(type_id):
        return ledger
    life = ledger.life_at(type_id, upper)
    if life is None or life.purged:
        return None
    return await chain.ledger(await chain.at(ledger.place, life.end - 1))


async def filled(warm: Warm, sql: Sql) -> Sql:
    """The same statement, after everything that it reads was fetched."""
    await warm.fill(readings(sql.params))
    return sql


class Engine:
    def __init__(self, store: Store, view: KnownHead, warm: Warm) -> None:
        self.store = store
        self.chain = view.chain
        self.warm = warm
        self._view = view
        self._head = Head()
        self._ledger = Ledger()
        self._files: dict[TypeId, _TypeFiles] = {}
        self._ended: dict[tuple[TypeId, int], Resolved] = {}
        """The files of types that were dropped, by their last commit."""
        self._skip_index = False
        """Files are resolved by the chain and not by the index."""
        self._cleared_for: Place | None = None
        """The latest redaction for which all loaded rows were dropped."""
        self._redacted: Place | None = None
        """The latest redaction that was finished when the files were resolved."""

    # --- the head ---

    async def pinned(self) -> Ledger:
        """The ledger at the current head."""
        return (await self._pinned(tuple))[0]

    async def _pinned(self, types: Callable[[], Iterable[TypeId]]) -> tuple[Ledger, list[Index]]:
        """Also the indexes of types without known files, if the ledger is read for the first time."""
        before = self._ledger
        if self._view.known and self._view.ledger.commit_id >= self._ledger.commit_id:
            self._head, self._ledger = self._view.head, self._view.ledger
        version = self._head.version
        if version is None:
            head = parse_head(await self.store.find(layout.HEAD))
        else:
            found = await self.store.get_unless(layout.HEAD, version)
            if isinstance(found, NotModified):
                return self._ledger, []
            head = parse_head(found)
        unread = [each for each in types() if each not in self._files] if version is None and head.commit_id else []
        ledger, indexes = await self._read(head, unread)
        if head.commit_id < before.commit_id:  # the store was restored from a backup
            self.warm.forget()
            self._files.clear()
            self._ended.clear()
        elif head.commit_id >= self._ledger.commit_id:
            self._head, self._ledger = head, ledger
        self._view.note(head)
        return ledger, indexes

    async def _read(self, head: Head, types: Sequence[TypeId]) -> tuple[Ledger, list[Index]]:
        """The ledger of a head and the indexes of types, at the same time."""
        if not types:
            return await self.chain.ledger(head.place, self._ledger), []
        work: list[Callable[[], Awaitable[Any]]] = [partial(self.chain.ledger, head.place, self._ledger)]
        work += [partial(read_index, self.store, each) for each in types]
        ledger, *indexes = await map_bounded(work, lambda begin: begin(), limit=len(work))
        # An index may have statistics from before a redaction that is known to be finished by now.
        return ledger, indexes if ledger.redacted is None else []

    # --- answers ---

    async def answer(self, ask: Ask, statement: Callable[[Rows], Sql], then: Then | None = None) -> pa.Table:
        """The result of a statement over the rows of a query."""

        async def question(snapshot: Snapshot) -> pa.Table:
            return await self.table(statement(await snapshot.rows(ask)), then)

        return await self.ask(question, partial(types_of, ask))

    async def ask(
        self, question: Callable[[Snapshot], Awaitable[T]], types: Callable[[], Iterable[TypeId]] = tuple
    ) -> T:
        """Run a question at the current head; again, if a file was removed or has lost payload meanwhile.

        ``types`` gives the types that the question will read, as far as they are known. ``Refused`` if the session is
        closed.
        """
        self.warm.check_open()

        async def at_head() -> T:
            ledger, indexes = await self._pinned(types)
            fence = await self._apply_redactions(ledger)
            try:
                return await self.at(question, ledger, fence, indexes)
            except Overtaken:
                self._mark_stale()
                raise

        return await retry_overtaken(at_head)

    async def at(
        self,
        question: Callable[[Snapshot], Awaitable[T]],
        ledger: Ledger,
        fence: RedactionFence,
        indexes: Iterable[Index] = (),
    ) -> T:
        """Run a question at a given head."""
        snapshot = Snapshot(self, ledger, fence, indexes)
        missing: MissingFile | None = None
        try:
            for self._skip_index in (False, False, True):
                try:
                    return await _explained(question, snapshot)
                except MissingFile as error:
                    missing = error
                    self._mark_stale()
                    snapshot = Snapshot(self, ledger, fence)
        finally:
            self._skip_index = False
        raise Corrupt(str(missing), remedy="restore it from a backup of the store") from missing

    async def table(self, sql: Sql, then: Then | None = None) -> pa.Table:
        """The whole result of a statement over files that were loaded."""
        await self.filled(sql)
        return await self.warm.duck.table(sql.text, list(sql.params), then)

    async def filled(self, sql: Sql) -> Sql:
        """The same statement, after everything that it reads was fetched."""
        return await filled(self.warm, sql)

    async def batches(self, sql: Sql) -> AsyncIterator[pa.RecordBatch]:
        """The result of a ``filled`` statement, in batches."""
        async for batch in self.warm.duck.batches(sql.text, list(sql.params)):
            yield batch

    async def _apply_redactions(self, ledger: Ledger) -> RedactionFence:
        """Drop rows that were loaded before the latest redaction. One request while a redaction is unfinished."""
        latest = ledger.redacted
        if latest is None or latest == self._redacted:
            return RedactionFence(0 if latest is None else latest.commit_id)
        if latest != self._cleared_for:
            self.warm.forget()
            self._cleared_for = latest
        self._mark_stale()
        fence = await fence_of(self.store, self.chain, ledger)
        if not fence.pending:
            self._redacted = latest
        return fence

    # --- files ---

    def _mark_stale(self) -> None:
        """Resolve the files of all types again. Loaded rows stay."""
        self._files = {type_id: replace(files, stale=True) for type_id, files in self._files.items()}
        self._ended.clear()

    async def files(self, type_id: TypeId, ledger: Ledger, upper: int, index: Index | None = None) -> Resolved:
        """The files of a type as it was at commit ``upper``. ``index`` has just been read."""
        if upper < ledger.generation_of(type_id):
            return await self._files_of_dropped(type_id, ledger, upper)
        head, known = ledger.head_of(type_id), self._files.get(type_id)
        generation = ledger.generation_of(type_id)
        if known is not None and not known.stale and (known.head, known.resolved.generation) == (head, generation):
            return known.resolved
        found = await self._brought_forward(known, ledger) if known is not None else None
        if found is None:
            found = _TypeFiles(head, ledger.commit_id, await self._resolve(ledger, type_id, index))
        if known is None or found.commit_id >= known.commit_id:
            self._files[type_id] = found
        return found.resolved

    async def _files_of_dropped(self, type_id: TypeId, ledger: Ledger, upper: int) -> Resolved:
        then = await ledger_of_life(self.chain, ledger, type_id, upper)
        if then is None:
            return Resolved(type_id, (), ledger.commit_id, upper + 1, by_index=True)
        known = self._ended.get((type_id, then.commit_id))
        if known is None or self._skip_index:
            known = self._ended[type_id, then.commit_id] = await self._resolve(then, type_id)
        return known

    async def _resolve(self, ledger: Ledger, type_id: TypeId, index: Index | None = None) -> Resolved:
        if self._skip_index:
            return await resolve_by_chain(self.chain, ledger, type_id)
        return await resolve(self.store, self.chain, ledger, type_id, index)

    async def _brought_forward(self, known: _TypeFiles, ledger: Ledger) -> _TypeFiles | None:
        """The known files and those of later commits. None if the index should be read instead, or if they do not fit
        what the chain says.
        """
        before = known.resolved
        type_id, head = before.type_id, ledger.head_of(before.type_id)
        if ledger.commit_id < known.commit_id or before.generation != ledger.generation_of(type_id):
            return None
        more = [ref for ref in await self.chain.files(known.commit_id, ledger.place) if ref.type_id == type_id]
        if fold(known.head, more) != head:
            self.warm.forget()  # it has rows that are not on this chain
            return None
        added = known.added + len(more)
        if added > ADDED_LIMIT or known.stale:
            return None
        entries = (*before.entries, *entries_of(more, self.chain.stats))
        after = Resolved(type_id, entries, ledger.commit_id, before.generation, before.by_index)
        return _TypeFiles(head, ledger.commit_id, after, added)


async def _explained(question: Callable[[Snapshot], Awaitable[T]], snapshot: Snapshot) -> T:
    """Run a question. If a row's ``fields_json`` is not JSON, the error names the row."""
    try:
        return await question(snapshot)
    except RecursionError as error:
        raise Invalid(
            "the question is nested too deeply", remedy="use in_([...]), or join conditions with & or | one by one"
        ) from error
    except MalformedJson as error:
        for planned in snapshot.planned:
            found = (await snapshot.engine.table(planned.table.malformed())).to_pylist()
            if found:
                rows = ", ".join(" ".join(f"{name} {value!r}" for name, value in row.items()) for row in found)
                raise Corrupt(
                    f"{planned.table.shape.name}: fields_json of another writer is not JSON: {rows}",
                    remedy="write these objects again; history before that cannot be queried by its fields",
                ) from error
        raise
