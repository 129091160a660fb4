"""Polling: reads the digest, reads new events after its cursors, and says which events a worker should claim next.

A poll is a conditional GET of the digest and a LIST after the lowest cursor; while there is nothing to do, the LIST
alone. A name that no worker has read yet is read once, sorted into the sections, and written to the digest for all
workers: ``flush`` writes everything that this worker has learned in one edit. What a worker learns is kept in one
``Change`` per handler; its own view of a section is the digest with that change.

The workers of a handler share its events: each event has an owner (see ``digest.ranked``), which reads and claims it.
If the owner leaves it for ``HELP_AFTER`` polls, because it is dead or busy, the next worker takes it, if that has
nothing of its own to do; then the one after it. For an ordered handler a worker reads everything, in the order of
names: only then is the oldest event of an ordering key known.

Nothing here decides who gets an event; claims do. If the digest cannot be written, the changes are kept for later.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice

from holdfast.base import codec, telemetry
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.event import ANY_TYPE, Envelope
from holdfast.bus.worker import digest as digests
from holdfast.bus.worker.digest import Change, Digest, DigestShape, Fold, Item, Section, apply, next_cursor
from holdfast.objects.register import Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import IfMatch, Store

log = telemetry.logger("bus")

READS_AT_ONCE = 32
FIRST_BATCH, GROWTH = 16, 16
"""Events read in a poll before what was read is written; so many times more with every batch. Workers that start
together learn of each other that way, and what the others have read, before each of them has read everything."""
HELP_AFTER = 3
"""Polls that an event is left to its owner, and then to each worker that comes next."""
CACHED_BODIES = 8_192
CACHED_BYTES = 16 * 1024
"""Larger events are not cached."""
GREETING_S = 0.3
"""How long the first poll of a worker waits at least after its first batch: others may start at the same time."""
_FLUSHING = RetryPolicy(attempts=5, base_ms=20, max_ms=200, deadline_ms=5_000)


class Bodies:
    """Events as one worker reads them, cached: what is read to be sorted is not read again to be handled."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._namespace = namespace
        self._envelopes: OrderedDict[str, Envelope] = OrderedDict()

    async def read(self, name: str) -> Envelope | None:
        """The event; None if there is none, or if it cannot be read."""
        if name in self._envelopes:
            self._envelopes.move_to_end(name)
            return self._envelopes[name]
        key = layout.event_key(self._namespace, name)
        try:
            found = await self._store.find(key)
            if found is None:
                return None
            layout.parse_name(name)
            envelope = Envelope.decode(found.body, key=key)
        except Corrupt as error:
            log.error("%s; no handler gets it", error)
            return None
        if (envelope.name, envelope.namespace) != (name, self._namespace):  # the key decides
            event_id, created_ns = layout.event_id(name), layout.created_ns(name)
            envelope = replace(envelope, id=event_id, created_ns=created_ns, namespace=self._namespace)
        if len(found.body) <= CACHED_BYTES:
            self._envelopes[name] = envelope
        if len(self._envelopes) > CACHED_BODIES:
            self._envelopes.popitem(last=False)
        return envelope


