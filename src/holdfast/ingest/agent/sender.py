"""What an agent does with its batches and its collectors, decided. Pure: ``step`` takes a state and an event, and gives
the next state and what is to be done; the shell (``shipper``) reads, sends and writes, and decides nothing.

A batch is *waiting*, *flying* (one request is on its way), or settled: released because it was accepted or an operator
said so, or parked because it cannot succeed as it is. Nothing else ends a batch.

A collector is used until it fails. Then it rests, longer each time, and the next one that does not rest is used. After
a rest a single batch probes it; one good answer ends the probing.

    answer                       batch      collector
    Taken                        released   good
    Conflict                     parked     good
    Conflict, resolved           released   good
    Rejected                     parked     good
    Denied, Busy, Silent         waiting    rests
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.base.errors import check

Batch = int
"""Batches are told apart by their first sequence number."""
Said = Mapping[str, Any]
"""The error as the collector put it: message, remedy, keys. Nothing is decided by it here."""


@dataclass(frozen=True, slots=True)
class Taken:
    """200."""

    duplicate: bool


@dataclass(frozen=True, slots=True)
class Conflict:
    """409 ``identity_conflict``. ``resolved``: an operator says that what was accepted counts."""

    detail: str
    resolved: bool = False
    said: Said = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The collector says that these bytes will never do."""

    reason: str
    detail: str
    said: Said = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Denied:
    """401 or 403 of a collector: who sends, not what is sent, is the matter."""

    reason: str
    detail: str
    said: Said = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Busy:
    """429 or 503. ``retry_after_ms`` is the least that the collector asks for."""

    detail: str
    retry_after_ms: int = 0


SILENT = "silent"
UNTRUSTED = "untrusted"
"""It shows a certificate that we cannot trust, so nothing was sent."""
MISNAMED = "misnamed"
"""It shows a certificate that may well be trusted, and is for another name than we asked for; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Silent:
    """No answer, or none of a collector's."""

    detail: str
    reason: str = SILENT


Answer = Taken | Conflict | Rejected | Denied | Busy | Silent


@dataclass(frozen=True, slots=True)
class Backoff:
    base_ms: int = 500
    most_ms: int = 60_000
    longest_asked_ms: int = 3_600_000
    """No collector may send an agent away for longer."""

    def rest_ms(self, failures: int, asked_ms: int, roll: float) -> int:
        """``roll`` in [0, 1) spreads agents over the second half of the rest, so that they do not come back as one."""
        full = min(self.most_ms, self.base_ms << min(failures - 1, 20))
        return min(asked_ms, self.longest_asked_ms) + int(full * (0.5 + roll / 2))


@dataclass(frozen=True, slots=True)
class Route:
    """One collector, as this agent knows it."""

    failures: int = 0
    rests_until_ms: int = 0
    flying: int = 0

    def free(self, now_ms: int, window: int) -> bool:
        probing = 1 if self.failures else window
        return now_ms >= self.rests_until_ms and self.flying < probing


@dataclass(frozen=True, slots=True)
class State:
    routes: tuple[Route, ...]
    window: int = 4
    backoff: Backoff = Backoff()
    current: int = 0
    waiting: tuple[Batch, ...] = ()
    flying: frozenset[tuple[Batch, int]] = frozenset()

    @property
    def room(self) -> int:
        """How many more batches may be offered."""
        return self.window - len(self.waiting) - len(self.flying)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.flying


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
class Woke:
    """Time has passed."""


Event = Offered | Answered | Woke


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
class Say:
    """Something that people should hear of: a collector fails, or works again."""

    route: int
    reason: str
    detail: str
    good: bool = False


Effect = Send | Release | Park | Say


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
            check(all(batch != each for each, _ in state.flying) and batch not in state.waiting, f"batch {batch} twice")
            done.state = replace(state, waiting=_ordered((*state.waiting, batch)))
        case Answered():
            _answered(done, event, now_ms)
        case Woke():
            pass
    _dispatch(done, now_ms)
    return done.state, tuple(done.effects)


def wakes_at_ms(state: State, now_ms: int) -> int | None:
    """When ``Woke`` should come, if nothing else happens before; None if only an answer or an offer can help."""
    rests = [route.rests_until_ms for route in state.routes if route.rests_until_ms > now_ms]
    return min(rests) if state.waiting and rests else None


def _answered(done: _Step, event: Answered, now_ms: int) -> None:
    state = done.state
    check((event.batch, event.route) in state.flying, f"an answer for batch {event.batch}, which was not sent")
    state = replace(state, flying=state.flying - {(event.batch, event.route)})
    route = state.routes[event.route]
    route = replace(route, flying=route.flying - 1)
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
        case Silent(detail, reason):
            route = _failed(done, event, route, now_ms, reason, detail)
            state = replace(state, waiting=_ordered((*state.waiting, event.batch)))
    routes = tuple(route if number == event.route else each for number, each in enumerate(state.routes))
    done.state = replace(state, routes=routes)


def _good(done: _Step, number: int, route: Route) -> Route:
    if route.failures:
        done.effects.append(Say(number, "works", "answers again", good=True))
    return replace(route, failures=0, rests_until_ms=0)


def _failed(
    done: _Step, event: Answered, route: Route, now_ms: int, reason: str, detail: str, asked_ms: int = 0
) -> Route:
    """Requests that failed together count as one failure: a rest that has begun is not made longer."""
    until = now_ms + min(asked_ms, done.state.backoff.longest_asked_ms)
    if route.rests_until_ms > now_ms:
        return replace(route, rests_until_ms=max(route.rests_until_ms, until))
    failures = route.failures + 1
    rest_ms = done.state.backoff.rest_ms(failures, asked_ms, event.roll)
    done.effects.append(Say(event.route, reason, detail))
    return replace(route, failures=failures, rests_until_ms=now_ms + rest_ms)


def _dispatch(done: _Step, now_ms: int) -> None:
    """Send what waits, the oldest first, through the collector in use or the next that is free."""
    while done.state.waiting:
        state = done.state
        order = [(state.current + turn) % len(state.routes) for turn in range(len(state.routes))]
        number = next((each for each in order if state.routes[each].free(now_ms, state.window)), None)
        if number is None:
            return
        batch, *rest = state.waiting
        route = state.routes[number]
        routes = tuple(
            replace(route, flying=route.flying + 1) if each == number else other
            for each, other in enumerate(state.routes)
        )
        done.effects.append(Send(batch, number))
        done.state = replace(
            state, routes=routes, current=number, waiting=tuple(rest), flying=state.flying | {(batch, number)}
        )


def _ordered(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    return tuple(sorted(batches))
