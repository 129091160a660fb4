"""A lease: what its tenants were told against who stood on it, and when.

``acquire(owner)`` = (ACQUIRED, epoch) or (HELD, owner, epoch); ``renew((owner, epoch))`` = RENEWED or FENCED;
``hand over((owner, epoch, successor))`` = HANDED_OVER or FENCED. Each answer must have been true at a moment between
the call and its end. Clocks have no say here: who may replace whom, and when, is not a question of safety.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import FOREVER, Done, Operation

TRUE_ANSWERS = "tenants are told the truth"

ACQUIRED, HELD, RENEWED, HANDED_OVER, FENCED = "acquired", "held", "renewed", "handed over", "fenced"


class Stay(NamedTuple):
    """One document on the lease, from its landing to its end, as positions."""

    owner: str
    epoch: int
    start: int
    end: int

    def began_within(self, operation: Operation) -> bool:
        return operation.called < self.start < operation.returned

    def stood_within(self, operation: Operation) -> bool:
        return self.start < operation.returned and self.end > operation.called


def stays(landings: Iterable[tuple[int, str, int]]) -> list[Stay]:
    """From (position, owner, epoch) of every landing, in order."""
    known = list(landings)
    ends = [position for position, _, _ in known[1:]] + [FOREVER]
    return [Stay(owner, epoch, start, end) for (start, owner, epoch), end in zip(known, ends, strict=False)]


def told_of_lease(operations: Iterable[Operation], stood: Sequence[Stay]) -> Iterator[Violation]:
    for operation in operations:
        if isinstance(operation.outcome, Done) and not _is_true(operation, operation.outcome.value, stood):
            yield Violation(TRUE_ANSWERS, f"[{operation}] was not so at any moment")


def _is_true(operation: Operation, told: object, stood: Sequence[Stay]) -> bool:
    match operation.call, operation.argument, told:
        case "acquire", owner, ("acquired", epoch):
            return any((stay.owner, stay.epoch) == (owner, epoch) and stay.began_within(operation) for stay in stood)
        case "acquire", _, ("held", owner, epoch):
            return any((stay.owner, stay.epoch) == (owner, epoch) and stay.stood_within(operation) for stay in stood)
        case "renew", mine, "renewed":
            return any((stay.owner, stay.epoch) == mine and stay.began_within(operation) for stay in stood)
        case "renew", mine, "fenced":
            return any((stay.owner, stay.epoch) != mine and stay.stood_within(operation) for stay in stood)
        case "hand over", (_, _, successor), "handed over":
            return any(stay.owner == successor and stay.stood_within(operation) for stay in stood)
        case "hand over", (owner, epoch, successor), "fenced":
            others = (stay for stay in stood if stay.owner != successor and (stay.owner, stay.epoch) != (owner, epoch))
            return any(stay.stood_within(operation) for stay in others)
    return True
