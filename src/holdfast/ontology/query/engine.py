"""Engine: from a question about types to tables that DuckDB can join, at one pinned head.

A first question reads the indexes of its types beside the manifests: they are proved by those, whichever came first.
``pinned`` costs one conditional GET. What the chain says of a type's files is kept from query to query and brought
forward by the commits in between, so a warm query with nothing new costs that one request. A file that is gone (a
snapshot that was superseded and collected) makes the engine look again at the same head, once by the index and then by
the chain: the same rows come out. A file that has lost payload by a later commit (``fence``) makes it put the question
again at the head of now: one answer is never made of files from before and after.
"""

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Corrupt, Invalid
from holdfast.objects.store import NotModified, Store
from holdfast.ontology.chain.chain import KnownHead
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of, retry_overtaken
from holdfast.ontology.chain.resolve import Resolved, resolve, resolve_by_chain
from holdfast.ontology.chain.times import When, Window, window
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.head import parse as parse_head
from holdfast.ontology.format.index import Entry, Index, entries_of, read_index
from holdfast.ontology.query.cache.loaded import Loaded
from holdfast.ontology.query.cache.partial_files import Wanted
from holdfast.ontology.query.cache.prune import Choice, choose, split
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.errors import Overtaken
from holdfast.ontology.types.expressions.ast import TRUE, And, Predicate
from holdfast.ontology.types.refs import Place, TypeHead, TypeId, fold
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.sql.duck import MalformedJson, MissingFile

MOST = 64
"""Statements that are kept."""
LONGEST = 8_192
"""Longer questions are said anew: they do not come often, and are compared letter by letter."""


@dataclass(frozen=True, slots=True)
class CachedStatement:
    value: Any
    """The statement, and how its result is read."""
    planned: Sequence[Any]
    """Its tables."""
    ask: Any
    """The question. Its types are compared by ``id``, so this reference keeps them alive."""


class StatementCache:
    def __init__(self) -> None:
        self._state: Hashable = None
        self._kept: dict[str, CachedStatement] = {}

    def find(self, state: Hashable, words: str) -> CachedStatement | None:
        if state != self._state:
            self._kept.clear()
            self._state = state
        return self._kept.get(words)

    def keep(self, state: Hashable, words: str, said: CachedStatement) -> None:
        """``state`` is that of now; where it was another one when it was looked for, nothing is kept."""
        if state == self._state and len(words) <= LONGEST:
            if len(self._kept) >= MOST:
                self._kept.clear()
            self._kept[words] = said

    def forget(self) -> None:
        self._kept.clear()


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


@dataclass
class Planned:
    """One table of a query, and how its files were chosen."""

    table: Table
    resolved: Resolved
    entries: Sequence[Entry]
    """All files of the type, with what is known of them."""
    predicate: Predicate
    fetched: list[Entry] = field(default_factory=list)

    @property
    def choices(self) -> list[Choice]:
        return choose(self.entries, self.table.window, self.predicate, self.table.shape)


class Need(NamedTuple):
    """A table that a question needs: the rows of a type in a window for which a condition may hold."""

    shape: TypeInfo
    span: Window
    predicate: Predicate


class _Found(NamedTuple):
    """The files of a table, at hand."""

    resolved: Resolved
    span: Window
    entries: Sequence[Entry]
    fetched: list[Entry]
    loaded: list[Loaded]
    keys: And


class Worded(Protocol):
    """A question."""

    @property
    def words(self) -> str: ...


