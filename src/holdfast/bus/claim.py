"""One handler's claim on one event: a state machine as a table and a pure function.

    no object ──claim──▶ claimed ──ack──▶ acked
                          │  ▲ │ ▲
                          │  └─┘ renew, and claim once the lease has ended
                          ├──fail──▶ waiting ──claim──▶ claimed
                          │       └▶ dead    (the last attempt, or hopeless)
                          └──release──▶ waiting, at once

``generation`` grows with every claim. Renew, ack, fail and release are the owner's alone: same session, same
generation; from any other session they are ``Denied`` and change nothing. Acked and dead are final. A claim of another
program, without a generation, counts as generation 0. A reclaim keeps ``attempts`` and clears the rest of the
specification's fields. ``lost_leases`` counts the claims in a row that ended without an answer: a crash, or a pause
past the lease.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Annotated, Any, Self

from pydantic import Field

from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.base.record import UNLESS_EMPTY, Moment, Record

MAX_ERROR_CHARS = 2_000

HANDED_BACK = "handed back"

Try = tuple[int, int, str]
"""An attempt at a commit: which commit of the handler it is (1 is the first), its number, and its path."""


class State(Enum):
    FREE = "free"
    CLAIMED = "claimed"
    EXPIRED = "expired"
    """Claimed, and the lease has ended: any session may claim it; until one does, the owner may still finish."""
    WAITING = "waiting"
    """Failed or handed back, to be claimed again when it is due."""
    ACKED = "acked"
    DEAD = "dead_lettered"


@dataclass(frozen=True, slots=True)
class Retry:
    """When a failed event is tried again, and when it is dead.

    The delay after attempt n is ``base_ms * 2^n`` up to ``max_ms``, plus a jitter of 0 to ``jitter_ms`` that the caller
    draws. After ``attempts`` failures the event is dead.
    """

    attempts: int = 10
    base_ms: int = 250
    max_ms: int = 30_000
    jitter_ms: int = 100

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base_ms, self.max_ms, self.jitter_ms) < 0:
            raise Invalid(f"{self}: at least one attempt, and no negative times")

    def is_last(self, attempts: int) -> bool:
        """Whether this many failures are all that is allowed."""
        return attempts >= self.attempts

    def delay_ns(self, attempts: int, jitter: float) -> int:
        """How long to wait after so many failures; ``jitter`` is drawn from 0 to 1."""
        backoff_ms = min(self.base_ms * 2 ** min(attempts, 60), self.max_ms)
        return int((backoff_ms + jitter * self.jitter_ms) * 1_000_000)


@dataclass(frozen=True, slots=True)
class Take:
    """Become the owner."""

    session_id: str
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Renew:
    lease_ms: int
    commits: tuple[Try, ...] | None = None
    """What the owner is about to commit to the ontology, for the next owner to look for; None leaves it as it is."""


@dataclass(frozen=True, slots=True)
class Ack:
    outbox: tuple[Document, ...] = ()
    """Envelopes that become visible with this ack."""


@dataclass(frozen=True, slots=True)
class Fail:
    error: str
    retry: Retry
    jitter: float = 0.0
    hopeless: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Hand back without counting a failure: a shutdown or a wait."""

    due_ns: int = 0
    """Not to be claimed before."""
    untried: bool = False
    """The handler was never called: nothing is known about the event that was not known before."""


Action = Take | Renew | Ack | Fail | Release

TRANSITIONS: dict[tuple[State, type[Any]], frozenset[State]] = {
    (State.FREE, Take): frozenset({State.CLAIMED}),
    (State.EXPIRED, Take): frozenset({State.CLAIMED}),
    (State.WAITING, Take): frozenset({State.CLAIMED}),
    **{
        (state, kind): reached
        for state in (State.CLAIMED, State.EXPIRED)
        for kind, reached in (
            (Renew, frozenset({State.CLAIMED})),
            (Ack, frozenset({State.ACKED})),
            (Fail, frozenset({State.WAITING, State.DEAD})),
            (Release, frozenset({State.WAITING})),
        )
    },
}
"""Absent means denied."""


@dataclass(frozen=True, slots=True)
class Owner:
    session_id: str
    generation: int


