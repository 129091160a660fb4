"""Polling: what the digest says, what is new after its cursors, and what is due.

A poll is a conditional GET of the digest and a LIST after the smallest cursor. Names that no section knows are read
once, sorted into the sections, and written to the digest for everybody: ``flush`` writes all that this worker has
learnt in one edit. What the digest has no room for goes into piles, and is fetched when it is next.

Nothing here decides who gets an event. When the digest cannot be written the changes are kept for the next time.
"""

from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from itertools import islice

from holdfast.base import codec, telemetry
from holdfast.base.aio import map_bounded
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, HoldfastError, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.bodies import Bodies
from holdfast.bus.digest import Digest, DigestShape
from holdfast.bus.known import OPEN_LIMIT, Known
from holdfast.bus.pile import LATER, READY, Move, best, in_rank
from holdfast.bus.piles import LostSheet, Piles
from holdfast.bus.publish import Boundary
from holdfast.bus.turns import Backlog, Turns
from holdfast.objects.register import Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import IfMatch, NotModified, Object, Store, Version

log = telemetry.logger("bus")

SPILL_AT = 2 * OPEN_LIMIT
"""From so many on, all but the next ``OPEN_LIMIT`` go into a pile."""
FETCH = OPEN_LIMIT // 2
"""So many are fetched from piles at a time, when less than a quarter of them is left."""
LONG_LOOK = 16
"""A look of so many pages ends with the present: what has come since it began is for the next one."""
READS_AT_ONCE = 32
FIRST_LOOK = 32
SHARE = OPEN_LIMIT
"""So many new events are read before the others are told."""
HELP = 64
"""So many of others' are read before they are told, and asked."""
_FLUSHING = RetryPolicy(attempts=5, base_ms=5, max_ms=200, deadline_ms=5_000)


