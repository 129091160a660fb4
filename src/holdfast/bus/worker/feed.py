"""Polling: reads the digest, reads new events after its cursors, and says which events a worker should claim next.

A poll is a conditional GET of the digest and a LIST after the lowest cursor; while there is nothing to do, the LIST
alone. A name that no worker has read yet is read once, sorted into the sections, and written to the digest for all
workers: ``flush`` writes everything that this worker has learned in one edit. What a worker learns is kept in one
``Change`` per handler; its own view of a section is the digest with that change.

Workers share the events: each has an owner (see ``Digest.owner``), which reads and claims it. Other workers take it
when its owner has left it for ``HELP_AFTER`` polls, because the owner is dead or has too much to do. Workers with an
ordered handler read everything, in the order of names: only then is the oldest event of an ordering key known.

Nothing here decides who gets an event; claims do. If the digest cannot be written, the changes are kept for later.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace

from holdfast.base import codec, telemetry
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.event import ANY_TYPE, Envelope
from holdfast.bus.worker import digest as digests
from holdfast.bus.worker.digest import Change, Digest, DigestShape, Fold, Item, Section, apply, hash_of, next_cursor
from holdfast.objects.register import Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import IfMatch, NotModified, Object, Store, Version

log = telemetry.logger("bus")

READS_AT_ONCE = 32
FIRST_BATCH = 8
"""Events read in a poll before the digest is read again; doubles with every batch. Workers that start together learn of
each other that way before each of them has read everything."""
HELP_AFTER = 3
"""Polls that an event is left to its owner."""
CACHED_BODIES = 8_192
CACHED_BYTES = 16 * 1024
"""Larger events are not cached."""
REMEMBERED_OWNERS = 8_192
_FLUSHING = RetryPolicy(attempts=5, base_ms=5, max_ms=200, deadline_ms=5_000)


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
        me: str = "",
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
        self._seen: Version | None = None
        self.envelope = Bodies(store, namespace).read
        self.digest = Digest()
        self._joined = False
        """Whether the digest lists this worker."""
        self._changes = {handler: Change() for handler in self.handlers}
        self._views: dict[str, Section] = {}
        self._orders: dict[str, list[str]] = {}
        self._owned: dict[str, bool] = {}
        self._left: set[str] = set()
        """New events that the last poll left to their owners."""
        self._passed: dict[str, int] = {}
        """Events, or ordering keys, of other workers that no worker has read or claimed yet, and for how many polls."""
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
        return not self._joined or any(self._changes.values())

    def due(self, handler: str, now_ns: int) -> Iterator[str]:
        """Open events that this worker should claim now, in this order: its own, then those that others have left."""
        section, change = self.view(handler), self._changes[handler]

        def is_due(name: str) -> bool:
            return name not in change.settled and change.due.get(name, section.open[name].due_ns) <= now_ns

        names = [(name, self._share_of(handler, name)) for name in self._candidates(handler)]
        yield from (name for name, share in names if self.is_mine(share) and is_due(name))
        if self._passed:
            left = (name for name, share in names if self._is_left(share) and is_due(name))
            yield from sorted(left, key=lambda name: hash_of(f"{self._me}{name}"))  # helpers do not begin alike

    def _candidates(self, handler: str) -> list[str]:
        """Open events by priority, then age; with ordered delivery only the oldest of each ordering key."""
        section = self.view(handler)
        if handler not in self._orders:
            ordered = handler in self._ordered
            self._orders[handler] = sorted(section.open) if ordered else section.in_order()
        if handler not in self._ordered:
            return self._orders[handler]
        return sorted(self.heads(handler), key=lambda name: (-section.open[name].priority, name))

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
        now_ns = self._ambient.clock.wall_ns()
        return bool(self._left) or any(self._is_any_due(handler, now_ns) for handler in self.handlers)

    def _is_any_due(self, handler: str, now_ns: int) -> bool:
        section, change = self.view(handler), self._changes[handler]
        return any(
            name not in change.settled and change.due.get(name, section.open[name].due_ns) <= now_ns
            for name in self._candidates(handler)
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

    def is_mine(self, share: str) -> bool:
        """Whether this worker is the owner of an event, by its name or its ordering key."""
        known = self._owned.get(share)
        if known is None:
            known = self._owned[share] = self.digest.owner(share, self._me) == self._me
        return known

    def _is_left(self, share: str) -> bool:
        return self._passed.get(share, 0) >= HELP_AFTER and not self.is_mine(share)

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
        self._left = look.left
        self._count_polls()
        self._is_current = False
        return look.count

    def _count_polls(self) -> None:
        """Count for how many polls each event of another worker has been left alone: new ones always, those that are
        known only while this worker has nothing of its own to do."""
        now_ns = self.now_ns()
        due: set[str] = set()
        for handler in self.handlers if len(self.digest.workers) > 1 else ():
            items = self.view(handler).open.items()
            due.update(self._share_of(handler, name) for name, item in items if item.due_ns <= now_ns)
        others = set() if any(map(self.is_mine, due)) else due
        self._passed = {share: self._passed.get(share, 0) + 1 for share in others | self._left}

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
            return self.digest
        self.answered_ns = self._ambient.clock.monotonic_ns()
        if isinstance(found, Object):
            try:
                self._note(self._shape.read(codec.decode(found.body, key=self._key), self._key))
                self._seen = found.version
            except Corrupt as error:
                await self._begin_anew(found, error)
        self._forget_views()
        return self.digest

    async def _begin_anew(self, found: Object | None, error: Corrupt) -> None:
        """Replace a digest that cannot be read with an empty one: everything in it can be derived again."""
        log.error("%s; it is derived anew", error)
        self._seen = None
        self._note(Digest())
        if found is not None:
            document = self._shape.write(Digest(), None)
            body = codec.encode({**document, "write_id": self._ambient.ids.write_id()})
            await self._store.put(self._key, body, IfMatch(found.version))
        with suppress(Corrupt):  # overwritten with garbage again: the next poll handles it
            await self._register.read()  # the register must not go on from what it remembers

    async def flush(
        self,
        *,
        sweep: tuple[int, str] | None = None,
        workers: Iterable[str] | None = None,
        leaving: bool = False,
    ) -> bool:
        """Write what this worker has learned; False if that has to wait.

        ``sweep`` is when and how far the sweep went, and ``workers`` the sessions that were alive then. A worker that
        is ``leaving`` takes itself off the list of workers.
        """
        if not self.unwritten and sweep is None and not leaving:
            return True
        changes = {handler: change.copy() for handler, change in self._changes.items()}
        now_ns = self._ambient.clock.wall_ns()

        def merge(digest: Digest | None) -> Digest:
            known = digest or Digest()
            swept_ns, swept_to = sweep if sweep is not None else (known.swept_ns, known.swept_to)
            others = {each for each in (known.workers if workers is None else workers) if each != self._me}
            listed = others if leaving or not self._me else {*others, self._me}
            return Digest(self._merged(known, changes, now_ns), swept_ns, swept_to, tuple(sorted(listed)))

        try:
            edited = await self._register.edit(self._ambient.ids.unique(), merge)
        except (Ambiguous, Conflict, Unavailable) as error:
            log.debug("%s: %s; again later", self._key, error)
            return False
        except Corrupt as error:
            await self._begin_anew(await self._store.find(self._key), error)
            return False
        self._joined = self._is_current = True
        self._note(edited.value)
        written = self._register.remembered
        if written is not None and written.value is edited.value:
            self._seen = written.version  # what this worker has written itself it need not read
        self._changes = {handler: self._changes[handler].without(changes[handler]) for handler in self.handlers}
        self._forget_views()
        return True

    def _merged(self, digest: Digest, changes: Mapping[str, Change], now_ns: int) -> dict[str, Section]:
        sections = dict(digest.sections)
        for handler, change in changes.items():
            section = self._section(digest, handler)
            # If another worker has begun the section anew, it does not have the names that our cursor has passed.
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

    @property
    def reads_all(self) -> bool:
        """Whether this worker reads the events of all owners."""
        return bool(self._ordered)

    def should_read(self, name: str) -> bool:
        return self.is_mine(name) or self._is_left(name)

    def _note(self, digest: Digest) -> None:
        if digest.workers != self.digest.workers or len(self._owned) > REMEMBERED_OWNERS:
            self._owned.clear()
        self.digest = digest
        self._forget_views()

    def _forget_view(self, handler: str) -> None:
        self._views.pop(handler, None)
        self._orders.pop(handler, None)

    def _forget_views(self) -> None:
        self._views.clear()
        self._orders.clear()


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
        self._reads_all = feed.reads_all

    async def learn(self, names: list[str]) -> None:
        """Read the events of a page that no worker has read yet."""
        while batch := [name for name in self.unread(names) if name not in self.left]:
            if not self._before_read:
                self._batch *= 2
                self._before_read = self._batch
                await self._feed.read()  # says which workers share the events by now
                continue
            own = [name for name in batch if self._reads_all or self._feed.should_read(name)]
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
        is_same = view.cursor >= self._cursors[handler]  # else it was begun anew, before where the listing began
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
