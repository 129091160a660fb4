"""Engine: from a question about types to tables that DuckDB can join, at one pinned head.

A first question reads the indexes of its types beside the manifests: they are proved by those, whichever came first.
``pinned`` costs one conditional GET. What the chain says of a type's files is kept from query to query and brought
forward by the commits in between, so a warm query with nothing new costs that one request. If a file is gone (a
snapshot that was superseded and collected) the engine resolves again at the same head, once by the index and then by
the chain: the rows are the same. If a file has lost payload by a later commit (``fence``), the question is asked again
at the current head: one answer is never made of files from before and after a redaction.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import NotModified, Store
from holdfast.ontology.chain.chain import KnownHead
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
from holdfast.ontology.query.statement import Ask, Need, Rows, Tables, plan, rows_of
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.expressions.ast import Predicate
from holdfast.ontology.types.refs import Place, TypeHead, TypeId, fold
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MalformedJson, MissingFile

T = TypeVar("T")

RELOOK = 64
"""Files added one by one after which the index is read again: it may have a snapshot instead by now."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The files of a type as of one ledger."""

    head: TypeHead
    commit_id: int
    resolved: Resolved
    added: int = 0
    """Files that came one by one since."""
    stale: bool = False
    """Whether it must be resolved again."""


@dataclass
class Planned:
    """One table of a query, and how its files were chosen."""

    table: Table
    resolved: Resolved
    entries: Sequence[Entry]
    """All files of the type, with what is known of them."""
    predicate: Predicate
    fetched: Sequence[Entry]

    @property
    def choices(self) -> list[Choice]:
        return choose(self.entries, self.table.window, self.predicate, self.table.shape)


class Snapshot:
    """One pinned head, for all tables of a query."""

    def __init__(self, engine: "Engine", ledger: Ledger, fence: RedactionFence, indexes: Iterable[Index] = ()) -> None:
        self.engine = engine
        self.ledger = ledger
        self.fence = fence
        self._indexes = {each.type_id: each for each in indexes}
        """Indexes that were read already; each is used once."""
        self.planned: list[Planned] = []

    async def window(self, when: When) -> Window:
        return await window(when, self.engine.chain, self.ledger)

    async def rows(self, ask: Ask, span: Window | None = None) -> Rows:
        """The rows that a question is about, with their files here."""
        found = plan(ask, span if span is not None else await self.window(ask.when))
        return rows_of(found, await self.tables(found.needs))

    async def tables(self, needs: Sequence[Need]) -> Tables:
        """The needs with the files that can hold their rows, for several types at once. The statement applies the
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
        # Rows of another life of the type are not this one's.
        span = Window(max(span.lower, resolved.generation - 1), span.upper, span.history)
        entries = believed(resolved.entries, self.ledger, shape, self.fence)
        used = [each.entry for each in choose(entries, span, predicate, shape) if each.use != "pruned"]
        fetched = [entry for entry in used if not engine.warm.known(shape, entry)]
        parts = split(predicate, shape)
        wanted = Wanted(shape, parts.keys, parts.rest, used[0].path if used else None, span.history, span.upper)
        held = await engine.warm.load(shape, used, self.fence, resolved.proves, wanted)
        table = Table(shape, held, span, parts.keys)
        self.planned.append(Planned(table, resolved, entries, predicate, fetched))
        return table


def believed(entries: Sequence[Entry], ledger: Ledger, shape: TypeInfo, fence: RedactionFence) -> Sequence[Entry]:
    """Files with what their statistics say of their rows as they will be read.

    Of columns they say nothing where rows change when they are read: by a redaction that is under way, by upgraders, or
    because the type is known by its newest schema alone and the file was written under an older one.
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


