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

from collections.abc import Iterable, Mapping
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
    in_flight: int = 0

    def free(self, now_ms: int, window: int) -> bool:
        probing = 1 if self.failures else window
        return now_ms >= self.unavailable_until_ms and self.in_flight < probing


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


@dataclass(slots=True)
class _Step:
    state: State
    effects: list[Effect] = field(default_factory=list)


IDENTITY_CONFLICT = "identity_conflict"
BUSY = "busy"


def step(state: State, event: Event, now_ms: int) -> tuple[State, tuple[Effect, ...]]:
    done = _Step(state)
    match event:
        case Offered(batch):
            known = {*state.waiting, *(each for each, _ in state.in_flight)}
            check(batch not in known, f"batch {batch} was offered twice")
            done.state = replace(state, waiting=_ordered((*state.waiting, batch)))
        case Answered():
            _answered(done, event, now_ms)
        case Tick():
            pass
    _dispatch(done, now_ms)
    return done.state, tuple(done.effects)


def wakes_at_ms(state: State, now_ms: int) -> int | None:
    """When to pass ``Tick`` if no other event comes first; None if no backoff keeps a batch waiting."""
    ends = [route.unavailable_until_ms for route in state.routes if route.unavailable_until_ms > now_ms]
    return min(ends) if state.waiting and ends else None


def _answered(done: _Step, event: Answered, now_ms: int) -> None:
    state = done.state
    check((event.batch, event.route) in state.in_flight, f"answer for batch {event.batch}, which is not in flight")
    state = replace(state, in_flight=state.in_flight - {(event.batch, event.route)})
    route = state.routes[event.route]
    route = replace(route, in_flight=route.in_flight - 1)
    match event.answer:
        case Taken(duplicate):
            done.effects.append(Release(event.batch, duplicate=duplicate))
            route = _good(done, event.route, route)
        case Conflict(_, True):
            done.effects.append(Release(event.batch, resolved=True))
            route = _good(done, event.route, route)
        case Conflict(detail):
            done.effects.append(Park(event.batch, event.route, IDENTITY_CONFLICT, detail))
            route = _good(done, event.route, route)
        case Rejected(reason, detail):
            done.effects.append(Park(event.batch, event.route, reason, detail))
            route = _good(done, event.route, route)
        case Denied(reason, detail):
            route = _failed(done, event, route, now_ms, reason, detail)
            state = replace(state, waiting=_ordered((*state.waiting, event.batch)))
        case Busy(detail, asked_ms):
            route = _failed(done, event, route, now_ms, BUSY, detail, asked_ms)
            state = replace(state, waiting=_ordered((*state.waiting, event.batch)))
        case NoAnswer(detail, reason):
            route = _failed(done, event, route, now_ms, reason, detail)
            state = replace(state, waiting=_ordered((*state.waiting, event.batch)))
    routes = tuple(route if number == event.route else each for number, each in enumerate(state.routes))
    done.state = replace(state, routes=routes)


def _good(done: _Step, number: int, route: Route) -> Route:
    if route.failures:
        done.effects.append(Report(number, "works", "answers again", good=True))
    return replace(route, failures=0, unavailable_until_ms=0)


def _failed(
    done: _Step, event: Answered, route: Route, now_ms: int, reason: str, detail: str, asked_ms: int = 0
) -> Route:
    """Concurrent requests that fail count as one failure: a backoff that has begun is not extended."""
    until = now_ms + min(asked_ms, done.state.backoff.longest_asked_ms)
    if route.unavailable_until_ms > now_ms:
        return replace(route, unavailable_until_ms=max(route.unavailable_until_ms, until))
    failures = route.failures + 1
    backoff_ms = done.state.backoff.backoff_ms(failures, asked_ms, event.roll)
    done.effects.append(Report(event.route, reason, detail))
    return replace(route, failures=failures, unavailable_until_ms=now_ms + backoff_ms)


def _dispatch(done: _Step, now_ms: int) -> None:
    """Send waiting batches, the oldest first, to the current collector or the next one that is available."""
    while done.state.waiting:
        state = done.state
        order = [(state.current + turn) % len(state.routes) for turn in range(len(state.routes))]
        number = next((each for each in order if state.routes[each].free(now_ms, state.window)), None)
        if number is None:
            return
        batch, *rest = state.waiting
        route = state.routes[number]
        routes = tuple(
            replace(route, in_flight=route.in_flight + 1) if each == number else other
            for each, other in enumerate(state.routes)
        )
        done.effects.append(Send(batch, number))
        done.state = replace(
            state, routes=routes, current=number, waiting=tuple(rest), in_flight=state.in_flight | {(batch, number)}
        )


def _ordered(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    return tuple(sorted(batches))
