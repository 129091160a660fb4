"""Reads of immutable objects, possibly from a cache: true bytes, and nothing that oneself has deleted."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from holdfast.sim.checkers.lifetimes import Lifetimes
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Landing, Operation

TRUE_BYTES = "reads return the object's bytes"
PRESENT = "what stands is found"
OWN_DELETES = "one's own deletes are seen"


def true_reads(
    operations: Sequence[Operation], landings: Sequence[Landing], body_of: Callable[[str], bytes]
) -> Iterator[Violation]:
    """``read`` = bytes or None; ``delete``. Every object's bytes follow from its key.

    A cache may answer with an object that others have deleted, so presence is judged by the reader's own deletes alone.
    """
    lives = Lifetimes(landings)
    for operation in operations:
        if operation.call != "read" or not isinstance(operation.outcome, Done):
            continue
        key, found = operation.key, operation.outcome.value
        since = _last_own_delete(operation, operations)
        if found is None and lives.stood_throughout(key, operation.called, operation.returned):
            yield Violation(PRESENT, f"[{operation}] found nothing")
        if found is not None and found != body_of(key):
            yield Violation(TRUE_BYTES, f"[{operation}] found other bytes")
        if found is not None and not lives.stood(key, since, operation.returned):
            yield Violation(OWN_DELETES, f"[{operation}] found what its process had deleted")


def _last_own_delete(read: Operation, operations: Iterable[Operation]) -> int:
    """The call of the last delete by the same process that had ended when ``read`` began."""
    return max(
        (
            other.called
            for other in operations
            if (other.process, other.call, other.key) == (read.process, "delete", read.key)
            and other.returned < read.called
        ),
        default=-1,
    )
