"""Decide which batch an agent sends to which collector, and what each answer means for both.

Pure: ``step`` takes a state and an event and returns the next state and effects. ``shipper`` does the I/O and decides
nothing.

A batch is *waiting*, *in flight* (one request carries it), or settled: *released* because it was accepted or an
operator decided so, or *parked* because it cannot be accepted as it is. A batch is settled in no other way.

A collector is used until it fails. Then it is not used for a backoff time, which grows with each failure, and the next
available collector is used. After the backoff a single batch is sent to it as a probe; a good answer ends the backoff.

    answer                       batch      collector
    Taken                        released   good
    Conflict                     parked     good
    Conflict, resolved           released   good
    Rejected                     parked     good
    Denied, Busy, NoAnswer       waiting    backs off
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.base.errors import check

Batch = int
"""A batch is identified by its first sequence number."""
ErrorBody = Mapping[str, Any]
"""The error document of the collector (message, remedy, keys), for people only."""


@dataclass(frozen=True, slots=True)
class Taken:
    """200."""

    duplicate: bool


@dataclass(frozen=True, slots=True)
class Conflict:
    """409 ``identity_conflict``. ``resolved``: an operator has decided that the batch accepted before counts."""

    detail: str
    resolved: bool = False
    error: ErrorBody = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The collector will never accept these bytes."""

    reason: str
    detail: str
    error: ErrorBody = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Denied:
    """401 or 403 of a collector: it refuses the sender, not the batch."""

    reason: str
    detail: str
    error: ErrorBody = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Busy:
    """429 or 503. ``retry_after_ms`` is the shortest wait that the collector asks for."""

    detail: str
    retry_after_ms: int = 0


NO_ANSWER = "no_answer"
UNTRUSTED = "untrusted"
"""The certificate of the collector is not trusted, so nothing was sent."""
WRONG_NAME = "wrong_name"
"""The certificate of the collector is for another name than that in the URL, so nothing was sent."""
WRONG_ADDRESS = "wrong_address"
"""A collector answered, but its listener at this address takes no batches."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """No answer, or an answer that is not a collector's, such as a proxy's."""

    detail: str
    reason: str = NO_ANSWER


Answer = Taken | Conflict | Rejected | Denied | Busy | NoAnswer


@dataclass(frozen=True, slots=True)
class Backoff:
    base_ms: int = 500
    most_ms: int = 60_000
    longest_asked_ms: int = 3_600_000
    """Upper limit for the wait that a collector may ask for."""

    def backoff_ms(self, failures: int, asked_ms: int, roll: float) -> int:
        """``roll`` in [0, 1) is the jitter: it spreads agents over the second half of the backoff, so that they do not
        all come back at once."""
        full = min(self.most_ms, self.base_ms << min(failures - 1, 20))
        return min(asked_ms, self.longest_asked_ms) + int(full * (0.5 + roll / 2))


@dataclass(frozen=True, slots=True)
class Route:
    """The state of one collector."""

    failures: int = 0
    unavailable_until_ms: int = 0


@dataclass(frozen=True, slots=True)
class State:
    routes: tuple[Route, ...]
    window: int = 4
    backoff: Backoff = Backoff()
    current: int = 0
    waiting: tuple[Batch, ...] = ()
    in_flight: frozenset[tuple[Batch, int]] = frozenset()

    @property
    def room(self) -> int:
        """How many more batches may be added."""
        return self.window - len(self.waiting) - len(self.in_flight)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.in_flight

    def is_free(self, number: int, now_ms: int) -> bool:
        """Whether a batch may be sent to this collector now."""
        route, sending = self.routes[number], sum(each == number for _, each in self.in_flight)
        return now_ms >= route.unavailable_until_ms and sending < (1 if route.failures else self.window)

    def with_route(self, number: int, **changes: int) -> "State":
        route = replace(self.routes[number], **changes)
        return replace(self, routes=(*self.routes[:number], route, *self.routes[number + 1 :]))


@dataclass(frozen=True, slots=True)
class Offered:
    batch: Batch


@dataclass(frozen=True, slots=True)
class Answered:
    batch: Batch
    route: int
    answer: Answer
    roll: float = 0.0


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: a backoff may have ended."""


