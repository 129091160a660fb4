"""The write lock, held in bursts: so that writers take turns instead of racing, and people see who writes.

Safety is the head CAS alone; the lock object may be deleted, stolen or ignored at any moment. What it gives:

* A session keeps the lock over a burst of commits, so that a commit costs nothing for it, and releases it when idle.
* A waiter leaves a mark in the lock object. After 20 commits or 2 s the holder looks for one, off the path of
  commits, and hands over between two commits.
* A plain writer leaves no mark. For its sake the lock lies free for a moment every now and then (``yielded_at`` says
  when it last did), which sessions of ours leave to others (``free_from``), mark or no mark. So it gets in within its
  5 s, however many of ours pass the lock among themselves.
* A waiter gives up when one lease lasts for the whole of ``timeout_ms``; while the lock changes hands, it waits on. A
  lease is identified by when it was acquired: a plain writer takes the lock again and again under one owner id.
* A plain writer does not hand over. A waiter polls as often as it does, and takes the lock over from it after
  ``timeout_ms`` in which it released the lock and took it again; its commit under way then races ours for the head.
* An object under the lock's key that is not a lease blocks no session: the first that reads it breaks it.

The marks are fields of the lock object that safety does not need: a plain writer that rewrites it may drop them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from holdfast.base import codec, telemetry
from holdfast.base.clock import iso, parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Fenced, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.lease import RELEASED_AT, RELEASED_NS, Grant, Held, Lease, LeaseState
from holdfast.objects.store import IfMatch, Object, Store, Written
from holdfast.ontology.format import layout


class Turn(Protocol):
    """What a committer needs of the lock. It makes commits fair; it is not needed for their safety."""

    async def take(self) -> bool:
        """Wait for the lock. True if another session may have held it since we did."""
        ...

    async def try_take(self) -> bool:
        """Take the lock if it is free, without waiting; returns whether we hold it."""
        ...

    def guard(self) -> None:
        """``Conflict`` unless our lease certainly lasts a while longer."""
        ...

    def committed(self) -> None:
        """One commit was made while we held it."""
        ...

    def done(self) -> None:
        """No commit is running any more, whether the last one succeeded or failed."""
        ...

    def keep(self, tasks: int) -> None:
        """Change the number of background tasks that need the lock, by +1 or -1, even if no commit is running."""
        ...


class Open:
    """No lock: for writers that do not take turns, such as tests and commands on an idle store."""

    async def take(self) -> bool:
        return False

    async def try_take(self) -> bool:
        return True

    def guard(self) -> None:
        return

    def committed(self) -> None:
        return

    def done(self) -> None:
        return

    def keep(self, tasks: int) -> None:
        return


log = telemetry.logger("ontology")

WANTED = "wanted_by"
FREE_FROM = "free_from"
YIELDED_AT = "yielded_at"

PLAIN_EPOCH = 0
"""Of a lease without an epoch, which a plain writer has taken."""
POLL_MS = 20.0
"""How often a plain writer looks whether the lock is free; so do we while one holds it."""


@dataclass(frozen=True, slots=True)
class LockOptions:
    """How a session shares the lock; all in milliseconds."""

    ttl_ms: int = 30_000
    timeout_ms: int = 5_000
    idle_ms: int = 200
    burst_ms: int = 2_000
    burst_commits: int = 20
    courtesy_every_ms: int = 2_000
    """How long our sessions together may hold the lock before it is left free for a plain writer."""
    timeouts: int = 24
    """A waiter gives up after so many time-outs even if the lock keeps changing hands."""


class BurstLease(Lease):
    """The lease with our marks: it is not free to us while it lies free for others."""

    leave_free_ns = 0
    """Written into the object when it is released."""
    from_plain = False
    """Take it even while a plain writer's lease lasts."""
    _met: tuple[str, int] = ("", 0)

    def _free(self, found: Object) -> bool:
        state = LeaseState.parse(found)
        if self.from_plain and _is_plain(state):
            return True
        if not super()._free(found):
            return False
        now_ns = self._ambient.clock.wall_ns()
        left_ns = _moment(state.document.get(FREE_FROM)) - now_ns
        if left_ns <= 0 or not state.expired(now_ns):
            return True
        # Bounded by our own clock too: the one who left it free may be far ahead of us.
        if self._met[0] != found.version:
            self._met = (found.version, self._ambient.clock.monotonic_ns())
        return self._ambient.clock.monotonic_ns() - self._met[1] > min(left_ns, 1_000_000_000)

    def _document(self, base: Document, owner_id: str, epoch: int, acquired_at: str, expires_ns: int) -> Document:
        gone = {FREE_FROM} if owner_id == base.get("owner_id") and not self.leave_free_ns else {FREE_FROM, WANTED}
        kept = {name: value for name, value in base.items() if name not in gone}
        document = super()._document(kept, owner_id, epoch, acquired_at, expires_ns)
        if self.leave_free_ns:
            return {**document, FREE_FROM: iso(self.leave_free_ns), YIELDED_AT: iso(self.leave_free_ns)}
        # A lock without it was a plain writer's, or was not held: the time begins to run now.
        return {YIELDED_AT: iso(self._ambient.clock.wall_ns()), **document}


