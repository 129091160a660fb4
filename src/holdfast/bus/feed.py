"""Polling: what the digest says, what is new after its cursors, and what is due.

A poll is a conditional GET of the digest and a LIST after the smallest cursor. Names that no section knows are read
once, sorted into the sections, and written to the digest for everybody. All that this worker learns gathers in one
``Change`` per handler, over which it sees its own view, until ``flush`` writes them in one edit.

Nothing here decides who gets an event. When the digest cannot be written the changes are kept for the next time.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from holdfast.base import codec, telemetry
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.digest import Change, Digest, DigestShape, Fold, Item, Section, apply, hash_of, next_cursor
from holdfast.bus.event import Envelope
from holdfast.objects.register import Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import IfMatch, NotModified, Object, Store, Version

log = telemetry.logger("bus")

ANY = "*"
"""Stands for every type of event."""
OPEN_LIMIT = 4_096
"""So many due events per handler are enough to know; the rest is looked at when these are done."""
CACHED = 2 * OPEN_LIMIT
"""Envelopes kept in memory, so that who reads an event to sort it need not read it again to handle it."""
CACHED_BYTES = 16 * 1024
"""A larger one is read again."""
READS_AT_ONCE = 16
SHARE = 256
"""So many new events are read before the others are told, and asked."""
HELP = 64
"""So many of others' are."""
NEGLECTED_NS = 7 * 86_400 * 1_000_000_000
"""A handler that no worker has had for so long is forgotten."""

_FLUSHING = RetryPolicy(attempts=5, base_ms=5, max_ms=200, deadline_ms=5_000)


