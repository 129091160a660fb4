"""Sequential objects that histories are measured against. Each says which calls it understands."""

from collections import Counter as Tally
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Self

from holdfast.sim.history import Done, Operation

WRITTEN, LOST = "written", "lost"


@dataclass(frozen=True)
class Cell:
    """One value. ``read`` = value; ``write(value)``; ``cas((expected, new))`` = WRITTEN or LOST.

    With ``overtaken`` a LOST write may have been applied and overwritten before its writer looked, which is all that a
    store without history can say; without it LOST means that nothing happened.
    """

    first: Hashable = None
    overtaken: bool = False

    def initial(self) -> Hashable:
        return self.first

    def step(self, state: Hashable, operation: Operation) -> Iterable[Hashable]:
        outcome, argument = operation.outcome, operation.argument
        match operation.call, argument:
            case "read", _:
                return () if isinstance(outcome, Done) and outcome.value != state else (state,)
            case "write", value:
                return (value,)
            case "cas", (expected, new) if state == expected:
                return (new,) if outcome != Done(LOST) or self.overtaken else ()
            case "cas", _:
                return (state,) if outcome == Done(LOST) else ()
        raise ValueError(f"a cell has no {operation.call}")

    def effect(self, operation: Operation) -> Hashable:
        return operation.call, operation.argument


Counted = tuple[int, frozenset[object]]
"""The number, and those of the repeated tokens that are in it."""


@dataclass(frozen=True)
class Counter:
    """A number. ``add(token)`` = the new number; ``read`` = the number; ``round up(token)`` = an even number.

    A token that was asked for before changes nothing, and is answered with the number as it is.
    """

    repeated: frozenset[object] = frozenset()
    """The tokens that come more than once; the state need not remember others."""

    @classmethod
    def of(cls, operations: Iterable[Operation]) -> Self:
        times = Tally(operation.argument for operation in operations if operation.call == "add")
        return cls(frozenset(token for token, count in times.items() if count > 1))

    def initial(self) -> Counted:
        return 0, frozenset()

    def step(self, state: Counted, operation: Operation) -> Iterable[Counted]:
        number, tokens = after = state
        match operation.call:
            case "add" if operation.argument not in tokens:
                after = (number + 1, tokens | ({operation.argument} & self.repeated))
            case "round up":
                after = (number + number % 2, tokens)
            case "add" | "read":
                pass
            case unknown:
                raise ValueError(f"a counter has no {unknown}")
        match operation.outcome:
            case Done(value) if value != after[0]:
                return ()
        return (after,)

    def effect(self, operation: Operation) -> Hashable:
        return operation.call, operation.argument if operation.argument in self.repeated else None
