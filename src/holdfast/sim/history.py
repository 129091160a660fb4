"""What happened in a world: its trace, the operations of its processes, its landings, and what checkers report.

Positions are places in the world's one order of events, so "this ended before that began" needs no clock. An operation
whose process crashed, or that ended in doubt, stays ``Open``: it may have taken effect, may still, or may never.

Recording is cheap; text is made only when it is read. Two runs are the same if the digests of their traces are.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from holdfast.base.errors import Ambiguous, HoldfastError, Unavailable
from holdfast.objects.store import Addressed, Create, IfMatch, Lost, Object, Overwrite, Page, Written

STORE = "store"
"""Who acts when a request lands."""


class Event(NamedTuple):
    """``subject`` is text for what a process does, and a request for what happens to one; those are indented."""

    at: float
    who: str
    what: str
    subject: object = ""
    detail: object = None

    def __str__(self) -> str:
        parts = (self.what, str(self.subject), "" if self.detail is None else plain(self.detail))
        indent = "" if isinstance(self.subject, str) else "  "
        return f"{self.at:12.6f}  {self.who:<10}  {indent}{' '.join(part for part in parts if part)}"


class Trace:
    def __init__(self) -> None:
        self.events: list[Event] = []

    @property
    def position(self) -> int:
        return len(self.events)

    def note(self, at: float, who: str, what: str, subject: object = "", detail: object = None) -> int:
        """Record an event; its place in the order of all."""
        self.events.append(Event(at, who, what, subject, detail))
        return len(self.events) - 1

    def lines(self) -> Iterator[str]:
        for event in self.events:
            yield str(event)

    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.lines()).encode()).hexdigest()


def plain(value: object) -> str:
    """What a request asked for or what its answer was, in a few words."""
    match value:
        case Written(version):
            return f"written as {version[:8]}"
        case Lost(current):
            return "lost" if current is None else f"lost to {current.version[:8]}"
        case Object(version=version, body=body):
            return f"found {version[:8]}, {len(body)} bytes"
        case Page(entries, folders), more:
            return f"page of {len(entries)} entries, {len(folders)} folders, {'more' if more else 'the last'}"
        case Overwrite():
            return "whatever is there"
        case Create() | Addressed():
            return "if absent"
        case IfMatch(version):
            return f"if it is {version[:8]}"
        case HoldfastError():
            return f"{type(value).__name__}: {value}"
    return str(value)


@dataclass(frozen=True, slots=True)
class Done:
    """It ended well. ``value`` is the part of the answer that checkers compare, ``result`` the whole of it."""

    value: object = None
    result: Any = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"= {self.value!r}"


@dataclass(frozen=True, slots=True)
class Failed:
    """It certainly had no effect, and never will."""

    error: HoldfastError

    def __str__(self) -> str:
        return f"failed: {type(self.error).__name__}: {self.error}"


@dataclass(frozen=True, slots=True)
class Open:
    """The outcome is unknown. ``error`` is absent while the operation runs, and for ever if its process died."""

    error: HoldfastError | None = None

    def __str__(self) -> str:
        return "open" if self.error is None else f"open: {type(self.error).__name__}: {self.error}"


Outcome = Done | Failed | Open

FOREVER: Final = 1 << 62
"""The assumed end of an open operation."""


@dataclass(slots=True)
class Operation:
    process: str
    call: str
    key: str
    argument: Any
    called: int
    returned: int = FOREVER
    outcome: Outcome = Open()

    def __str__(self) -> str:
        argument = "" if self.argument is None else repr(self.argument)
        return f"{self.process}: {self.call}({argument}) on {self.key} {self.outcome}"


@dataclass(frozen=True, slots=True)
class Landing:
    """One change of the true store: ``body`` and ``version`` are None for a delete."""

    position: int
    process: str
    key: str
    body: bytes | None = None
    version: str | None = None


def states(landings: Iterable[Landing]) -> Iterator[tuple[Landing, dict[str, bytes]]]:
    """Each change, with all objects as they are right after it. The dictionary is the same one every time."""
    objects: dict[str, bytes] = {}
    for landing in landings:
        if landing.body is None:
            objects.pop(landing.key, None)
        else:
            objects[landing.key] = landing.body
        yield landing, objects


def left(landings: Iterable[Landing]) -> dict[str, bytes]:
    """All objects as they are in the end."""
    last = {landing.key: landing.body for landing in landings}
    return {key: body for key, body in last.items() if body is not None}


def written(landings: Iterable[Landing], prefix: str) -> Iterator[tuple[Landing, bytes]]:
    """The writes under a prefix; deletions are left out."""
    for landing in landings:
        if landing.body is not None and landing.key.startswith(prefix):
            yield landing, landing.body


def judged(error: HoldfastError) -> Failed | Open:
    """What an error says of the operation that it ended."""
    if isinstance(error, Ambiguous) or (isinstance(error, Unavailable) and error.maybe_applied):
        return Open(error)
    return Failed(error)


def answers(operations: Iterable[Operation], *calls: str) -> Iterator[tuple[Operation, Any]]:
    """The operations (of these calls, if any are given) that ended well, each with its value."""
    for operation in operations:
        if isinstance(operation.outcome, Done) and (not calls or operation.call in calls):
            yield operation, operation.outcome.value


def asked(operations: Iterable[Operation], *calls: str) -> dict[Any, list[Outcome]]:
    """By argument, the outcomes of the operations of these calls."""
    outcomes: dict[Any, list[Outcome]] = {}
    for operation in operations:
        if operation.call in calls:
            outcomes.setdefault(operation.argument, []).append(operation.outcome)
    return outcomes


def by_key(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Objects are independent of each other, so their histories can be checked one by one."""
    parts: dict[str, list[Operation]] = {}
    for operation in operations:
        parts.setdefault(operation.key, []).append(operation)
    return parts


@dataclass(frozen=True, slots=True)
class Violation:
    rule: str
    """What must hold, in a few words."""
    evidence: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.evidence}"
