"""What the processes of a world asked for and what they were told: plain data, for checkers.

Positions are places in the world's one order of events, so "this ended before that began" needs no clock. An operation
whose process crashed, or that ended in doubt, stays ``Open``: it may have taken effect, may still, or may never.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.base.errors import Ambiguous, HoldfastError, Unavailable


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
    """Nobody knows. ``error`` is absent while the operation goes on, and for ever if its process died."""

    error: HoldfastError | None = None

    def __str__(self) -> str:
        return "open" if self.error is None else f"open: {type(self.error).__name__}: {self.error}"


Outcome = Done | Failed | Open

FOREVER: Final = 1 << 62
"""Where the end of an open operation is taken to lie."""


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


def judged(error: HoldfastError) -> Failed | Open:
    """What an error says of the operation that it ended."""
    if isinstance(error, Ambiguous) or (isinstance(error, Unavailable) and error.maybe_applied):
        return Open(error)
    return Failed(error)


def by_key(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """Objects are independent of each other, so their histories can be checked one by one."""
    parts: dict[str, list[Operation]] = {}
    for operation in operations:
        parts.setdefault(operation.key, []).append(operation)
    return parts