class Moment:
    """One head, for all of a query."""

    def __init__(self, engine: "Engine", ledger: Ledger, fence: RedactionFence, indexes: Iterable[Index] = ()) -> None:
        self.engine = engine
        self.ledger = ledger
        self.fence = fence
        self._indexes = {each.type_id: each for each in indexes}
        """Those that were read already, each for one use."""
        self.planned: list[Planned] = []
        self._ahead: set[str] = set()
        """Files that were fetched before the first table was made that has them."""

    async def window(self, when: When) -> Window:
        return await window(when, self.engine.chain, self.ledger)

    async def said(self, ask: Worded, more: str, make: Callable[[], Awaitable[T]]) -> T:
        """What ``make`` makes of a question (and of what ``more`` says): a statement, and how its result is read.

        It is made once for who puts the same question again and again.
        """
        engine, fence = self.engine, self.fence
        try:
            words = f"{more} {ask.words}"
        except RecursionError:  # of conditions within conditions, which can be compiled all the same
            words = ""
        if not words or fence.pending or engine.distrusted:
            return await make()
        known = engine.sayings.find(self._state, words)
        if known is None:
            made = await make()
            engine.sayings.keep(self._state, words, CachedStatement(made, tuple(self.planned), ask))
            return made
        self.planned += known.planned
        for each in known.planned:
            engine.warm.asked(each.table.shape, each.resolved.entries, fence)
        found: T = known.value
        return found

    @property
    def _state(self) -> Hashable:
        """All that statements are made of, but for the question."""
        return self.ledger.place, self.fence.number, self.engine.warm.changes

    async def ahead(self, needs: Sequence[Need]) -> None:
        """Fetch what these tables need of types that nothing is known of yet; of several types at the same time."""
        strange: dict[TypeId, list[Need]] = {}
        for need in needs:
            if not self.engine.knows(need.shape.type_id, self.ledger):
                strange.setdefault(need.shape.type_id, []).append(need)

        async def fetch(group: Sequence[Need]) -> None:
            for need in group:
                found = await self._found(need)
                self._ahead.update(each.path for each in found.fetched)

        if len(strange) > 1:
            await map_bounded(strange.values(), fetch, limit=len(strange))

    async def table(self, shape: TypeInfo, span: Window, predicate: Predicate = TRUE) -> Table:
        """The rows of a type in a window, of the files that can hold rows for which ``predicate`` is true.

        The predicate itself is left to whoever asks, but for what concerns keys alone.
        """
        found, warm = await self._found(Need(shape, span, predicate)), self.engine.warm
        self._ahead.difference_update(each.path for each in found.fetched)
        again = warm.asked(shape, found.resolved.entries, self.fence)
        # Who asks for few keys reads few rows, and who asks once needs no more: comparing all keys would not pay.
        several = not span.history and not found.keys.terms and len(found.loaded) > 1
        settled = several and again and await warm.settle(shape, found.loaded)
        table = Table(shape, found.loaded, found.span, warm, found.keys, settled)
        self.planned.append(Planned(table, found.resolved, found.entries, predicate, found.fetched))
        return table

    async def _found(self, need: Need) -> _Found:
        engine, (shape, span, predicate) = self.engine, need
        index = self._indexes.pop(shape.type_id, None)
        resolved = await engine.files(shape.type_id, self.ledger, span.upper, index)
        self.fence.check_all(resolved.entries)
        # Rows of another life of the type are not this one's.
        span = Window(max(span.lower, resolved.generation - 1), span.upper, span.history)
        entries = self._told(resolved.entries, shape)
        gathered = engine.warm.gathered(shape, resolved.entries, self.fence)
        # One table stands for the first files; it has no more than the statistics of their keys.
        whole = [] if gathered is None else [gathered.loaded]
        listed = [*(each.entry for each in whole), *entries[0 if gathered is None else len(gathered.paths) :]]
        used = [each.entry for each in choose(listed, span, predicate, shape) if each.use != "pruned"]
        if whole:
            whole = [each for each in whole if any(each.entry is entry for entry in used)]
            used = [entry for entry in used if entry is not listed[0]]
        fetched = [entry for entry in used if entry.path in self._ahead or not engine.warm.known(entry)]
        parts = split(predicate, shape)
        oldest = used[0].path if used and not whole else None
        wanted = Wanted(shape, parts.keys, parts.rest, oldest, span.history, span.upper)
        loaded = [*whole, *await engine.warm.load(shape, used, self.fence, resolved.proves, wanted)]
        return _Found(resolved, span, entries, fetched, loaded, parts.keys)

    def _told(self, entries: Sequence[Entry], shape: TypeInfo) -> Sequence[Entry]:
        """What is known of files whose rows are upgraded when they are read is not known of the rows then; nor is it of
        those that lose payload when they are read.
        """
        ref = self.ledger.schemas.get(shape.type_id)
        if self.fence.concerns(shape.type_id):
            return [replace(each, stats=each.stats.of_keys()) if each.stats is not None else each for each in entries]
        if not shape.upgraders or ref is None:
            return entries
        return [
            replace(each, stats=each.stats.of_keys()) if each.stats is not None and each.first < ref.since else each
            for each in entries
        ]


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
        """The index is not believed."""
        self.sayings = StatementCache()
        self._known_of: Place | None = None
        """The latest redaction for which everything was read again."""
        self._heeded: Place | None = None
        """The latest one that was finished when the files were looked up."""

    async def pinned(self) -> Ledger:
        """What the chain says at the head of now."""
        return (await self._pinned(tuple))[0]

    async def _pinned(self, about: Callable[[], Iterable[TypeId]]) -> tuple[Ledger, list[Index]]:
        """The same, and the indexes of types of which nothing is known, if it had to be read from the beginning."""
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
        if head.commit_id >= self._ledger.commit_id:
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

    async def ask(self, question: Callable[[Moment], Awaitable[T]], about: Callable[[], Iterable[TypeId]] = tuple) -> T:
        """Put a question at the head of now; again, if a file has gone meanwhile, or has lost payload since.

        ``about`` tells the types that it will need, as far as that is known. ``Refused`` in a closed session.
        """
        self.warm.check_open()

        async def pinned() -> T:
            ledger, indexes = await self._pinned(about)
            fence = await self._heed(ledger)
            try:
                return await self._at(question, ledger, fence, indexes)
            except Overtaken:
                self._forget()
                raise

        return await retry_overtaken(pinned)

    async def _at(
        self,
        question: Callable[[Moment], Awaitable[T]],
        ledger: Ledger,
        fence: RedactionFence,
        indexes: Iterable[Index] = (),
    ) -> T:
        moment = Moment(self, ledger, fence, indexes)
        for distrusted in (False, True):
            try:
                return await self._put(question, moment)
            except MissingFile:
                self._forget()
                self.distrusted = distrusted
                moment = Moment(self, ledger, fence)
        try:
            return await self._put(question, moment)
        except MissingFile as error:
            raise Corrupt(str(error), remedy="restore it from a backup of the store") from error
        finally:
            self.distrusted = False

    async def _put(self, question: Callable[[Moment], Awaitable[T]], moment: Moment) -> T:
        """What the question gives; rows that no question can be put to are named."""
        try:
            return await question(moment)
        except RecursionError as error:
            raise Invalid(
                "the question is nested too deeply", remedy="use in_([...]), or join conditions with & or | one by one"
            ) from error
        except MalformedJson as error:
            for planned in moment.planned:
                sql = planned.table.malformed()
                found = (await self.warm.table(sql)).to_pylist()
                if found:
                    rows = ", ".join(" ".join(f"{name} {value!r}" for name, value in row.items()) for row in found)
                    raise Corrupt(
                        f"{planned.table.shape.type_id.name}: fields_json of another writer is not JSON: {rows}",
                        remedy="write these objects again; history before that cannot be asked about their fields",
                    ) from error
            raise

    async def _heed(self, ledger: Ledger) -> RedactionFence:
        """Forget rows that were read before a redaction. While one is under way this is one request."""
        latest = ledger.redacted
        if latest is None or latest == self._heeded:
            return RedactionFence(0 if latest is None else latest.commit_id)
        if latest != self._known_of:
            self.warm.forget()
            self._known_of = latest
        self._forget()
        fence = await fence_of(self.store, self.chain, ledger)
        if not fence.pending:
            self._heeded = latest
        return fence

    def _forget(self) -> None:
        """Which files there are. What is loaded of them stays."""
        self._known.clear()
        self._lives.clear()
        self.sayings.forget()

    def knows(self, type_id: TypeId, ledger: Ledger) -> bool:
        """Whether it knows the files of a type without a request."""
        known = self._known.get(type_id)
        return known is not None and known.head == ledger.head_of(type_id)

    async def files(self, type_id: TypeId, ledger: Ledger, upper: int, index: Index | None = None) -> Resolved:
        """The files of the life that a type has, or had, at commit ``upper``; ``index``: as it was read just now."""
        if upper < ledger.generation_of(type_id):
            return await self._ended(type_id, ledger, upper)
        head, known = ledger.head_of(type_id), self._known.get(type_id)
        generation = ledger.generation_of(type_id)
        if known is not None and known.head == head and known.resolved.generation == generation:
            return known.resolved
        found = await self._brought_forward(known, ledger, type_id) if known is not None else None
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

    async def _brought_forward(self, known: _Known, ledger: Ledger, type_id: TypeId) -> _Known | None:
        """The files as they were, and those of later commits; None if they do not add up to what the chain says."""
        head, before = ledger.head_of(type_id), known.resolved
        if ledger.commit_id < known.commit_id or before.generation != ledger.generation_of(type_id):
            return None
        more = [ref for ref in await self.chain.files(known.commit_id, ledger.place) if ref.type_id == type_id]
        added = known.added + len(more)
        if fold(known.head, more) != head or added > RELOOK:
            return None
        entries = (*before.entries, *entries_of(more, self.chain.stats))
        after = Resolved(type_id, entries, ledger.commit_id, before.generation, before.by_index)
        return _Known(head, ledger.commit_id, after, added)