class Feed:
    """One worker's view of one namespace, for some handlers: ``handlers`` maps each id to the types it takes."""

    def __init__(
        self, store: Store, namespace: str, ambient: Ambient, handlers: Mapping[str, Iterable[str]], me: str = ""
    ) -> None:
        self._store = store
        self.namespace = namespace
        self._ambient = ambient
        self._key = layout.digest_key(namespace)
        self._shape = DigestShape()
        self._register: Register[Digest] = Register(store, self._key, self._shape, ambient, policy=_FLUSHING)
        self.handlers = {handler: tuple(sorted(set(types))) for handler, types in handlers.items()}
        self.digest = Digest()
        self._seen: Version | None = None
        self._changes = {handler: Change() for handler in self.handlers}
        self._views: dict[str, Section] = {}
        self._orders: dict[str, list[str]] = {}
        self._envelopes: OrderedDict[str, Envelope] = OrderedDict()
        self._greeted = False
        self._me = me
        self._mine: dict[str, bool] = {}
        """Whose events are, as far as this worker has asked; for the workers that the digest lists."""
        self.more = False
        """The last poll ended before the end, because there was enough to do."""
        self.unread = 0
        """New events that were left to other workers at the last poll."""

    def view(self, handler: str) -> Section:
        """The handler's section as this worker knew it when it last polled or wrote."""
        found = self._views.get(handler)
        if found is None:
            found = self._views[handler] = apply(self._base(handler), self._changes[handler])
        return found

    def fresh_view(self, handler: str) -> Section:
        """As ``view``, with all that this worker has learnt since."""
        self._forget_view(handler)
        return self.view(handler)

    def due(self, handler: str, now_ns: int) -> Iterator[str]:
        """Open events that may be tried now, in the order in which they should be."""
        change, section = self._changes[handler], self.view(handler)
        if handler not in self._orders:
            self._orders[handler] = section.in_order()
        for name in self._orders[handler]:
            if name not in change.settled and change.due.get(name, section.open[name].due_ns) <= now_ns:
                yield name

    def next_due_ns(self, handler: str) -> int | None:
        """When the next open event may be tried; None if there is none."""
        change, section = self._changes[handler], self.view(handler)
        times = (change.due.get(name, item.due_ns) for name, item in section.open.items() if name not in change.settled)
        return min(times, default=None)

    def heads(self, handler: str) -> dict[str, str]:
        """Of every ordering key the oldest event that is not settled."""
        return self.fresh_view(handler).heads()

    def settle(self, handler: str, name: str) -> None:
        self._changes[handler].settled.add(name)

    def defer(self, handler: str, name: str, due_ns: int) -> None:
        self._changes[handler].due[name] = due_ns

    def refold(self, handler: str, bucket: str, seen: Fold, right: Fold) -> None:
        self._changes[handler].refold[bucket] = (seen, right)

    @property
    def unwritten(self) -> int:
        """How much this worker knows that the digest does not."""
        sizes = (len(each.found) + len(each.settled) + len(each.due) for each in self._changes.values())
        return sum(sizes)

    def is_mine(self, name: str) -> bool:
        """Whether this worker is the first to look at the event."""
        known = self._mine.get(name)
        if known is None:
            known = self._mine[name] = self.digest.owner(name, self._me) == self._me
        return known

    def spread(self, names: list[str]) -> list[str]:
        """Others' events, in an order that is this worker's alone: helpers should not all begin with the same."""
        return sorted(names, key=lambda name: hash_of(f"{self._me}{name}"))

    def _note(self, digest: Digest) -> None:
        if digest.workers != self.digest.workers or len(self._mine) > CACHED:
            self._mine.clear()
        self.digest = digest

    async def poll(self, *, greedy: bool = True) -> int:
        """Learn what is new; how many names were read. Unless ``greedy``, other workers' are left to them for now."""
        await self.read()
        self.more = self._has_enough()
        if self.more:
            return 0
        cursor = min((self.view(handler).cursor for handler in self.handlers), default="")
        folder = layout.event_folder(self.namespace)
        after = layout.event_key(self.namespace, cursor) if cursor else None
        fresh, seen_to, self.unread = 0, "", 0
        async for page in self._store.list(folder, after=after):
            names = [layout.name_of(entry.key) for entry in page.entries]
            fresh += await self.learn(names, greedy=greedy)
            left = self._unknown(names)
            if not self.unread:
                seen_to = max([seen_to, *(name for name in names if not left or name < left[0])])
            self.unread += len(left)
            if self._has_enough():
                self.more = True
                break
        self._advance(seen_to)
        return fresh

    async def read(self) -> Digest:
        """The digest as it is now. One conditional GET."""
        try:
            if self._seen is None:
                found: Object | NotModified = await self._store.get(self._key)
            else:
                found = await self._store.get_unless(self._key, self._seen)
        except NotFound:
            self._seen = None
            self._note(Digest())
            self._forget_views()
            return self.digest
        if isinstance(found, Object):
            try:
                self._note(self._shape.read(codec.decode(found.body, key=self._key), self._key))
                self._seen = found.version
            except Corrupt as error:
                await self._begin_anew(found, error)
            self._forget_views()
        return self.digest

    async def _begin_anew(self, found: Object | None, error: Corrupt) -> None:
        """A digest that cannot be read is replaced by an empty one: all that was in it can be found again."""
        log.error("%s; it is derived anew", error)
        self._seen = None
        self._note(Digest())
        if found is not None:
            document = self._shape.write(Digest(), None)
            body = codec.encode({**document, "write_id": self._ambient.ids.write_id()})
            await self._store.put(self._key, body, IfMatch(found.version))
        with suppress(Corrupt):  # spoilt again already: the next poll sees to it
            await self._register.read()  # it must not go on from what it remembers

    async def learn(self, names: Iterable[str], *, greedy: bool = True) -> int:
        """Sort names into the sections that do not know them; how many were read.

        Of many, some are read, and the digest is written, which says what others have read meanwhile.
        """
        fresh = 0
        while new := self._chosen(names, greedy=greedy):
            if fresh:
                await self.flush()
                new = self._chosen(names, greedy=greedy)
            fresh += len(new)
            await self._read_new(new)
        return fresh

    def _chosen(self, names: Iterable[str], *, greedy: bool) -> list[str]:
        """The next names to read: this worker's own, or else some of the others'."""
        new = self._unknown(names)
        mine = [name for name in new if self.is_mine(name)]
        return mine[:SHARE] if mine or not greedy else self.spread(new)[:HELP]

    def _unknown(self, names: Iterable[str]) -> list[str]:
        views = [self.view(handler) for handler in self.handlers]
        return [name for name in names if any(name > view.cursor and not view.knows(name) for view in views)]

    async def _read_new(self, new: list[str]) -> None:
        views = {handler: self.view(handler) for handler in self.handlers}
        envelopes = await map_bounded(new, self.envelope, limit=READS_AT_ONCE) if new else []
        for handler, view in views.items():
            unknown = [
                (name, envelope)
                for name, envelope in zip(new, envelopes, strict=True)
                if name > view.cursor and not view.knows(name)
            ]
            self.sort(handler, unknown)

    def sort(self, handler: str, names: Iterable[tuple[str, Envelope | None]]) -> None:
        """Names with their events into the handler's section: open, or of no interest."""
        found: dict[str, Item] = {}
        settled: set[str] = set()
        for name, envelope in names:
            if envelope is None or not self.takes(handler, envelope.type):
                settled.add(name)
            else:
                due_ns = envelope.available_ns or 0
                found[name] = Item(envelope.priority, envelope.type, due_ns, envelope.order_key)
        self._changes[handler].found.update(found)
        self._changes[handler].settled.update(settled)
        self._forget_view(handler)

    def takes(self, handler: str, type_name: str) -> bool:
        types = self.handlers[handler]
        return ANY in types or type_name in types

    async def envelope(self, name: str) -> Envelope | None:
        """The event, read once; None if it is gone or no event at all."""
        if name in self._envelopes:
            self._envelopes.move_to_end(name)
            return self._envelopes[name]
        key = layout.event_key(self.namespace, name)
        try:
            found = await self._store.find(key)
            if found is None:
                return None
            layout.parse_name(name)
            envelope = Envelope.decode(found.body, key=key)
        except Corrupt as error:
            log.error("%s; it is left alone", error)
            return None
        if (envelope.name, envelope.namespace) != (name, self.namespace):  # where it lies is what it is called
            event_id, created_ns = layout.event_id(name), layout.created_ns(name)
            envelope = replace(envelope, id=event_id, created_ns=created_ns, namespace=self.namespace)
        if len(found.body) <= CACHED_BYTES:
            self._envelopes[name] = envelope
        if len(self._envelopes) > CACHED:
            self._envelopes.popitem(last=False)
        return envelope

    async def flush(
        self, *, sweep: tuple[int, str] | None = None, workers: Iterable[str] | None = None, leaving: bool = False
    ) -> bool:
        """Write what this worker has learnt; False if that has to wait. ``sweep`` notes when and how far one went, and
        ``workers`` who was alive then. A worker that is ``leaving`` takes itself off the list.
        """
        if self._greeted and not any(self._changes.values()) and sweep is None and not leaving:
            return True
        changes = {handler: change.copy() for handler, change in self._changes.items()}
        now_ns = self._ambient.clock.wall_ns()

        def merge(digest: Digest | None) -> Digest:
            merged = self._merged(digest or Digest(), changes, now_ns, sweep)
            return replace(merged, workers=self._listed(merged.workers if workers is None else workers, leaving))

        try:
            edited = await self._register.edit(self._ambient.ids.unique(), merge)
        except (Ambiguous, Conflict, Unavailable) as error:
            log.debug("%s: %s; again later", self._key, error)
            return False
        except Corrupt as error:
            await self._begin_anew(await self._store.find(self._key), error)
            return False
        self._greeted = True
        self._note(edited.value)
        written = self._register.remembered
        if written is not None and written.value is edited.value:
            self._seen = written.version  # what this worker wrote itself it need not read
        self._changes = {handler: self._changes[handler].without(changes[handler]) for handler in self.handlers}
        self._forget_views()
        return True

    def _merged(
        self, digest: Digest, changes: Mapping[str, Change], now_ns: int, sweep: tuple[int, str] | None
    ) -> Digest:
        sections = {
            name: section
            for name, section in digest.sections.items()
            if name in self.handlers or now_ns - section.seen_ns < NEGLECTED_NS
        }
        for handler, change in changes.items():
            section = _section(digest, handler, self.handlers[handler])
            # If somebody began the section anew, what we looked at before is not in it, and must be looked at again.
            known = change if section.cursor >= self._base(handler).cursor else replace(change, cursor="")
            sections[handler] = replace(apply(section, known), seen_ns=max(section.seen_ns, now_ns))
        swept_ns, swept_to = sweep if sweep is not None else (digest.swept_ns, digest.swept_to)
        return Digest(sections, swept_ns, swept_to, digest.workers)

    def _listed(self, workers: Iterable[str], leaving: bool) -> tuple[str, ...]:
        others = {each for each in workers if each != self._me}
        return tuple(sorted(others if leaving or not self._me else {*others, self._me}))

    def _base(self, handler: str) -> Section:
        return _section(self.digest, handler, self.handlers[handler])

    def _advance(self, seen_to: str) -> None:
        now_ns = self._ambient.clock.wall_ns()
        for handler in self.handlers:
            section, change = self._base(handler), self._changes[handler]
            cursor = next_cursor(section, change, seen_to, now_ns)
            if cursor > max(section.cursor, change.cursor):
                change.cursor = cursor
                self._forget_view(handler)

    def _has_enough(self) -> bool:
        """Whether every handler has due events for a while: as many as are worth knowing, or this worker's share."""
        now_ns = self._ambient.clock.wall_ns()
        share = OPEN_LIMIT // max(1, len(self.digest.workers))
        for handler in self.handlers:
            due = [name for name, item in self.view(handler).open.items() if item.due_ns <= now_ns]
            if len(due) < OPEN_LIMIT and (len(due) < share or sum(map(self.is_mine, due)) < share):
                return False
        return True

    def _forget_view(self, handler: str) -> None:
        self._views.pop(handler, None)
        self._orders.pop(handler, None)

    def _forget_views(self) -> None:
        self._views.clear()
        self._orders.clear()


def _section(digest: Digest, handler: str, types: tuple[str, ...]) -> Section:
    """The handler's section; a new one where the handler is new or takes other types than before."""
    found = digest.sections.get(handler)
    return found if found is not None and found.types == types else Section(types)