class Feed(Known):
    """One worker's look at one namespace, for some handlers: ``handlers`` maps each id to the types it takes."""

    def __init__(
        self,
        store: Store,
        namespace: str,
        ambient: Ambient,
        handlers: Mapping[str, Iterable[str]],
        me: str = "",
        *,
        ordered: Set[str] = frozenset(),
        boundary: Boundary | None = None,
    ) -> None:
        super().__init__(handlers, me, ordered, ambient)
        self._store = store
        self.namespace = namespace
        self._key = layout.digest_key(namespace)
        self._shape = DigestShape()
        self._register: Register[Digest] = Register(store, self._key, self._shape, ambient, policy=_FLUSHING)
        self._seen: Version | None = None
        self._boundary = boundary if boundary is not None else Boundary(store, namespace, ambient)
        self._piles = Piles(store, namespace, ambient)
        self.envelope = Bodies(store, namespace).read
        self._greeted = False
        self._step = self._at_once = FIRST_LOOK
        """How many events may be read before the digest is, and how many of them are left."""
        self.more = False
        """The last poll ended before the end, because there was enough to do."""
        self.answered_ns: int | None = None
        """When the store last answered this worker, on the monotonic clock."""
        self.unread = 0
        """New events that were left to other workers at the last poll."""

    async def poll(self, *, greedy: bool = True) -> int:
        """Learn what is new; how many names were read. Unless ``greedy``, other workers' are left to them for now."""
        began = layout.time_name(self._ambient.clock.wall_ns())
        await self.read()
        self.more = await self._may_stop(read=False)
        if self.more:
            return 0
        cursor = min((self.view(handler).cursor for handler in self.handlers), default="")
        folder = layout.event_folder(self.namespace)
        after = layout.event_key(self.namespace, cursor) if cursor else None
        fresh, pages, seen_to, self.unread = 0, 0, "", 0
        self._step = self._at_once = FIRST_LOOK
        async for page in self._store.list(folder, after=after):
            pages += 1
            self.answered_ns = self._ambient.clock.monotonic_ns()
            names = [layout.name_of(entry.key) for entry in page.entries]
            fresh += await self.learn(names, greedy=greedy)
            left = self._unknown(names)
            if not self.unread:
                seen_to = max([seen_to, *(name for name in names if not left or name < left[0])])
            self.unread += len(left)
            self._advance(seen_to)
            if self.unwritten >= SHARE or any(len(self.view(each).open) > SPILL_AT for each in self.handlers):
                await self.flush()
            if await self._may_stop(read=True) or (pages >= LONG_LOOK and names and names[0] > began):
                self.more = True
                break
        return fresh

    async def _may_stop(self, *, read: bool) -> bool:
        """Whether there is enough to do, and nothing that is unread can come before it: events of one priority come in
        the order of their names. Who has ``read`` something may begin with less, and read on at the next poll."""
        if self._ranked or self.digest.ranked:
            return False
        for handler in self._ordered:
            await self._line_up(handler)
        return self._has_enough(few=read) and not await self._boundary.is_ranked()

    async def stock(self) -> None:
        """Fetch from piles what comes next, where little of it is at hand. No request if nothing is lacking."""
        overdue = True
        while overdue:
            moves: dict[str, Move] = {}
            for handler in self.handlers:
                try:
                    move = await self._next(handler)
                except LostSheet as lost:
                    await self.begin_section_anew(handler, lost)
                else:
                    moves |= {} if move is None else {handler: move}
            # What has fallen due may come before everything else, so all of it is fetched.
            overdue = any(pile.kind == LATER for move in moves.values() for pile in move.before)
            overdue = bool(moves) and await self.flush(moves=moves) and overdue
            if overdue:
                await self.flush()
        for handler in self._ordered:
            await self._line_up(handler)

    async def _next(self, handler: str) -> Move | None:
        """What should be fetched."""
        section = self.view(handler)
        if not section.piles:
            return None
        now_ns = self._ambient.clock.wall_ns()
        later = best(section.piles, LATER)
        if later is not None and later[0] <= now_ns:
            return await self._piles.fetch(section.piles, LATER, count=OPEN_LIMIT, due_ns=now_ns)
        await self._line_up(handler)
        mine = (name for name in self.due(handler, now_ns) if self.is_mine(name))
        if section.fence() is None or len(list(islice(mine, FETCH // 4))) == FETCH // 4:
            return None
        if handler not in self._ordered:
            return await self._piles.fetch(section.piles, READY, count=FETCH, due_ns=now_ns)
        look, turns = self.look(handler), self._turns.get(handler)
        if look is None or turns is None or look.fence is None:
            return None
        return await self._piles.take(turns.piles, turns.choose(look, FETCH // 2))

    async def _line_up(self, handler: str) -> None:
        """Look into the piles of a handler with ordered delivery, if they are others than the last time. A GET per
        sheet that is new."""
        piles, turns = self.view(handler).piles, self._turns.get(handler)
        if handler not in self._ordered or not piles:
            self._turns.pop(handler, None)
            return
        if turns is not None and turns.piles == piles:
            return
        sheets = [sheet for pile in piles for sheet in pile.sheets]
        backlog = turns.backlog if turns is not None else Backlog({})
        if not all(sheet.id in backlog.sheets for sheet in sheets):
            try:
                backlog = Backlog(await self._piles.columns(sheets, backlog.sheets))
            except LostSheet as lost:
                await self.begin_section_anew(handler, lost)
                return
        self._turns[handler] = Turns(backlog, piles)
        self._line_ups.pop(handler, None)

    async def piled(self, handler: str, buckets: Set[str]) -> dict[str, list[str]] | None:
        """The names of these ten minutes that lie in piles; None if that cannot be told."""
        try:
            return await self._piles.names(self.view(handler).piles, buckets) if buckets else {}
        except LostSheet as lost:
            await self.begin_section_anew(handler, lost)
            return None

    async def begin_section_anew(self, handler: str, lost: LostSheet) -> None:
        """Somebody has used the sheet up, and the digest says so; or its events have to be looked for again."""
        await self.read()
        if any(lost.sheet == sheet.id for pile in self.view(handler).piles for sheet in pile.sheets):
            log.error("%s; the events of %s are looked for anew", lost, handler)
            await self.flush(anew={handler: lost.sheet})

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

        Of many, few are read at first, then more and more, and the digest in between, which says who shares the work by
        now. Others' are read when there is nothing left of our own, and told before the next ones are. For ordered
        delivery everything is read, in the order of names, so that nobody hears of an event before those it waits for.
        """
        fresh = 0
        while mine := self._own(names):
            if not self._at_once:
                self._step *= 2
                self._at_once = self._step
                await self.read()
                continue
            mine = mine[: self._at_once]
            await self._read_new(mine)
            fresh += len(mine)
            self._at_once -= len(mine)
        while greedy and (others := self.spread(self._unknown(names))[:HELP]):
            await self._read_new(others)
            fresh += len(others)
            await self.flush()
        return fresh

    def _own(self, names: Iterable[str]) -> list[str]:
        """The names that this worker should read."""
        return [name for name in self._unknown(names) if self._ordered or self.is_mine(name)]

    def _unknown(self, names: Iterable[str]) -> list[str]:
        views = [self.view(handler) for handler in self.handlers]
        return [name for name in names if any(name > view.cursor and not view.knows(name) for view in views)]

    async def _read_new(self, new: list[str]) -> None:
        views = {handler: self.view(handler) for handler in self.handlers}
        envelopes = await map_bounded(new, self.envelope, limit=READS_AT_ONCE) if new else []
        self.answered_ns = self._ambient.clock.monotonic_ns()
        for handler, view in views.items():
            unknown = [
                (name, envelope)
                for name, envelope in zip(new, envelopes, strict=True)
                if name > view.cursor and not view.knows(name)
            ]
            self.sort(handler, unknown)

    async def flush(
        self,
        *,
        sweep: tuple[int, str] | None = None,
        workers: Iterable[str] | None = None,
        leaving: bool = False,
        moves: Mapping[str, Move] | None = None,
        anew: Mapping[str, str] | None = None,
    ) -> bool:
        """Write what this worker has learnt; False if that has to wait. ``sweep`` notes when and how far one went, and
        ``workers`` who was alive then. A worker that is ``leaving`` takes itself off the list. ``moves`` go to and from
        piles; a section begins ``anew`` if it refers to the sheet.
        """
        try:
            planned = moves if moves is not None else {} if leaving else await self._spills()
        except Unavailable as error:
            log.debug("%s: %s; again later", self._key, error)
            return False
        idle = not any(self._changes.values()) and not planned and not anew
        if self._greeted and idle and sweep is None and not leaving:
            return True
        changes = {handler: change.copy() for handler, change in self._changes.items()}
        now_ns = self._ambient.clock.wall_ns()

        def merge(digest: Digest | None) -> Digest:
            known = digest or Digest()
            sections = self._merged(known, changes, now_ns, planned, anew or {})
            swept_ns, swept_to = sweep if sweep is not None else (known.swept_ns, known.swept_to)
            listed = self._listed(known.workers if workers is None else workers, leaving)
            return Digest(sections, swept_ns, swept_to, listed, known.ranked or self._ranked)

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
        await self._tidy(planned)
        return True

    async def _spills(self) -> dict[str, Move]:
        """Where too much is at hand, the last of it goes into a pile."""
        moves: dict[str, Move] = {}
        for handler in self.handlers:
            section = self.fresh_view(handler)
            if len(section.open) <= SPILL_AT:
                continue
            now_ns, ordered = self._ambient.clock.wall_ns(), handler in self._ordered
            rows = [row for row in section.open.items() if row[0] <= section.cursor]
            ready = [row for row in rows if row[1].due_ns <= now_ns]
            later = [row for row in rows if row[1].due_ns > now_ns]
            for kind, some in ((READY, ready), (LATER, later)):
                if len(some) > SPILL_AT and handler not in moves:
                    ranked = section.in_turn(some) if kind == READY and ordered else in_rank(some, kind)
                    moves[handler] = await self._piles.spill(ranked[OPEN_LIMIT:], kind)
        return moves

    async def _tidy(self, moves: Mapping[str, Move]) -> None:
        """Delete the sheets that are used up, or that came too late; merge piles that have become many."""
        gone: set[str] = set()
        for handler, move in moves.items():
            piles = set(self._base(handler).piles)
            before, after = ({sheet.id for pile in side for sheet in pile.sheets} for side in (move.before, move.after))
            landed = set(move.after) <= piles and not set(move.before) & piles
            gone |= before - after if landed else after - before
        with suppress(HoldfastError):  # cleanup takes what is left
            await self._piles.drop(gone)
        for handler, move in moves.items():
            if move.taken:
                with suppress(HoldfastError, LostSheet):  # they can stay many for a while
                    merge = await self._piles.merge(self._base(handler).piles)
                    if merge is not None:
                        await self.flush(moves={handler: merge})