class Feed:
    """One worker's view of a namespace, for its handlers: ``handlers`` maps each id to the types it takes."""

    def __init__(
        self,
        store: Store,
        namespace: str,
        ambient: Ambient,
        handlers: Mapping[str, Iterable[str]],
        me: str,
        *,
        ordered: Set[str] = frozenset(),
    ) -> None:
        self._store = store
        self.namespace = namespace
        self._ambient = ambient
        self.handlers = {handler: tuple(sorted(set(types))) for handler, types in handlers.items()}
        self._me = me
        self._ordered = ordered
        self._key = layout.digest_key(namespace)
        self._shape = DigestShape()
        self._register: Register[Digest] = Register(store, self._key, self._shape, ambient, policy=_FLUSHING)
        self.envelope = Bodies(store, namespace).read
        self.digest = Digest()
        self._swept: tuple[int, str, frozenset[str] | None] | None = None
        """When and how far this worker has swept, and the sessions that were alive then, until it is written."""
        self._changes = {handler: Change() for handler in self.handlers}
        self._views: dict[str, Section] = {}
        self._orders: dict[str, list[str]] = {}
        self._left: set[tuple[str, str]] = set()
        """New events that the last poll left to their owners, by handler."""
        self._passed: dict[tuple[str, str], int] = {}
        """What owners have not read or claimed yet, by handler and name or ordering key, and for how many polls."""
        self._helping = 0
        """How many events of others this worker takes at once; 0 if it has work of its own."""
        self._is_new = True
        self.more = False
        """The last poll ended before the end of the listing: a window is full, or it has read enough at once."""
        self.answered_ns: int | None = None
        """When the store last answered this worker, on the monotonic clock."""
        self._is_current = False
        """This worker has just written the digest, so the next poll need not read it."""

    # What this worker knows

    def now_ns(self) -> int:
        return self._ambient.clock.wall_ns()

    def view(self, handler: str) -> Section:
        """The handler's section with what this worker has learned up to its last poll or flush."""
        found = self._views.get(handler)
        if found is None:
            found = self._views[handler] = apply(self._base(handler), self._changes[handler])
        return found

    def fresh_view(self, handler: str) -> Section:
        """As ``view``, with all that this worker has learned since."""
        self._forget_view(handler)
        return self.view(handler)

    @property
    def count(self) -> int:
        """Open events of all handlers, as of the last poll."""
        return sum(len(self.view(handler).open) for handler in self.handlers)

    @property
    def unwritten(self) -> bool:
        """Whether this worker knows something that the digest does not say."""
        joined = all(self._me in self._base(handler).workers for handler in self.handlers)
        return not joined or self._swept is not None or any(self._changes.values())

    def due(self, handler: str, now_ns: int) -> Iterator[str]:
        """Open events that this worker should claim now, in this order: its own, then those that others have left."""
        due = (name for name in self._candidates(handler) if self._is_due(handler, name, now_ns))
        mine = (name for name in due if self.is_mine(handler, self._share_of(handler, name)))
        first = next(mine, None)
        if first is not None:
            self._helping = 0
            yield from chain((first,), mine)
            return
        # The owner may be at work on the first of them, and has not written it yet.
        names = reversed(self._candidates(handler) if self._passed else ())
        left = (name for name in names if self._is_left(handler, self._share_of(handler, name)))
        self._helping = max(self._helping, 1)
        yield from islice((name for name in left if self._is_due(handler, name, now_ns)), self._helping)

    def claimed(self, *, lost: bool) -> None:
        """Some due events were claimed. If events of others were, and one was ``lost``, their owners are at work."""
        if self._helping and lost:
            self._passed.clear()
        self._helping = 0 if lost else 2 * self._helping

    def _is_due(self, handler: str, name: str, now_ns: int) -> bool:
        change = self._changes[handler]
        return name not in change.settled and change.due.get(name, self.view(handler).open[name].due_ns) <= now_ns

    def _candidates(self, handler: str) -> list[str]:
        """Open events by priority, then age; with ordered delivery only the oldest of each ordering key."""
        items = self.view(handler).open

        def urgent_first(name: str) -> tuple[int, str]:
            return -items[name].priority, name

        is_ordered = handler in self._ordered
        if handler not in self._orders:
            self._orders[handler] = sorted(items, key=None if is_ordered else urgent_first)
        return sorted(self.heads(handler), key=urgent_first) if is_ordered else self._orders[handler]

    def heads(self, handler: str) -> list[str]:
        """Of every ordering key the oldest event that is not settled."""
        settled = self._changes[handler].settled
        names = (name for name in self._orders[handler] if name not in settled)
        return digests.heads(names, self.view(handler).open)

    def next_due_ns(self, handler: str) -> int | None:
        """When the next open event may be tried; None if there is none."""
        section, change = self.view(handler), self._changes[handler]
        names = self._candidates(handler)
        times = (change.due.get(name, section.open[name].due_ns) for name in names if name not in change.settled)
        return min(times, default=None)

    def has_due(self) -> bool:
        """Whether any event may be tried now, by whichever worker, or has still to be read by its owner."""
        now_ns = self.now_ns()
        return bool(self._left) or any(
            self._is_due(handler, name, now_ns) for handler in self.handlers for name in self._candidates(handler)
        )

    @property
    def is_waiting_for_owners(self) -> bool:
        """Whether the last poll has left new events to their owners."""
        return bool(self._left)

    def places(self, handler: str) -> int:
        """How many places of the handler's window are taken."""
        return self.view(handler).places(self.now_ns(), ordered=handler in self._ordered)

    def takes(self, handler: str, type_name: str) -> bool:
        types = self.handlers[handler]
        return ANY_TYPE in types or type_name in types

    def _share_of(self, handler: str, name: str) -> str:
        """What decides who owns an open event: its name, or its ordering key, so that one worker has all of a key."""
        key = self.view(handler).open[name].order_key if handler in self._ordered else None
        return name if key is None else f"/{key}"

    def is_mine(self, handler: str, share: str) -> bool:
        """Whether this worker is the owner of an event, by its name or its ordering key."""
        return self._rank(handler, share) == 0

    def _rank(self, handler: str, share: str) -> int:
        """How many workers come before this one."""
        workers = self._base(handler).workers
        workers = workers if self._me in workers else (*workers, self._me)
        return 0 if len(workers) == 1 else digests.ranked(workers, share).index(self._me)

    def _is_left(self, handler: str, share: str) -> bool:
        """Whether the event is not this worker's, and all that come before it have left it."""
        passed = self._passed.get((handler, share), 0)
        return passed >= HELP_AFTER and passed >= HELP_AFTER * self._rank(handler, share) > 0

    def should_read(self, handler: str, name: str) -> bool:
        return handler in self._ordered or self.is_mine(handler, name) or self._is_left(handler, name)

    # What this worker learns

    def settle(self, handler: str, name: str) -> None:
        self._changes[handler].settled.add(name)

    def defer(self, handler: str, name: str, due_ns: int) -> None:
        self._changes[handler].due[name] = due_ns

    def refold(self, handler: str, bucket: str, seen: Fold, right: Fold) -> None:
        self._changes[handler].refold[bucket] = (seen, right)

    def sort(self, handler: str, events: Iterable[tuple[str, Envelope | None]], *, late: bool = False) -> None:
        """Add events to the handler's section: open, or settled if it does not take them. ``late`` ones are before the
        cursor."""
        change = self._changes[handler]
        for name, envelope in events:
            if envelope is None or not self.takes(handler, envelope.type):
                change.settled.add(name)
                continue
            change.found[name] = Item(envelope.priority, envelope.type, envelope.available_ns or 0, envelope.order_key)
            if late:
                change.late.add(name)
        self._forget_view(handler)

    # Polling

    async def poll(self) -> int:
        """Read what is new, up to the end of the listing or until the windows are full; how many events were read."""
        self._count_polls()
        is_quiet = not self.unwritten and not self.has_due()
        if not is_quiet and not self._is_current:
            await self.read()
        look = _Look(self)
        if look.handlers:
            folder = layout.event_folder(self.namespace)
            after = layout.event_key(self.namespace, look.cursor) if look.cursor else None
            async for page in self._store.list(folder, after=after):
                self.answered_ns = self._ambient.clock.monotonic_ns()
                names = [layout.name_of(entry.key) for entry in page.entries]
                if is_quiet and look.unread(names):
                    await self.read()  # other workers may have read them
                    is_quiet = False
                await look.learn(names)
                if not look.handlers:
                    break
        self.more = look.stopped
        self._left = {(handler, name) for name in look.left for handler in self.handlers}
        self._is_current = False
        if look.count > FIRST_BATCH:
            await self.sync()  # others need not read these events
        return look.count

    def _count_polls(self) -> None:
        """Count for how many polls each event of another worker has been left alone: new ones always, those that are
        known only while this worker has nothing of its own to do."""
        now_ns = self.now_ns()
        waiting = set(self._left)
        for handler in self.handlers:
            if len(self._base(handler).workers) > 1:
                names = (name for name in self.view(handler).open if self._is_due(handler, name, now_ns))
                shares = {self._share_of(handler, name) for name in names}
                if not any(self.is_mine(handler, share) for share in shares):
                    waiting |= {(handler, share) for share in shares}
        self._passed = {each: self._passed.get(each, 0) + 1 for each in waiting}

    async def greet(self) -> None:
        """Give workers that have started together with this one the time to join."""
        if self._is_new:
            self._is_new = False
            await asyncio.sleep(GREETING_S * self._ambient.rng.uniform(1, 1.5))  # they do not write all at once

    async def sync(self) -> None:
        """Write what this worker has learned, or, if that is nothing, read what others have."""
        if not self.unwritten or not await self.flush():
            await self.read()

    async def read(self) -> Digest:
        """The digest as it is now. One conditional GET."""
        try:
            found = await self._register.read()
        except Corrupt as error:
            await self._begin_anew(error)
        else:
            self._note(Digest() if found is None else found.value)
        self.answered_ns = self._ambient.clock.monotonic_ns()
        return self.digest

    async def _begin_anew(self, error: Corrupt) -> None:
        """Replace a digest that cannot be read with an empty one: everything in it can be derived again."""
        log.error("%s; it is derived anew", error)
        self._note(Digest())
        found = await self._store.find(self._key)
        if found is not None:
            document = self._shape.write(Digest(), None)
            body = codec.encode({**document, "write_id": self._ambient.ids.write_id()})
            await self._store.put(self._key, body, IfMatch(found.version))
        with suppress(Corrupt):  # overwritten with garbage again: the next poll handles it
            await self._register.read()  # the register must not continue from what it remembers

    def swept(self, to: str, alive: Iterable[str] | None) -> None:
        """This worker has swept history up to ``to``. Workers that are not ``alive`` have no share any more."""
        self._swept = (self.now_ns(), to, None if alive is None else frozenset(alive))

    async def flush(self, *, leaving: bool = False) -> bool:
        """Write what this worker has learned; False if that has to wait. ``leaving``: and take it off the workers."""
        if not self.unwritten and not leaving:
            return True
        changes = {handler: change.copy() for handler, change in self._changes.items()}
        swept, now_ns = self._swept, self.now_ns()

        def merge(digest: Digest | None) -> Digest:
            known = digest or Digest()
            swept_ns, swept_to, alive = swept or (known.swept_ns, known.swept_to, None)
            sections = self._merged(known, changes, now_ns)
            for handler, section in sections.items():
                workers = {each for each in section.workers if alive is None or each in alive} - {self._me}
                if handler in self.handlers and not leaving:
                    workers.add(self._me)
                sections[handler] = replace(section, workers=tuple(sorted(workers)))
            return Digest(sections, swept_ns, swept_to)

        try:
            edited = await self._register.edit(self._ambient.ids.unique(), merge)
        except (Ambiguous, Conflict, Unavailable) as error:
            log.debug("%s: %s; again later", self._key, error)
            return False
        except Corrupt as error:
            await self._begin_anew(error)
            return False
        self._is_current = True
        self._changes = {handler: self._changes[handler].without(changes[handler]) for handler in self.handlers}
        self._swept = None if self._swept is swept else self._swept
        self._note(edited.value)
        return True

    def _merged(self, digest: Digest, changes: Mapping[str, Change], now_ns: int) -> dict[str, Section]:
        sections = dict(digest.sections)
        for handler, change in changes.items():
            section = self._section(digest, handler)
            # If another worker has restarted the section, it does not have the names that our cursor has passed.
            known = change if section.cursor >= self._base(handler).cursor else replace(change, cursor="")
            sections[handler] = replace(apply(section, known), seen_ns=max(section.seen_ns, now_ns))
        return sections

    def _base(self, handler: str) -> Section:
        return self._section(self.digest, handler)

    def _section(self, digest: Digest, handler: str) -> Section:
        """The handler's section; a new one where the handler is new, or takes other types."""
        found = digest.sections.get(handler)
        types = self.handlers[handler]
        return found if found is not None and found.types == types else Section(types)

    def advance(self, handler: str, seen_to: str) -> None:
        """Move the cursor, now that all names up to ``seen_to`` are known."""
        section, change = self._base(handler), self._changes[handler]
        cursor = next_cursor(section, change, seen_to, self._ambient.clock.wall_ns())
        if cursor > max(section.cursor, change.cursor):
            change.cursor = cursor
            self._forget_view(handler)

    def _note(self, digest: Digest) -> None:
        self.digest = digest
        self._views.clear()
        self._orders.clear()

    def _forget_view(self, handler: str) -> None:
        self._views.pop(handler, None)
        self._orders.pop(handler, None)


