"""Claims in the store: each action is one conditional write of the claim object.

Every action compares session and generation, never the version alone. Our own write that landed late changes the
version and not the owner, so the claim as it is now is the base of the next write. If the owner has changed, nothing is
written (``ClaimLost``).

The write that settles a claim carries what must follow from it; ``effects`` writes that, under deterministic keys, and
may be called by any worker that finds a settled claim, any number of times. An event counts as settled when its effects
are written.
"""

import asyncio
from dataclasses import dataclass, field, replace

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.codec import Document
from holdfast.base.errors import Conflict
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.claim import Ack, Action, Claim, Denied, Fail, Owner, Release, Renew, Retry, Take, Try, first, step
from holdfast.bus.errors import ClaimLost
from holdfast.bus.event import DEAD_LETTER_TYPE, Emission, Envelope
from holdfast.bus.publish import put_event
from holdfast.objects.store import CREATE, IfMatch, Object, Store, Version, Written

OWN_ECHOES = 4
"""How often our own late writes may come in between before we give up."""


@dataclass
class Hold:
    """A claim that is ours: proof of ownership, and the version that the next write replaces."""

    claim: Claim
    version: Version
    unproven: bool
    """The boundary must be read before the event is delivered, because no failed try proves that a worker has read it
    since the claim object was created: the event may have been cleaned up, and its claim created again after that."""
    lost: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock, repr=False)

    @property
    def owner(self) -> Owner:
        return self.claim.owner


@dataclass(frozen=True, slots=True)
class Known:
    """A claim as it was last seen."""

    claim: Claim
    version: Version


@dataclass(frozen=True, slots=True)
class Busy:
    """Not available before ``due_ns``."""

    due_ns: int


@dataclass(frozen=True, slots=True)
class Over:
    """Settled, by this worker or another."""

    claim: Claim


