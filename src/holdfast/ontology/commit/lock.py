"""The write lock, held over bursts of commits, so that writers take turns and people see who writes.

The lock is for fairness. Safety is the compare-and-swap of the head alone: the lock object may be deleted, stolen or
ignored at any moment.

* A session keeps the lock over a burst of commits, so that a commit costs nothing for it, and releases it when idle.
* A waiter marks the lock object (``wanted_by``). After 20 commits or 2 s the holder looks for a mark, not on the path
  of commits, and releases the lock between two commits.
* A plain writer leaves no mark. So every 2 s a release reserves the lock for plain writers for a moment (until
  ``free_from``): our sessions do not take it then. A plain writer gets the lock within its 5 s, also if many of our
  sessions pass it among themselves.
* A waiter gives up if one lease lasts for the whole of ``timeout_ms``. While the lock changes hands, it waits on. A
  lease is identified by its time of acquisition, because a plain writer takes the lock repeatedly under one owner id.
* A plain writer does not hand over. A waiter polls as often as a plain writer does. After ``timeout_ms`` in which the
  plain writer released and took the lock again, the waiter takes over its lease, and the two race for the head.
* An object under the lock's key that is not a lease blocks no session: the first one that reads it overwrites it.

A plain writer may drop our fields from the lock object; nothing depends on them but fairness.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from holdfast.base import codec, telemetry
from holdfast.base.clock import iso, parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Fenced, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.lease import RELEASED_AT, RELEASED_NS, Grant, Held, Lease, LeaseState
from holdfast.objects.store import IfMatch, Object, Store
from holdfast.ontology.chain.edits import edit
from holdfast.ontology.format import layout

log = telemetry.logger("ontology")

WANTED = "wanted_by"
FREE_FROM = "free_from"
"""Until then the lock is reserved for plain writers. In the past: when it was last reserved."""
RESERVED_MAX_NS = 1_000_000_000
PLAIN_EPOCH = 0
"""The epoch of a lease that a plain writer has taken."""
POLL_MS = 20.0
"""How often a plain writer polls the lock; so does a session of ours while a plain writer holds it."""
POLL_MAX_MS = 150.0
BURST_COMMITS = 20
TIMEOUTS = 24
"""A waiter gives up after so many timeouts even if the lock keeps changing hands."""


@dataclass(frozen=True, slots=True)
class LockOptions:
    ttl_ms: int = 30_000
    timeout_ms: int = 5_000
    idle_ms: int = 200
    """The lock is released after so long without a commit."""
    burst_ms: int = 2_000
    """How often a holder looks for waiters, and how often the lock is reserved for plain writers."""


class CommitLock:
    """The lock as committers and upkeep use it.

    This base class locks nothing. It is for writers without rivals, such as tests and commands on an idle store.
    """

    async def acquire(self) -> bool:
        """Wait for the lock. True if another session may have held it since this one did."""
        return False

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free; returns whether this session holds it."""
        return True

    def guard(self) -> None:
        """``Conflict`` unless the lease certainly lasts a while longer."""

    def committed(self) -> None:
        """A commit was made."""

    def done(self) -> None:
        """No commit is running any more, whether the last one succeeded or failed."""

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Do not release the lock while a background task needs it."""
        yield


class _BurstLease(Lease):
    """A lease with our marks."""

    reserved_until_ns = 0
    """Written when the lease is released."""
    take_from_plain = False
    """Take the lease although a plain writer's has not expired."""

    def _free(self, found: Object) -> bool:
        state = LeaseState.parse(found)
        if self.take_from_plain and state.epoch == PLAIN_EPOCH and not state.released:
            return True
        reserved_ns = _moment(state.document.get(FREE_FROM)) - self._ambient.clock.wall_ns()
        # A longer reservation is by a clock that is ahead of ours.
        return super()._free(found) and not 0 < reserved_ns <= RESERVED_MAX_NS

    def _document(self, base: Document, owner_id: str, epoch: int, acquired_at: str, expires_ns: int) -> Document:
        """A renewal keeps the mark of a waiter, any other write drops it."""
        renewal = owner_id == base.get("owner_id") and expires_ns > RELEASED_NS
        kept = {name: value for name, value in base.items() if name != WANTED or renewal}
        if self.reserved_until_ns or FREE_FROM not in kept:  # without a reservation the time to the first begins now
            kept[FREE_FROM] = iso(self.reserved_until_ns or self._ambient.clock.wall_ns())
        return super()._document(kept, owner_id, epoch, acquired_at, expires_ns)


