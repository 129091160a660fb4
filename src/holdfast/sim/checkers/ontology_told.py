"""What writers and readers of an ontology were told, against the course of its head."""

from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from holdfast.sim.checkers.ontology import Course, Step
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Operation, Outcome

NO_LOST_UPDATE = "no update is lost"
TRUE_NO_OP = "nothing to do means that it was so"
SAME_ROWS = "whatever the index says, a reader gets the rows of its commit"
RECENT = "a read that begins after a commit sees it"
TOLD = "a commit is where its writer was told"

MARK, COUNTER, FLAG = "Mark", "Counter", "Flag"


def tokens(found: Course) -> Iterator[Hashable]:
    """What the commits on the chain carry, once per commit that carries it."""
    for step in found.steps:
        for (kind, key), fields in step.rows.items():
            if kind == MARK and not key.startswith("plain/"):
                yield key
            elif kind == COUNTER and fields is not None:
                yield fields["by"]


def asked(operations: Iterable[Operation]) -> dict[Hashable, list[Outcome]]:
    outcomes: dict[Hashable, list[Outcome]] = {}
    for operation in operations:
        if operation.call in ("commit", "count"):
            outcomes.setdefault(operation.argument, []).append(operation.outcome)
    return outcomes


def no_lost_update(found: Course) -> Iterator[Violation]:
    """Every new value of the counter is the one before plus one."""
    value = 0
    for step in found.steps:
        fields = step.rows.get((COUNTER, "n"))
        if fields is not None:
            if fields["is"] != value + 1:
                yield Violation(NO_LOST_UPDATE, f"commit {step.commit_id} counts {fields['is']} after {value}")
            value = fields["is"]


def told_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    steps = {step.commit_id: step for step in found.steps}
    for operation in operations:
        if not isinstance(operation.outcome, Done):
            continue
        told: Any = operation.outcome.value
        if operation.call in ("commit", "count") and not _carries(steps.get(told), operation.argument):
            yield Violation(TOLD, f"[{operation}] is not in commit {told}")
        if operation.call == "flag":
            yield from _flag(operation, told, steps, found)


def read_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    for operation in operations:
        if operation.call != "read" or not isinstance(operation.outcome, Done):
            continue
        seen: Any = operation.outcome.value
        commit_id, rows = seen
        truth = {key: fields for (kind, key), fields in found.state(commit_id).items() if kind == operation.key}
        if rows != truth:
            yield Violation(SAME_ROWS, f"[{operation}] at commit {commit_id}, where there is {truth}")
        visible = max((step.commit_id for step in found.steps if step.position < operation.called), default=0)
        if commit_id < visible:
            yield Violation(RECENT, f"[{operation}] saw commit {commit_id}, and {visible} was there before")


def _carries(step: Step | None, token: object) -> bool:
    if step is None:
        return False
    counter = step.rows.get((COUNTER, "n"))
    return (MARK, token) in step.rows or (counter is not None and counter["by"] == token)


def _flag(operation: Operation, told: int | None, steps: dict[int, Step], found: Course) -> Iterator[Violation]:
    value = {"is": operation.argument[1]}
    if told is not None:
        if told not in steps or steps[told].rows.get((FLAG, "f")) != value:
            yield Violation(TOLD, f"[{operation}] is not in commit {told}")
        return
    began = max((step.commit_id for step in found.steps if step.position < operation.called), default=0)
    ended = max((step.commit_id for step in found.steps if step.position < operation.returned), default=0)
    if not any(found.state(number).get((FLAG, "f")) == value for number in range(began, ended + 1)):
        yield Violation(TRUE_NO_OP, f"[{operation}], and the flag was never so between commits {began} and {ended}")
