"""Lease: one object that names the current owner of some work, and until when.

Clocks decide liveness, never safety. A lease makes two owners at once unlikely. They are harmless only because of the
``epoch``, a fencing token that grows with every change of owner, or another compare-and-swap behind the lease. So an
owner calls ``guard`` before an effect, and sends the epoch (or an if-match) with it.

The document has the lock shape of the ontology specification (``owner_id``, ``acquired_at``, ``expires_at``,
``lease_ttl_ms``) plus ``epoch`` and ``write_id``; a lock written by other programs without an epoch counts as epoch
0. They may drop our fields, so the epoch is sure to grow only if all writers are Holdfast's.

Release is an if-match write of an expired lease, never a delete: conditional deletes are not atomic everywhere, and a
paused process could create a deleted name again. A released lease expires at the Unix epoch, which is in the past by
every clock, so clock skew causes no delay. ``released_at`` is information for people only.

Errors: ``Conflict`` if another owner holds the lease, or ours has expired; ``Fenced``, which is final, if another owner
has taken it over.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from holdfast.base import codec
from holdfast.base.clock import iso, parse_iso
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, Corrupt, Denied, Fenced, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Version, Written

POLL = RetryPolicy(attempts=1_000_000, base_ms=25, max_ms=1_000, deadline_ms=5_000)
"""How a waiter polls; ``deadline_ms`` is replaced by the caller's timeout."""
RELEASED_NS = 0
"""The expiry of a released lease."""
RELEASED_AT = "released_at"


@dataclass(frozen=True, slots=True)
class Held:
    """Another owner has the lease. ``remaining_ms`` is measured with our clock."""

    owner_id: str
    epoch: int
    remaining_ms: int
    acquired_at: str = field(default="", compare=False)
    """Changes with every acquisition, also by the same owner; renewals keep it."""


@dataclass(frozen=True, slots=True)
class LeaseState:
    """A parsed lease document."""

    owner_id: str
    epoch: int
    expires_ns: int
    ttl_ms: int
    document: Document

    @classmethod
    def parse(cls, found: Object) -> "LeaseState":
        document = codec.decode(found.body, key=found.key)
        try:
            return cls(
                owner_id=str(document["owner_id"]),
                epoch=int(document.get("epoch", 0)),
                expires_ns=parse_iso(document["expires_at"]),
                ttl_ms=int(document["lease_ttl_ms"]),
                document=document,
            )
        except codec.MALFORMED as error:
            raise Corrupt(f"{found.key}: not a lease ({error!r})") from error

    @property
    def released(self) -> bool:
        return self.expires_ns <= RELEASED_NS

    def expired(self, wall_ns: int) -> bool:
        return self.released or self.expires_ns <= wall_ns


@dataclass(slots=True)
class Grant:
    """A lease that we acquired. ``epoch`` is the fencing token."""

    owner_id: str
    epoch: int
    version: Version
    expires_ns: int
    acquired_at: str
    document: Document = field(repr=False)
    unsafe: str | None = None
    """Why this grant must not be used; set by a failed renewal, cleared by the next successful one."""
    ended: bool = False
    """Released or handed over: it cannot be renewed."""


class LeaseHeld(Conflict):
    """Another owner has the lease."""

    def __init__(self, key: str, owner_id: str, epoch: int, remaining_ms: int) -> None:
        super().__init__(
            f"{key}: held by {owner_id} (epoch {epoch}) for another {remaining_ms} ms",
            remedy="wait for it to be released or to expire",
        )
        self.owner_id = owner_id
        self.remaining_ms = remaining_ms


