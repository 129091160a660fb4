"""Numbers that must not run backwards: versions, sequence numbers, epochs."""

from collections.abc import Iterable, Iterator

from holdfast.sim.checkers.violation import Violation

MONOTONE = "monotone"


def monotone(name: str, values: Iterable[int], *, strictly: bool = False) -> Iterator[Violation]:
    """``strictly``: no number comes twice."""
    last: int | None = None
    for value in values:
        if last is not None and (value < last or (strictly and value == last)):
            yield Violation(MONOTONE, f"{name} went from {last} to {value}")
        last = value


def gapless(name: str, values: Iterable[int], *, first: int = 1) -> Iterator[Violation]:
    """Each number is one more than the one before."""
    for expected, value in enumerate(values, first):
        if value != expected:
            yield Violation(MONOTONE, f"{name} is {value} where {expected} was due")
            return
