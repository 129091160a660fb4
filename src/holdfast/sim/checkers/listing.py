"""A listing has what stood from its call to its end, nothing that stood at no time between, each once and in order."""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.sim.checkers.lifetimes import Lifetimes
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Landing, Operation

COMPLETE = "listings are complete"
TRUE = "listings are true"


def complete_listings(operations: Iterable[Operation], landings: Sequence[Landing], prefix: str) -> Iterator[Violation]:
    """``list`` = keys. What stood is known from the landings; ``put`` must have ended in an object."""
    lives = Lifetimes(landings, prefix)
    for operation in operations:
        match operation:
            case Operation(call="put", outcome=Done()):
                if not lives.stood(operation.key, operation.called, operation.returned):
                    yield Violation(COMPLETE, f"[{operation}] ended, and there was no object")
            case Operation(call="list", outcome=Done(tuple() as keys)):
                yield from _judge(operation, keys, lives)


def _judge(operation: Operation, keys: tuple[str, ...], lives: Lifetimes) -> Iterator[Violation]:
    if list(keys) != sorted(set(keys)):
        yield Violation(TRUE, f"[{operation}] is not in order, or has a key twice")
    for key in sorted(lives.throughout(operation.called, operation.returned) - set(keys)):
        yield Violation(COMPLETE, f"{key} is missing in [{operation}]")
    for key in keys:
        if not lives.stood(key, operation.called, operation.returned):
            yield Violation(TRUE, f"{key} is in [{operation}], and did not stand at the time")
