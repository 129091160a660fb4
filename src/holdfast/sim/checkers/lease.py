"""A lease: one owner per epoch, no effect of an owner that has been replaced, and true answers.

``acquire(owner)`` = (ACQUIRED, epoch) or (HELD, owner, epoch); ``renew((owner, epoch))`` = RENEWED or FENCED;
``hand over((owner, epoch, successor))`` = HANDED_OVER or FENCED. Each answer must have been true at a moment between
the call and its end. Clocks do not count: who may replace whom, and when, is not a question of safety.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from holdfast.sim.checkers.objects import monotone
from holdfast.sim.history import FOREVER, Operation, Violation, answers

ONE_OWNER = "one owner"
FENCED_OFF = "stale owners are fenced off"

Tenure = tuple[str, int]
"""An owner and an epoch."""


def one_owner(tenures: Sequence[Tenure], grants: Iterable[Tenure]) -> Iterator[Violation]:
    """``tenures`` is what was written to the lease, in order; ``grants`` are the answers that owners got."""
    yield from monotone("the epoch on the lease", (epoch for _, epoch in tenures))
    owners: dict[int, str] = {}
    for owner, epoch in tenures:
        if owners.setdefault(epoch, owner) != owner:
            yield Violation(ONE_OWNER, f"epoch {epoch} belonged to {owners[epoch]} and to {owner}")
    reported: set[Tenure] = set()
    for owner, epoch in grants:
        if owners.get(epoch) != owner:
            yield Violation(ONE_OWNER, f"{owner} was granted epoch {epoch}, which belonged to {owners.get(epoch)}")
        if (owner, epoch) in reported:
            yield Violation(ONE_OWNER, f"epoch {epoch} was granted to {owner} twice")
        reported.add((owner, epoch))


def fenced_off(effects: Iterable[Tenure]) -> Iterator[Violation]:
    """``effects`` in the order in which they took place, each with the owner and the epoch that it carried."""
    newest, holder = 0, ""
    for owner, epoch in effects:
        if epoch < newest:
            yield Violation(FENCED_OFF, f"{owner} had an effect in epoch {epoch}, after {holder} had one in {newest}")
        elif epoch > newest:
            newest, holder = epoch, owner
        elif owner != holder:
            yield Violation(FENCED_OFF, f"{owner} and {holder} both had effects in epoch {epoch}")


TRUE_ANSWERS = "answers to tenants are true"

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


def lease_was_held(operations: Iterable[Operation], stood: Sequence[Stay]) -> Iterator[Violation]:
    for operation, reported in answers(operations):
        if not _is_true(operation, reported, stood):
            yield Violation(TRUE_ANSWERS, f"[{operation}] was not so at any moment")


def _is_true(operation: Operation, reported: object, stood: Sequence[Stay]) -> bool:
    match operation.call, operation.argument, reported:
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