Event = Offered | Answered | Tick


@dataclass(frozen=True, slots=True)
class Send:
    batch: Batch
    route: int


@dataclass(frozen=True, slots=True)
class Release:
    batch: Batch
    duplicate: bool = False
    resolved: bool = False


@dataclass(frozen=True, slots=True)
class Park:
    batch: Batch
    route: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Report:
    """A collector has begun to fail, or works again."""

    route: int
    reason: str
    detail: str
    good: bool = False


Effect = Send | Release | Park | Report


IDENTITY_CONFLICT = "identity_conflict"
BUSY = "busy"


def step(state: State, event: Event, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    effects: list[Effect] = []
    match event:
        case Offered(batch):
            known = {*state.waiting, *(each for each, _ in state.in_flight)}
            check(batch not in known, f"batch {batch} was offered twice")
            state = replace(state, waiting=tuple(sorted((*state.waiting, batch))))
        case Answered():
            state = _answered(state, event, now_ms, effects)
        case Tick():
            pass
    return _dispatched(state, now_ms, effects), tuple(effects)


def wakes_at_ms(state: State, now_ms: int) -> int | None:
    """When to pass ``Tick`` if no other event comes first; None if no backoff keeps a batch waiting."""
    ends = [route.unavailable_until_ms for route in state.routes if route.unavailable_until_ms > now_ms]
    return min(ends) if state.waiting and ends else None


def _answered(state: State, event: Answered, now_ms: int, effects: list[Effect]) -> State:
    batch, number = event.batch, event.route
    check((batch, number) in state.in_flight, f"answer for batch {batch}, which is not in flight")
    state = replace(state, in_flight=state.in_flight - {(batch, number)})
    match event.answer:
        case Taken(duplicate):
            effects.append(Release(batch, duplicate=duplicate))
        case Conflict(resolved=True):
            effects.append(Release(batch, resolved=True))
        case Conflict(detail):
            effects.append(Park(batch, number, IDENTITY_CONFLICT, detail))
        case Rejected(reason, detail):
            effects.append(Park(batch, number, reason, detail))
        case Busy() | Denied() | NoAnswer() as refusal:
            state = replace(state, waiting=tuple(sorted((*state.waiting, batch))))
            return _failed(state, number, refusal, event.roll, now_ms, effects)
    if state.routes[number].failures:
        effects.append(Report(number, "works", "answers again", good=True))
    return state.with_route(number, failures=0, unavailable_until_ms=0)


def _failed(
    state: State, number: int, answer: Busy | Denied | NoAnswer, roll: float, now_ms: int, effects: list[Effect]
) -> State:
    """Concurrent requests that fail count as one failure: a backoff that has begun is not extended."""
    route = state.routes[number]
    reason, asked_ms = (BUSY, answer.retry_after_ms) if isinstance(answer, Busy) else (answer.reason, 0)
    if route.unavailable_until_ms > now_ms:
        until = now_ms + min(asked_ms, state.backoff.longest_asked_ms)
        return state.with_route(number, unavailable_until_ms=max(route.unavailable_until_ms, until))
    effects.append(Report(number, reason, answer.detail))
    failures = route.failures + 1
    until = now_ms + state.backoff.backoff_ms(failures, asked_ms, roll)
    return state.with_route(number, failures=failures, unavailable_until_ms=until)


def _dispatched(state: State, now_ms: int, effects: list[Effect]) -> State:
    """Send waiting batches, the oldest first, to the current collector or the next one that is available."""
    while state.waiting:
        order = [(state.current + turn) % len(state.routes) for turn in range(len(state.routes))]
        number = next((each for each in order if state.is_free(each, now_ms)), None)
        if number is None:
            return state
        batch, *rest = state.waiting
        effects.append(Send(batch, number))
        state = replace(state, current=number, waiting=tuple(rest), in_flight=state.in_flight | {(batch, number)})
    return state