class _Look:
    """One pass over the listing, in the order of names, until the window of every handler is full."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.count = 0
        """Events read."""
        self.left: set[str] = set()
        """New events that are left to their owners."""
        self.handlers = {handler for handler in feed.handlers if self._room_of(handler) >= digests.WINDOW // 4}
        """Those whose windows have room: at first a quarter of it, so that not every poll lists a long backlog."""
        self.stopped = len(self.handlers) < len(feed.handlers)
        self._cursors = {handler: feed.view(handler).cursor for handler in self.handlers}
        self.cursor = min(self._cursors.values(), default="")
        """Where the listing begins."""
        self._gaps: set[str] = set()
        """Handlers for which a name was left out: their cursors must not pass it."""
        self._batch = self._before_read = FIRST_BATCH
        """Events to read before the digest is read again, and how many of them are left."""

    async def learn(self, names: list[str]) -> None:
        """Read the events of a page that no worker has read yet."""
        while batch := [name for name in self.unread(names) if name not in self.left]:
            if not self._before_read:
                self._batch *= GROWTH
                self._before_read = self._batch
                await self._feed.greet()
                await self._feed.sync()
                continue
            own = [name for name in batch if self._should_read(name)]
            now = own[: min(self._before_read, self._room())]
            self.left.update(set(batch) - set(own) if len(own) == len(now) else ())
            self._before_read -= len(now)
            await self._read(now)
            self._drop_full()
        for handler in self._cursors.keys() - self._gaps:
            self._advance(handler, names)

    def unread(self, names: list[str]) -> list[str]:
        """The names that a handler with room needs."""
        views = [self._feed.view(handler) for handler in self.handlers]
        return [name for name in names if any(view.needs(name) for view in views)]

    def _should_read(self, name: str) -> bool:
        feed = self._feed
        return any(feed.should_read(each, name) for each in self.handlers if feed.view(each).needs(name))

    async def _read(self, names: list[str]) -> None:
        envelopes = await map_bounded(names, self._feed.envelope, limit=READS_AT_ONCE) if names else []
        self.count += len(names)
        for handler in self.handlers:
            view = self._feed.view(handler)
            events = zip(names, envelopes, strict=True)
            self._feed.sort(handler, [(name, envelope) for name, envelope in events if view.needs(name)])

    def _advance(self, handler: str, names: list[str]) -> None:
        view = self._feed.view(handler)
        gap = next((place for place, name in enumerate(names) if view.needs(name)), None)
        is_same = view.cursor >= self._cursors[handler]  # else it was restarted, before where the listing began
        if gap is not None or not is_same:
            self._gaps.add(handler)
        known = names if gap is None else names[:gap]
        if known and is_same:
            self._feed.advance(handler, known[-1])

    def _drop_full(self) -> None:
        full = {handler for handler in self.handlers if self._room_of(handler) <= 0}
        if self.count >= digests.WINDOW:
            full = set(self.handlers)  # enough for one poll: events that wait, or are of other types, fill no window
        self.stopped = self.stopped or bool(full)
        self.handlers -= full

    def _room(self) -> int:
        return max(self._room_of(handler) for handler in self.handlers)

    def _room_of(self, handler: str) -> int:
        """How many more events the handler's window has a place for."""
        return digests.WINDOW - self._feed.places(handler) - len(self.left)