@dataclass(frozen=True)
class Claim(Record):
    WHAT = "a claim"

    event_id: str
    handler_id: str
    session_id: str
    generation: int
    claimed_ns: Annotated[Moment, Field(alias="claimed_at")]
    lease_ns: Annotated[Moment, Field(alias="lease_until")]
    available_ns: Annotated[Moment, Field(alias="available_at")]
    attempts: int = 0
    ack_ns: Annotated[Moment | None, Field(alias="ack_at")] = None
    last_error: str | None = None
    dead_ns: Annotated[Moment | None, Field(alias="dead_lettered_at")] = None
    event_name: str = ""
    lost_leases: Annotated[int, UNLESS_EMPTY] = 0
    commits: Annotated[tuple[Try, ...], UNLESS_EMPTY] = ()
    outbox: Annotated[tuple[Document, ...], UNLESS_EMPTY] = ()

    @classmethod
    def parse(cls, document: Mapping[str, Any], *, key: str) -> Self:
        """Also a claim of another program, which may have no generation and no ``available_at``."""
        available_at = document.get("available_at") or document.get("claimed_at")
        known = {name: value for name, value in document.items() if name != "write_id"}
        return super().parse({"generation": 0, **known, "available_at": available_at}, key=key)

    @property
    def owner(self) -> Owner:
        return Owner(self.session_id, self.generation)

    @property
    def settled(self) -> bool:
        return self.ack_ns is not None or self.dead_ns is not None

    @property
    def due_ns(self) -> int:
        """From when on any session may claim it, if nothing happens before."""
        return max(self.lease_ns, self.available_ns)

    def state(self, now_ns: int) -> State:
        if self.dead_ns is not None:
            return State.DEAD
        if self.ack_ns is not None:
            return State.ACKED
        if self.last_error is not None:  # a claim clears it
            return State.WAITING
        return State.CLAIMED if self.lease_ns > now_ns else State.EXPIRED


@dataclass(frozen=True, slots=True)
class Denied:
    """The session is not the owner, or the state does not allow the action. Nothing is written."""

    state: State
    due_ns: int = 0


def first(event_name: str, event_id: str, handler_id: str, take: Take, now_ns: int) -> Claim:
    """A claim where there is none."""
    lease_ns = now_ns + take.lease_ms * 1_000_000
    return Claim(event_id, handler_id, take.session_id, 1, now_ns, lease_ns, now_ns, event_name=event_name)


def step(claim: Claim, action: Action, now_ns: int, owner: Owner | None = None) -> Claim | Denied:
    """The claim after ``action``. All actions but ``Take`` need the ``owner`` who acts."""
    state = claim.state(now_ns)
    if (state, type(action)) not in TRANSITIONS:
        return Denied(state, claim.due_ns)
    if isinstance(action, Take):
        return _taken(claim, action, now_ns) if claim.due_ns <= now_ns else Denied(state, claim.due_ns)
    if owner != claim.owner:
        return Denied(state, claim.due_ns)
    match action:
        case Renew(lease_ms, commits):
            renewed = replace(claim, lease_ns=now_ns + lease_ms * 1_000_000)
            return renewed if commits is None else replace(renewed, commits=commits)
        case Ack(outbox):
            return replace(claim, ack_ns=now_ns, outbox=outbox)
        case Fail():
            return _failed(claim, action, now_ns)
        case Release(due_ns, untried):
            lost = claim.lost_leases if untried else 0
            due_ns = max(now_ns, due_ns)
            return replace(claim, lease_ns=now_ns, available_ns=due_ns, last_error=HANDED_BACK, lost_leases=lost)


def _taken(claim: Claim, take: Take, now_ns: int) -> Claim:
    return replace(
        claim,
        session_id=take.session_id,
        generation=claim.generation + 1,
        claimed_ns=now_ns,
        lease_ns=now_ns + take.lease_ms * 1_000_000,
        ack_ns=None,
        last_error=None,
        dead_ns=None,
        lost_leases=claim.lost_leases + (claim.last_error is None),  # the last try ended without an answer
    )


def _failed(claim: Claim, fail: Fail, now_ns: int) -> Claim:
    attempts = claim.attempts + 1
    error = (fail.error or "handler failure")[:MAX_ERROR_CHARS]
    failed = replace(claim, attempts=attempts, last_error=error, lease_ns=now_ns, lost_leases=0)
    if fail.hopeless or fail.retry.is_last(attempts):
        return replace(failed, dead_ns=now_ns)
    return replace(failed, available_ns=now_ns + fail.retry.delay_ns(attempts, fail.jitter))