async def filled(warm: Warm, sql: Sql) -> Sql:
    """The same statement, once all that it reads has been fetched."""
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
        self._known: dict[TypeId, _Known] = {}
        self._lives: dict[tuple[TypeId, int], Resolved] = {}
        """The files of lives that have ended, by the commit that ended them."""
        self.distrusted = False
        """Files are resolved by the chain, not by the index."""
        self._reread_for: Place | None = None
        """The latest redaction after which everything was read again."""
        self._redacted: Place | None = None
        """The latest one that was finished when the files were resolved."""

    async def pinned(self) -> Ledger:
        """The ledger at the current head."""
        return (await self._pinned(tuple))[0]

    async def _pinned(self, about: Callable[[], Iterable[TypeId]]) -> tuple[Ledger, list[Index]]:
        """The same, and the indexes of types of which nothing is known, if it had to be read from the beginning."""
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
        strange = [each for each in about() if each not in self._known] if version is None and head.commit_id else []
        ledger, indexes = await self._read(head, strange)
        if head.commit_id < before.commit_id:  # the store was restored from a backup
            self.warm.forget()
            self._known.clear()
            self._lives.clear()
        elif head.commit_id >= self._ledger.commit_id:
            self._head, self._ledger = head, ledger
        self._view.note(head)
        return ledger, indexes

    async def _read(self, head: Head, types: Sequence[TypeId]) -> tuple[Ledger, list[Index]]:
        """The ledger of a head, and at the same time the indexes of types."""
        if not types:
            return await self.chain.ledger(head.place, self._ledger), []
        work: list[Callable[[], Awaitable[Any]]] = [partial(self.chain.ledger, head.place, self._ledger)]
        work += [partial(read_index, self.store, each) for each in types]
        ledger, *indexes = await map_bounded(work, lambda begin: begin(), limit=len(work))
        # What an index says of files may be from before a redaction that is known to be carried out by now.
        return ledger, indexes if ledger.redacted is None else []

    async def table(self, sql: Sql, then: Callable[[pa.Table], pa.Table] | None = None) -> pa.Table:
        """The whole result of a statement over files that were loaded."""
        await self.filled(sql)
        return await self.warm.duck.table(sql.text, list(sql.params), then)

    async def filled(self, sql: Sql) -> Sql:
        """The same statement, once all that it reads has been fetched."""
        return await filled(self.warm, sql)

    async def batches(self, sql: Sql) -> AsyncIterator[pa.RecordBatch]:
        """The result of a statement that was ``filled``, in pieces."""
        async for batch in self.warm.duck.batches(sql.text, list(sql.params)):
            yield batch

    async def ask(
        self, question: Callable[[Snapshot], Awaitable[T]], about: Callable[[], Iterable[TypeId]] = tuple
    ) -> T:
        """Answer a question at the current head; again, if a file was deleted meanwhile, or has lost payload.

        ``about`` gives the types that it will need, as far as they are known. ``Refused`` in a closed session.
        """
        self.warm.check_open()

        async def pinned() -> T:
            ledger, indexes = await self._pinned(about)
            fence = await self._apply_redactions(ledger)
            try:
                return await self._at(question, ledger, fence, indexes)
            except Overtaken:
                self._forget()
                raise

        return await retry_overtaken(pinned)

    async def _at(
        self,
        question: Callable[[Snapshot], Awaitable[T]],
        ledger: Ledger,
        fence: RedactionFence,
        indexes: Iterable[Index] = (),
    ) -> T:
        snapshot = Snapshot(self, ledger, fence, indexes)
        for distrusted in (False, True):
            try:
                return await self._run(question, snapshot)
            except MissingFile:
                self._forget()
                self.distrusted = distrusted
                snapshot = Snapshot(self, ledger, fence)
        try:
            return await self._run(question, snapshot)
        except MissingFile as error:
            raise Corrupt(str(error), remedy="restore it from a backup of the store") from error
        finally:
            self.distrusted = False

    async def _run(self, question: Callable[[Snapshot], Awaitable[T]], snapshot: Snapshot) -> T:
        """The answer; ``Corrupt`` names rows whose fields are not JSON."""
        try:
            return await question(snapshot)
        except RecursionError as error:
            raise Invalid(
                "the question is nested too deeply", remedy="use in_([...]), or join conditions with & or | one by one"
            ) from error
        except MalformedJson as error:
            for planned in snapshot.planned:
                sql = planned.table.malformed()
                found = (await self.table(sql)).to_pylist()
                if found:
                    rows = ", ".join(" ".join(f"{name} {value!r}" for name, value in row.items()) for row in found)
                    raise Corrupt(
                        f"{planned.table.shape.type_id.name}: fields_json of another writer is not JSON: {rows}",
                        remedy="write these objects again; history before that cannot be asked about their fields",
                    ) from error
            raise

    async def _apply_redactions(self, ledger: Ledger) -> RedactionFence:
        """Drop rows that were read before the latest redaction. One request while a redaction is under way."""
        latest = ledger.redacted
        if latest is None or latest == self._redacted:
            return RedactionFence(0 if latest is None else latest.commit_id)
        if latest != self._reread_for:
            self.warm.forget()
            self._reread_for = latest
        self._forget()
        fence = await fence_of(self.store, self.chain, ledger)
        if not fence.pending:
            self._redacted = latest
        return fence

    def _forget(self) -> None:
        """Resolve the files of all types again. What is loaded of them stays."""
        for type_id, known in self._known.items():
            self._known[type_id] = replace(known, stale=True)
        self._lives.clear()

    async def files(self, type_id: TypeId, ledger: Ledger, upper: int, index: Index | None = None) -> Resolved:
        """The files of the generation of a type at commit ``upper``; ``index``: as it was read just now."""
        if upper < ledger.generation_of(type_id):
            return await self._ended(type_id, ledger, upper)
        head, known = ledger.head_of(type_id), self._known.get(type_id)
        generation = ledger.generation_of(type_id)
        if known is not None and not known.stale and (known.head, known.resolved.generation) == (head, generation):
            return known.resolved
        found = await self._brought_forward(known, ledger) if known is not None else None
        if found is None:
            resolver = resolve_by_chain(self.chain, ledger, type_id) if self.distrusted else None
            resolved = await (resolver or resolve(self.store, self.chain, ledger, type_id, index))
            found = _Known(head, ledger.commit_id, resolved)
        if known is None or found.commit_id >= known.commit_id:
            self._known[type_id] = found
        return found.resolved

    async def _ended(self, type_id: TypeId, ledger: Ledger, upper: int) -> Resolved:
        life = ledger.life_at(type_id, upper)
        if life is None or life.purged:
            return Resolved(type_id, (), ledger.commit_id, upper + 1, by_index=True)
        known = self._lives.get((type_id, life.end))
        if known is None or self.distrusted:
            then = await self.chain.ledger(await self.chain.at(ledger.place, life.end - 1))
            resolver = resolve_by_chain(self.chain, then, type_id) if self.distrusted else None
            known = await (resolver or resolve(self.store, self.chain, then, type_id))
            self._lives[type_id, life.end] = known
        return known

    async def _brought_forward(self, known: _Known, ledger: Ledger) -> _Known | None:
        """The files as they were, and those of later commits; None if there are many of these, or if they do not add up
        to what the chain says.
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
        if added > RELOOK or known.stale:
            return None
        entries = (*before.entries, *entries_of(more, self.chain.stats))
        after = Resolved(type_id, entries, ledger.commit_id, before.generation, before.by_index)
        return _Known(head, ledger.commit_id, after, added)