class WriteLock(CommitLock):
    """The lock of one session."""

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
        self._lease = _BurstLease(store, layout.LOCK, owner_id, ambient, ttl_ms=self._options.ttl_ms)
        self.on_idle: Callable[[], Awaitable[None]] | None = None
        """Called before an idle session releases the lock."""
        self._grant: Grant | None = None
        self._epoch = 0
        """Of our last lease. If that of the next is one higher, no other session held the lock in between."""
        self._others_may_have_held = True
        self._committing = False
        self._users = 0
        """Background tasks that need the lock."""
        self._commits = 0
        """Under the present lease."""
        self._used_ns = 0
        self._round_trip_ns = 0
        self._tending: asyncio.Task[None] | None = None
        self._releasing = asyncio.Lock()
        self._wanted = False
        """A waiter has left a mark."""

    @property
    def held(self) -> bool:
        return self._grant is not None and not self._grant.ended

    async def acquire(self) -> bool:
        grant = self._grant
        usable = grant is not None and not grant.ended and grant.unsafe is None
        if usable and grant is not None and not (self._wanted or self._reservation_due(grant)):
            self._committing = True
            return False
        await self._release()
        try:
            await self._wait()
        finally:
            self._lease.take_from_plain = False
        self._committing = True
        return self._others_may_have_held

    async def try_acquire(self) -> bool:
        if not self.held:
            outcome = await self._attempt()
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
        self._committing = False
        self._used_ns = self._now()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1

    async def close(self) -> None:
        async with self._releasing:  # do not cancel a release in progress
            tending, self._tending = self._tending, None
        if tending is not None:
            tending.cancel()
            await asyncio.gather(tending, return_exceptions=True)
        await self._release(pause=False)

    # --- acquiring ---

    async def _wait(self) -> None:
        options = self._options
        began_ns = changed_ns = self._now()
        holders: list[tuple[str, int, str]] = []
        """The last two leases that were seen."""
        pause_ms = POLL_MS
        while True:
            sent_ns = self._now()
            outcome = await self._attempt()
            if isinstance(outcome, Grant):
                self._round_trip_ns = max(1, self._now() - sent_ns)
                self._begin(outcome)
                return
            now_ns = self._now()
            holder = (outcome.owner_id, outcome.epoch, outcome.acquired_at)
            if holder not in holders[-1:]:
                holders, changed_ns = [*holders[-1:], holder], now_ns
                await self._leave_mark(outcome)
            waited_ms, total_ms = (now_ns - changed_ns) / 1e6, (now_ns - began_ns) / 1e6
            if waited_ms >= options.timeout_ms or total_ms >= options.timeout_ms * TIMEOUTS:
                raise Conflict(
                    f"{layout.LOCK}: held by {outcome.owner_id} for another {outcome.remaining_ms} ms",
                    remedy="commit again; if its owner is gone, the lease ends by itself, or: holdfast onto lock break",
                )
            self._lease.take_from_plain = len(holders) > 1 and total_ms >= options.timeout_ms
            await asyncio.sleep(self._ambient.rng.uniform(0.5, 1.0) * pause_ms / 1000)
            pause_ms = POLL_MS if outcome.epoch == PLAIN_EPOCH else min(pause_ms * 1.5, POLL_MAX_MS)

    async def _attempt(self) -> Grant | Held:
        try:
            return await self._lease.try_acquire()
        except Corrupt as error:
            log.warning("%s; such a lock has no holder, so it is broken", error)
            await break_lock(self._store, self._ambient)
            return await self._lease.try_acquire()

    async def _leave_mark(self, held: Held) -> None:
        """Mark the lock for its holder. Best effort: without a mark the holder keeps the lock a little longer."""
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
        self._others_may_have_held = grant.epoch != self._epoch + 1 or self._epoch == 0
        self._grant, self._epoch = grant, grant.epoch
        self._commits, self._wanted = 0, False
        self._used_ns = self._now()
        self._tending = asyncio.ensure_future(self._tend(grant))

    # --- holding ---

    async def _tend(self, grant: Grant) -> None:
        """Renew the lease, look for waiters, and release it when idle."""
        options = self._options
        renewed_ns, looked_ns, looked_commits = self._now(), self._now(), 0
        while not grant.ended:
            await asyncio.sleep(min(options.idle_ms, options.burst_ms, options.ttl_ms // 3) / 4000)
            now_ns = self._now()
            try:
                if now_ns - renewed_ns >= options.ttl_ms * 1_000_000 // 3:
                    renewed_ns = now_ns
                    await self._lease.renew(grant)
                    self._wanted |= WANTED in grant.document
                elif self._commits - looked_commits >= BURST_COMMITS or now_ns - looked_ns >= options.burst_ms * 10**6:
                    looked_ns, looked_commits = now_ns, self._commits
                    await self._look(grant)
            except (Ambiguous, Unavailable):
                continue  # the next renewal may succeed; until then guard refuses
            except HoldfastError as error:
                grant.ended, grant.unsafe = True, grant.unsafe or str(error)
                return
            if self._releasable and (self._wanted or now_ns - self._used_ns >= options.idle_ms * 1_000_000):
                if self.on_idle is not None:
                    await self.on_idle()
                if self._releasable:
                    await self._release()

    @property
    def _releasable(self) -> bool:
        return not self._committing and not self._users

    async def _look(self, grant: Grant) -> None:
        found = await self._store.find(layout.LOCK)
        if found is None:
            raise Fenced(f"{layout.LOCK}: the lease object is gone")
        state = LeaseState.parse(found)
        if (state.owner_id, state.epoch) != (grant.owner_id, grant.epoch):
            raise Fenced(f"{layout.LOCK}: taken over by {state.owner_id}")
        self._wanted |= WANTED in state.document

    def _reservation_due(self, grant: Grant) -> bool:
        since_ns = self._ambient.clock.wall_ns() - _moment(grant.document.get(FREE_FROM))
        # The clock of an earlier holder may be ahead of ours.
        return abs(since_ns) >= self._options.burst_ms * 1_000_000

    # --- releasing ---

    async def _release(self, *, pause: bool = True) -> None:
        """Release the lock. If a session waits, or the lock is reserved, pause for a moment afterwards."""
        async with self._releasing:
            grant, self._grant = self._grant, None
            if grant is None or grant.ended:
                return
            # Enough for the next poll of a plain writer and its write, at the pace of the store.
            moment_ns = min(40_000_000 + 4 * self._round_trip_ns, RESERVED_MAX_NS)
            due = self._reservation_due(grant)
            self._lease.reserved_until_ns = self._ambient.clock.wall_ns() + moment_ns if due else 0
            with suppress(Ambiguous, Unavailable, Conflict):  # a lease that cannot be released ends by itself
                await self._lease.release(grant)
            self._lease.reserved_until_ns = 0
            if pause and (due or self._wanted):
                await asyncio.sleep(moment_ns / 1e9)

    def _now(self) -> int:
        return self._ambient.clock.monotonic_ns()


# --- for people ---


@dataclass(frozen=True, slots=True)
class LockState:
    """The holder of the lock; ``remaining_ms`` below zero means that the lease has expired."""

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
    """Let the lease expire now, whatever its holder. Returns the state before."""
    before: LockState | None = None

    def change(found: Object | None) -> Document | None:
        nonlocal before
        if found is None:
            before = None
            return None
        state = _state(found)
        before = _described(state, ambient)
        return {
            **state.document,
            "expires_at": iso(RELEASED_NS),
            RELEASED_AT: iso(ambient.clock.wall_ns()),
            "epoch": state.epoch + 1,
            "write_id": ambient.ids.write_id(),
        }

    await edit(store, layout.LOCK, change)
    return before


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
    # A lease that was released by a clock ahead of ours is free all the same.
    ended_ns = state.expires_ns if released_at is None else min(now_ns, _moment(released_at))
    remaining_ms = (ended_ns - now_ns) // 1_000_000
    return LockState(state.owner_id, state.epoch, acquired_at, iso(state.expires_ns), remaining_ms, released_at)


def _moment(text: object) -> int:
    try:
        return parse_iso(str(text))
    except ValueError:
        return 0
