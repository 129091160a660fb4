"""Everything that happened in a world, in order. Recording is cheap; words are found only when somebody reads.

Two runs are the same if their traces are: ``digest`` compares them.
"""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.base.errors import HoldfastError
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