class Lease:
    """One lease, for one owner. ``owner_id`` must be unique to this process."""

    def __init__(self, store: Store, key: str, owner_id: str, ambient: Ambient, *, ttl_ms: int = 30_000) -> None:
        self._store = store
        self.key = key
        self.owner_id = owner_id
        self._ambient = ambient
        self.ttl_ms = ttl_ms
        self._last: Object | None = None

    async def acquire(self, *, timeout_ms: int = 5_000) -> Grant:
        """Wait for the lease; at the timeout, ``Conflict`` with the holder's name."""
        policy = RetryPolicy(POLL.attempts, POLL.base_ms, POLL.max_ms, timeout_ms)
        budget = policy.start(self._ambient)
        while True:
            match await self.try_acquire():
                case Grant() as grant:
                    return grant
                case Held(owner_id, epoch, remaining_ms, _):
                    if not await budget.another():
                        raise LeaseHeld(self.key, owner_id, epoch, remaining_ms)

    async def try_acquire(self) -> Grant | Held:
        """One attempt: acquire the lease if it is free, expired, or handed to us.

        The object that we wrote last may be outdated: a write over it saves a read if it wins, and ``Held`` is never
        returned because of it.
        """
        last, self._last = self._last, None
        if last is not None and self._free(last):
            outcome = await self._acquire_over(last)
            if isinstance(outcome, Grant):
                return outcome
            current = outcome
        else:
            current = await self._store.find(self.key)
        for _ in range(2):
            if current is not None and not self._free(current):
                return self._held(current)
            outcome = await self._acquire_over(current)
            if isinstance(outcome, Grant):
                return outcome
            current = outcome
        return self._held(current)

    async def renew(self, grant: Grant) -> None:
        """Extend the grant by a full term, counted from before the request. ``Fenced`` if another owner took over."""
        self._check_active(grant)
        try:
            await self._rewrite(grant, self.owner_id, grant.epoch, self.ttl_ms, renewal=True)
        except HoldfastError as error:
            if not grant.ended:
                grant.unsafe = f"renewal failed: {error}"
            raise
        self._check_active(grant)
        grant.unsafe = None

    async def hand_over(self, grant: Grant, successor_id: str) -> None:
        """Make ``successor_id`` the owner, with a new term; it acquires the lease at its next attempt."""
        grant.ended, grant.unsafe = True, f"handed over to {successor_id}"
        await self._rewrite(grant, successor_id, grant.epoch + 1, self.ttl_ms)

    async def release(self, grant: Grant) -> None:
        """Release the lease, unless another owner has taken it over."""
        grant.ended, grant.unsafe = True, "released"
        try:
            await self._rewrite(grant, self.owner_id, grant.epoch, None)
        except Fenced:
            return

    def guard(self, grant: Grant, *, margin_ms: int | None = None) -> None:
        """Raise unless the grant has ``margin_ms`` (a third of the term) left by our clock. Costs no request."""
        self._check_active(grant)
        if grant.unsafe is not None:
            raise Conflict(f"{self.key}: the lease is not safe to use ({grant.unsafe})", remedy="acquire it again")
        margin = self.ttl_ms // 3 if margin_ms is None else margin_ms
        remaining_ms = (grant.expires_ns - self._ambient.clock.wall_ns()) // 1_000_000
        if remaining_ms <= margin:
            raise Conflict(
                f"{self.key}: {remaining_ms} ms of the lease are left and {margin} are needed",
                remedy="renew or acquire it again",
            )

    @asynccontextmanager
    async def hold(self, *, timeout_ms: int = 5_000) -> AsyncIterator[Grant]:
        """Acquire, renew every third of the term while the body runs, release. ``guard`` before every effect."""
        grant = await self.acquire(timeout_ms=timeout_ms)
        renewal = asyncio.ensure_future(self._renew_regularly(grant))
        try:
            yield grant
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
            with suppress(Ambiguous, Unavailable):  # a lease that cannot be released expires
                if not grant.ended:
                    await self.release(grant)

    async def _renew_regularly(self, grant: Grant) -> None:
        """Renew until cancelled or fenced. An unavailable store may recover before the term ends, so keep trying."""
        while not grant.ended:
            await asyncio.sleep(self.ttl_ms / 3000)
            try:
                await self.renew(grant)
            except (Ambiguous, Unavailable, Denied):  # credentials may be renewed too
                continue
            except HoldfastError:
                return  # ``grant.unsafe`` has the reason

    def _check_active(self, grant: Grant) -> None:
        if grant.ended:
            raise Conflict(f"{self.key}: the lease was given up ({grant.unsafe})", remedy="acquire it again")

    def _free(self, found: Object) -> bool:
        state = LeaseState.parse(found)
        return state.owner_id == self.owner_id or state.expired(self._ambient.clock.wall_ns())

    async def _acquire_over(self, current: Object | None) -> Grant | Object | None:
        """Replace ``current`` by a lease of ours. Returns the grant, or the object that won."""
        state = LeaseState.parse(current) if current is not None else None
        epoch = (state.epoch if state is not None else 0) + 1
        sent_ns = self._ambient.clock.wall_ns()
        base = state.document if state is not None else {}
        document = self._document(base, self.owner_id, epoch, iso(sent_ns), sent_ns + self.ttl_ms * 1_000_000)
        mode = CREATE if current is None else IfMatch(current.version)
        match await self._store.put(self.key, codec.encode(document), mode):
            case Written(version):
                expires_ns = sent_ns + self.ttl_ms * 1_000_000
                return Grant(self.owner_id, epoch, version, expires_ns, document["acquired_at"], document)
            case lost:
                return lost.current

    async def _rewrite(
        self, grant: Grant, owner_id: str, epoch: int, ttl_ms: int | None, *, renewal: bool = False
    ) -> None:
        """If-match write over our own grant. A renewal of ours that landed late is not mistaken for another owner's.

        ``ttl_ms`` None is a release. A renewal of a lease that was released meanwhile leaves it released.
        """
        state: LeaseState | None = None
        for _ in range(4):
            sent_ns = self._ambient.clock.wall_ns()
            expires_ns = RELEASED_NS if ttl_ms is None else sent_ns + ttl_ms * 1_000_000
            base = state.document if state is not None else grant.document
            document = self._document(base, owner_id, epoch, grant.acquired_at, expires_ns)
            outcome = await self._store.put(self.key, codec.encode(document), IfMatch(grant.version))
            if isinstance(outcome, Written):
                grant.version, grant.document = outcome.version, document
                grant.expires_ns = expires_ns
                if owner_id == self.owner_id:
                    self._last = Object(self.key, codec.encode(document), sent_ns, outcome.version)
                return
            if outcome.current is None:
                raise Fenced(f"{self.key}: the lease object was deleted")
            state = LeaseState.parse(outcome.current)
            if state.owner_id == owner_id != grant.owner_id:
                return  # handed over, and the successor has renewed it since
            if (state.owner_id, state.epoch) != (grant.owner_id, grant.epoch):
                raise Fenced(f"{self.key}: taken over by {state.owner_id} (epoch {state.epoch})")
            if renewal:
                self._check_active(grant)
            grant.version = outcome.current.version
        raise Conflict(f"{self.key}: our own lease changes with every attempt", remedy="use one owner_id per process")

    def _document(self, base: Document, owner_id: str, epoch: int, acquired_at: str, expires_ns: int) -> Document:
        """``base`` with our fields; unknown fields are kept."""
        others = {name: value for name, value in base.items() if name != RELEASED_AT}
        released = {RELEASED_AT: iso(self._ambient.clock.wall_ns())} if expires_ns <= RELEASED_NS else {}
        return {
            **others,
            **released,
            "owner_id": owner_id,
            "acquired_at": acquired_at,
            "expires_at": iso(expires_ns),
            "lease_ttl_ms": self.ttl_ms,
            "epoch": epoch,
            "write_id": self._ambient.ids.write_id(),
        }

    def _held(self, current: Object | None) -> Held:
        if current is None:
            return Held("(no owner)", 0, 0)
        state = LeaseState.parse(current)
        remaining_ms = max(0, (state.expires_ns - self._ambient.clock.wall_ns()) // 1_000_000)
        return Held(state.owner_id, state.epoch, remaining_ms, str(state.document.get("acquired_at", "")))