class WriteLock:
    """One session's way to its turns; see ``commit.Turn``."""

    def __init__(
        self,
        store: Store,
        owner_id: str,
        ambient: Ambient,
        options: LockOptions | None = None,
    ) -> None:
        self._store = store
        self._ambient = ambient
        self._options = options if options is not None else LockOptions()
        self._lease = BurstLease(store, layout.LOCK, owner_id, ambient, ttl_ms=self._options.ttl_ms)
        self.on_idle: Callable[[], Awaitable[None]] | None = None
        self._grant: Grant | None = None
        self._epoch = 0
        """The epoch of our last turn; if the next is one higher, no other session held the lock in between."""
        self._busy = False
        self._kept = 0
        self._commits = 0
        self._used_ns = 0
        self._round_trip_ns = 0
        self._tending: asyncio.Task[None] | None = None
        self._giving = asyncio.Lock()
        self._wanted = False

    @property
    def held(self) -> bool:
        return self._grant is not None and not self._grant.ended

    async def take(self) -> bool:
        grant = self._grant
        usable = grant is not None and not grant.ended and grant.unsafe is None
        if usable and grant is not None and not (self._wanted or self._courtesy_due(grant)):
            self._busy = True
            return False
        await self._give_back()
        await self._acquire()
        self._busy = True
        return self._others_were_in

    async def try_take(self) -> bool:
        """Without waiting: whether it is ours now."""
        if self.held:
            return True
        outcome = await self._try_acquire()
        if isinstance(outcome, Grant):
            self._begin(outcome)
        return self.held

    def guard(self) -> None:
        if self._grant is None:
            raise Conflict(f"{layout.LOCK}: not held", remedy="acquire it again")
        self._lease.guard(self._grant)

    def committed(self) -> None:
        self._commits += 1

    def done(self) -> None:
        self._busy = False
        self._used_ns = self._now()

    def keep(self, tasks: int) -> None:
        self._kept += tasks

    async def close(self) -> None:
        async with self._giving:  # a release that is under way is worth waiting for
            tending, self._tending = self._tending, None
        if tending is not None:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)
        await self._give_back(leaving=True)

    # --- getting it ---

    async def _acquire(self) -> None:
        try:
            await self._wait()
        finally:
            self._lease.from_plain = False

    async def _wait(self) -> None:
        options = self._options
        began_ns = changed_ns = self._now()
        holders: list[tuple[str, int, str]] = []
        pause_ms = POLL_MS
        while True:
            sent_ns = self._now()
            outcome = await self._try_acquire()
            if isinstance(outcome, Grant):
                self._round_trip_ns = max(1, self._now() - sent_ns)
                self._begin(outcome)
                return
            now_ns = self._now()
            holder = (outcome.owner_id, outcome.epoch, outcome.acquired_at)
            if holder not in holders[-1:]:
                holders, changed_ns = [*holders[-1:], holder], now_ns
                await self._ask(outcome)
            waited_ms, total_ms = (now_ns - changed_ns) / 1e6, (now_ns - began_ns) / 1e6
            if waited_ms >= options.timeout_ms or total_ms >= options.timeout_ms * options.timeouts:
                raise Conflict(
                    f"{layout.LOCK}: held by {outcome.owner_id} for another {outcome.remaining_ms} ms",
                    remedy="commit again; if its owner is gone, it ends by itself, or: holdfast onto lock break",
                )
            self._lease.from_plain = len(holders) > 1 and total_ms >= options.timeout_ms
            await asyncio.sleep(self._ambient.rng.uniform(0.5, 1.0) * pause_ms / 1000)
            pause_ms = POLL_MS if outcome.epoch == PLAIN_EPOCH else min(pause_ms * 1.5, 150.0)

    async def _try_acquire(self) -> Grant | Held:
        try:
            return await self._lease.try_acquire()
        except Corrupt as error:
            log.warning("%s; such a lock has no holder, so it is broken", error)
            await break_lock(self._store, self._ambient)
            return await self._lease.try_acquire()

    async def _ask(self, held: Held) -> None:
        """Leave a mark for a holder of ours. Best effort: without it the holder stays a little longer."""
        if held.epoch == PLAIN_EPOCH or held.remaining_ms == 0:
            return
        with suppress(Ambiguous, Unavailable):
            found = await self._store.find(layout.LOCK)
            if found is None:
                return
            state = LeaseState.parse(found)
            if (state.owner_id, state.epoch) != (held.owner_id, held.epoch) or WANTED in state.document:
                return
            marked = {**state.document, WANTED: self._lease.owner_id, "write_id": self._ambient.ids.write_id()}
            await self._store.put(layout.LOCK, codec.encode(marked), IfMatch(found.version))

    def _begin(self, grant: Grant) -> None:
        self._others_were_in = grant.epoch != self._epoch + 1 or self._epoch == 0
        self._grant, self._epoch = grant, grant.epoch
        self._commits, self._wanted = 0, False
        self._used_ns = self._now()
        self._tending = asyncio.ensure_future(self._tend(grant))

    # --- keeping it ---

    async def _tend(self, grant: Grant) -> None:
        """Renew, look for waiters, release when idle: until this turn is over."""
        options = self._options
        renew_ns, look_ns, looked_at = self._now(), self._now(), 0
        while not grant.ended:
            await asyncio.sleep(min(options.idle_ms, options.burst_ms, options.ttl_ms // 3) / 4000)
            now_ns = self._now()
            try:
                if now_ns - renew_ns >= options.ttl_ms * 1_000_000 // 3:
                    renew_ns = now_ns
                    await self._lease.renew(grant)
                    self._wanted |= WANTED in grant.document
                elif self._commits - looked_at >= options.burst_commits or now_ns - look_ns >= options.burst_ms * 10**6:
                    look_ns, looked_at = now_ns, self._commits
                    await self._look(grant)
            except (Ambiguous, Unavailable):
                continue  # the next renewal may succeed; until then guard refuses
            except HoldfastError as error:
                grant.ended, grant.unsafe = True, grant.unsafe or str(error)
                return
            if self._free_to_go and (self._wanted or now_ns - self._used_ns >= options.idle_ms * 1_000_000):
                if self.on_idle is not None:
                    await self.on_idle()
                if self._free_to_go:
                    await self._give_back()

    @property
    def _free_to_go(self) -> bool:
        return not self._busy and not self._kept

    async def _look(self, grant: Grant) -> None:
        found = await self._store.find(layout.LOCK)
        if found is None:
            raise Fenced(f"{layout.LOCK}: the lease object is gone")
        state = LeaseState.parse(found)
        if (state.owner_id, state.epoch) != (grant.owner_id, grant.epoch):
            raise Fenced(f"{layout.LOCK}: taken over by {state.owner_id}")
        self._wanted |= WANTED in state.document

    def _courtesy_due(self, grant: Grant) -> bool:
        """Whether to leave the lock free for a plain writer, which leaves no mark when it waits."""
        since_ns = self._ambient.clock.wall_ns() - _moment(grant.document.get(YIELDED_AT))
        # The clock of the last holder may be ahead of ours.
        return abs(since_ns) >= self._options.courtesy_every_ms * 1_000_000

    # --- giving it back ---

    async def _give_back(self, *, leaving: bool = False) -> None:
        """Release, and wait for a moment if a session waits. With courtesy due, it is free that long for all."""
        async with self._giving:
            grant, self._grant = self._grant, None
            if grant is None or grant.ended:
                return
            pause_ns = self._courtesy_ns_needed()
            courtesy = self._courtesy_due(grant)
            self._lease.leave_free_ns = self._ambient.clock.wall_ns() + pause_ns if courtesy else 0
            with suppress(Ambiguous, Unavailable, Conflict):  # a lease that cannot be released ends by itself
                await self._lease.release(grant)
            self._lease.leave_free_ns = 0
            if (courtesy or self._wanted) and not leaving:
                await asyncio.sleep(pause_ns / 1e9)

    def _courtesy_ns_needed(self) -> int:
        """Time for a plain writer's next look and its write, at the pace that the store has."""
        return min(40_000_000 + 4 * self._round_trip_ns, 1_000_000_000)

    def _now(self) -> int:
        return self._ambient.clock.monotonic_ns()

    _others_were_in = True


@dataclass(frozen=True, slots=True)
class LockState:
    """Who holds the lock, for people; ``remaining_ms`` below zero means that it has expired."""

    owner_id: str
    epoch: int
    acquired_at: str
    expires_at: str
    remaining_ms: int
    released_at: str | None = None
    """By the clock of the session that released or broke it; None if it is held, or was left to expire."""

    @property
    def expired(self) -> bool:
        return self.remaining_ms <= 0


async def show(store: Store, ambient: Ambient) -> LockState | None:
    found = await store.find(layout.LOCK)
    return None if found is None else _described(_state(found), ambient)


async def break_lock(store: Store, ambient: Ambient) -> LockState | None:
    """Let the lock expire now, whatever its holder; the holder. Its holder's next commit takes it again, or waits."""
    for _ in range(8):
        found = await store.find(layout.LOCK)
        if found is None:
            return None
        state = _state(found)
        before = _described(state, ambient)
        document = {
            **state.document,
            "expires_at": iso(RELEASED_NS),
            RELEASED_AT: iso(ambient.clock.wall_ns()),
            "epoch": state.epoch + 1,
            "write_id": ambient.ids.write_id(),
        }
        if isinstance(await store.put(layout.LOCK, codec.encode(document), IfMatch(found.version)), Written):
            return before
    raise Conflict(f"{layout.LOCK}: it keeps changing", remedy="try again")


def _state(found: Object) -> LeaseState:
    """An object that is not a lease has no holder."""
    try:
        return LeaseState.parse(found)
    except Corrupt:
        return LeaseState("unreadable", 0, 0, 0, {"owner_id": "unreadable", "acquired_at": iso(0), "lease_ttl_ms": 0})


def _described(state: LeaseState, ambient: Ambient) -> LockState:
    now_ns = ambient.clock.wall_ns()
    acquired_at = str(state.document.get("acquired_at", ""))
    released_at = str(state.document.get(RELEASED_AT, "")) if state.released else None
    # Given back by a clock that is ahead of ours, it is free all the same.
    ended_ns = state.expires_ns if released_at is None else min(now_ns, _moment(released_at))
    remaining_ms = (ended_ns - now_ns) // 1_000_000
    return LockState(state.owner_id, state.epoch, acquired_at, iso(state.expires_ns), remaining_ms, released_at)


def _is_plain(state: LeaseState) -> bool:
    return state.epoch == PLAIN_EPOCH and not state.released


def _moment(text: object) -> int:
    try:
        return parse_iso(str(text))
    except ValueError:
        return 0
