"""Handlers over the whole platform: what handlers get beyond the bus, and handlers that are workflows.

``ctx.ensure``, ``ctx.retract`` and ``ctx.emit`` of a handler queue changes; ``await ctx.commit()`` makes one commit of
them, events included, once for every event, however often the handler is called. Before the head of an attempt is
written, the attempt is recorded in the event's claim, which only its owner can write. A later owner looks for those
attempts in the chain first and returns the commit that was made. An attempt of an owner that lost its claim is based on
the same head as the new owner's, so at most one of them lands; a second try would have to be recorded in the claim,
which the old owner cannot write.

What is emitted and not committed becomes visible with the ack. What is ensured and not committed is an error.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from holdfast.base.errors import Ambiguous, Conflict, Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import Context as BusContext
from holdfast.bus.worker.claims import Claims, Hold
from holdfast.objects.store import Store
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.format.data.batch import Batch, Intent, size
from holdfast.ontology.session import ANY, Anything, Options
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import Place
from holdfast.platform.outbox import enclosed
from holdfast.platform.session import Session

M = TypeVar("M", bound=Mixin)

TRIES = 6
"""How often the outcome of a commit is looked up before ``Ambiguous`` is raised."""


class Desk:
    """What the handlers of one worker share: one session, one commit at a time."""

    def __init__(self, store: Store, ambient: Ambient, options: Options) -> None:
        self._store = store
        self._ambient = ambient
        self._options = options
        self._session: Session | None = None
        self._one = asyncio.Lock()

    def session(self, *types: type[Mixin]) -> Session:
        """The session, which learns of types as handlers use them."""
        if self._session is None:
            self._session = Session(self._store, self._ambient, (), self._options)
        for each in types:
            self._session.add(each)
        return self._session

    async def commit(
        self,
        intents: Sequence[Intent | Batch],
        outbox: Sequence[dict[str, Any]],
        metadata: Mapping[str, Any],
        if_head: int | None,
        witness: "ClaimWitness",
    ) -> Commit | None:
        async with self._one:
            session = self.session()
            session.enqueue(intents, outbox)
            try:
                return await self._insist(session, metadata, if_head, witness)
            finally:
                session.discard()

    async def _insist(
        self, session: Session, metadata: Mapping[str, Any], if_head: int | None, witness: "ClaimWitness"
    ) -> Commit | None:
        for attempt in range(TRIES):
            try:
                return await session.commit(metadata, if_head=if_head, witness=witness)
            except (Ambiguous, Unavailable):
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(0.05 * 2**attempt)
        raise Conflict("the commit could not be settled")

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


@dataclass(frozen=True)
class ClaimWitness:
    """The attempts at one commit of one handler's event, kept in the claim."""

    claims: Claims
    hold: Hold
    number: int

    @property
    def places(self) -> Sequence[Place]:
        return [Place(at, path) for number, at, path in self.hold.claim.commits if number == self.number]

    async def note(self, place: Place) -> None:
        known = self.hold.claim.commits
        # An attempt with a lower number is not on the chain, or it would have been found: it cannot land any more.
        kept = tuple(each for each in known if each[0] != self.number or each[1] >= place.commit_id)
        await self.claims.note(self.hold, (*kept, (self.number, place.commit_id, place.path)))


@dataclass
class Context(BusContext):
    """What a handler is given besides its event."""

    desk: Desk = field(kw_only=True, repr=False)
    intents: list[Intent | Batch] = field(default_factory=list, repr=False)
    commits: int = 0

    @classmethod
    def over(cls, given: BusContext, desk: Desk) -> "Context":
        values = {each.name: getattr(given, each.name) for each in fields(BusContext)}
        return cls(**values, desk=desk)

    def ensure(self, given: Any, of: type[Mixin] | None = None, *, expect: Mixin | int | Anything | None = ANY) -> int:
        """Queue that these objects be as they are given; see the ontology's ``ensure``."""
        if of is None and not isinstance(given, Mixin) and isinstance(given, Iterable):
            given = list(given)
        objects = given if isinstance(given, list) else [given]
        types = [of] if of is not None else [type(each) for each in objects if isinstance(each, Mixin)]
        queued = self.desk.session(*types).intents(given, of, expect)
        self.intents += queued
        return size(queued)

    def retract(self, of: type[Mixin], *key: Any, expect: Mixin | int | Anything = ANY) -> None:
        """Queue that the object with this key be gone."""
        self.intents.append(self.desk.session(of).retraction(of, key, expect))

    async def get(self, of: type[M], *key: Any) -> M | None:
        """The object with this key, at the head of now; None if there is none."""
        return await self.desk.session(of).get(of, *key)

    async def all(self, of: type[M]) -> list[M]:
        """Every object of a type, at the head of now, ordered by key."""
        return await self.desk.session(of).all(of)

    async def commit(self, metadata: Mapping[str, Any] | None = None, *, if_head: int | None = None) -> Commit | None:
        """One commit of what was ensured, retracted and emitted so far; None if that changes nothing.

        Once for this event, even if the handler is called again: then the commit that was made is returned.
        ``ClaimLost`` if another worker has the event now.
        """
        done = await self.desk.commit(
            self.intents,
            [enclosed(each, self.namespace, self.envelope) for each in self.emissions],
            {**(metadata or {}), "event_id": self.event_id, "handler_id": self.handler_id},
            if_head,
            ClaimWitness(self.claims, self.hold, self.commits + 1),
        )
        self.commits += 1
        self.intents.clear()
        self.emissions.clear()
        return done

    def finish(self) -> None:
        if self.intents:
            raise Invalid(
                f"the handler returned with {len(self.intents)} intents that were never committed",
                remedy="await ctx.commit()",
            )