class Claims:
    """The claims of one namespace, seen by one session."""

    def __init__(
        self, store: Store, namespace: str, session_id: str, ambient: Ambient, *, lease_ms: int, max_chain_depth: int
    ) -> None:
        self._store = store
        self.namespace = namespace
        self.session_id = session_id
        self._ambient = ambient
        self.lease_ms = lease_ms
        self._max_chain_depth = max_chain_depth
        self._known: dict[str, Known] = {}
        """Claims that this session gave up last, to be claimed again without a look."""

    async def take(self, name: str, handler_id: str) -> Hold | Busy | Over:
        """Claim the event for the handler: one PUT, if it has no claim, or this session handed it back last."""
        key = self._key(name, handler_id)
        take = Take(self.session_id, self.lease_ms)
        known = self._known.pop(key, None)
        for _ in range(2):
            now_ns = self._now()
            if known is None:
                wanted = first(name, layout.event_id(name), handler_id, take, now_ns)
            else:
                stepped = step(known.claim, take, now_ns)
                if isinstance(stepped, Denied):
                    return Over(known.claim) if known.claim.settled else Busy(stepped.due_ns)
                wanted = replace(stepped, event_name=name)  # a plain claim does not say it
            mode = CREATE if known is None else IfMatch(known.version)
            outcome = await self._store.put(key, self._body(wanted), mode)
            if isinstance(outcome, Written):
                return Hold(wanted, outcome.version, unproven=wanted.attempts == 0)
            known = None if outcome.current is None else self._parse(outcome.current)
        return Busy(self._now())

    async def renew(self, hold: Hold) -> None:
        await self._act(hold, Renew(self.lease_ms))

    async def ack(self, hold: Hold, outbox: tuple[Document, ...] = ()) -> Claim:
        return await self._act(hold, Ack(outbox))

    async def fail(self, hold: Hold, error: str, retry: Retry, *, hopeless: bool = False) -> Claim:
        return self._remember(hold, await self._act(hold, Fail(error, retry, self._ambient.rng.random(), hopeless)))

    async def release(self, hold: Hold, due_ns: int = 0, *, untried: bool = False) -> Claim:
        return self._remember(hold, await self._act(hold, Release(due_ns, untried)))

    async def note(self, hold: Hold, commits: tuple[Try, ...]) -> None:
        """Write down what the owner is about to commit elsewhere. ``ClaimLost`` if it is not the owner any more."""
        await self._act(hold, Renew(self.lease_ms, commits))

    async def look(self, name: str, handler_id: str) -> Claim | None:
        """The claim as it is now."""
        found = await self._store.find(self._key(name, handler_id))
        return None if found is None else self._parse(found).claim

    async def effects(self, claim: Claim, envelope: Envelope | None) -> None:
        """Write what follows from a settled claim, if absent. ``envelope`` is the event, if it still exists."""
        for document in claim.outbox:
            emitted = Envelope.parse(document, key=self._key(claim.event_name, claim.handler_id))
            await put_event(self._store, emitted)
        if claim.dead_ns is None:
            return
        letter = dead_letter(claim, envelope, self.namespace)
        place = layout.dead_letter_key(self.namespace, claim.event_id, claim.handler_id)
        await self._store.put(place, codec.encode(letter), CREATE)
        notice = dead_letter_event(claim, envelope, self.namespace)
        if notice.chain_depth <= self._max_chain_depth:
            await put_event(self._store, notice)

    async def _act(self, hold: Hold, action: Action) -> Claim:
        async with hold.lock:
            base, version = hold.claim, hold.version
            for _ in range(OWN_ECHOES):
                wanted = step(base, action, self._now(), hold.owner)
                if isinstance(wanted, Denied):
                    return self._already(hold, base, action)
                key = self._key(base.event_name, base.handler_id)
                outcome = await self._store.put(key, self._body(wanted), IfMatch(version))
                if isinstance(outcome, Written):
                    hold.claim, hold.version = wanted, outcome.version
                    return wanted
                if outcome.current is None:
                    hold.lost = True
                    raise ClaimLost(f"{key}: the claim was cleaned up")
                current = self._parse(outcome.current)
                base, version = current.claim, current.version
            raise Conflict(f"{self._key(base.event_name, base.handler_id)}: our own claim keeps changing under us")

    def _already(self, hold: Hold, current: Claim, action: Action) -> Claim:
        """An action that the claim does not allow: our own has landed before, or the claim is not ours any more."""
        if current.owner == hold.owner:
            landed = isinstance(action, Ack) and current.ack_ns is not None
            failed = isinstance(action, Fail | Release) and current.last_error is not None
            if landed or failed:
                hold.claim = current
                return current
        hold.lost = True
        key = self._key(current.event_name or hold.claim.event_name, current.handler_id)
        raise ClaimLost(f"{key}: session {current.session_id} has it (generation {current.generation})")

    def _remember(self, hold: Hold, claim: Claim) -> Claim:
        if not claim.settled and claim is hold.claim:
            self._known[self._key(claim.event_name, claim.handler_id)] = Known(claim, hold.version)
        return claim

    def _parse(self, found: Object) -> Known:
        return Known(Claim.parse(codec.decode(found.body, key=found.key), key=found.key), found.version)

    def _body(self, claim: Claim) -> bytes:
        return codec.encode(claim.document(write_id=self._ambient.ids.write_id()))

    def _key(self, name: str, handler_id: str) -> str:
        return layout.claim_key(self.namespace, layout.event_id(name), handler_id)

    def _now(self) -> int:
        return self._ambient.clock.wall_ns()


def dead_letter(claim: Claim, envelope: Envelope | None, namespace: str) -> Document:
    """The specification's six fields, and the event, which cleanup may remove long before its letter."""
    lineage: Document = {}
    if envelope is not None:
        lineage = {
            "event_type": envelope.type,
            "event_name": envelope.name,
            "root_event_id": envelope.root_event_id,
            "chain_depth": envelope.chain_depth,
            "event": envelope.document(),
        }
    return {
        "event_id": claim.event_id,
        "handler_id": claim.handler_id,
        "namespace": namespace,
        "failed_at": iso(claim.dead_ns or 0),
        "attempts": claim.attempts,
        "last_error": claim.last_error,
        **lineage,
    }


def dead_letter_event(claim: Claim, envelope: Envelope | None, namespace: str) -> Envelope:
    """``event.dead_letter``: the same id, time and bytes for every worker that derives it from the claim."""
    payload = {
        "event_id": claim.event_id,
        "handler_id": claim.handler_id,
        "event_type": "" if envelope is None else envelope.type,
        "attempts": claim.attempts,
        "last_error": claim.last_error,
    }
    ident = layout.derived_id(DEAD_LETTER_TYPE, namespace, claim.event_id, claim.handler_id)
    parent = envelope if envelope is not None else Envelope(claim.event_id, namespace, "", {}, 0)
    return Emission(DEAD_LETTER_TYPE, payload).envelope(
        namespace, ident, (claim.dead_ns or 0) // 1000 * 1000, parent=parent
    )
