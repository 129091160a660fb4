"""A listing has what stood from its call to its end, nothing that stood at no time between, each once and in order."""

from collections.abc import Iterable, Iterator, Sequence

from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import FOREVER, Done, Landing, Operation

COMPLETE = "listings are complete"
TRUE = "listings are true"


def complete_listings(operations: Iterable[Operation], landings: Sequence[Landing], prefix: str) -> Iterator[Violation]:
    """``list`` = keys. What stood is known from the landings; ``put`` must have ended in an object."""
    spans = _lifetimes(landings, prefix)
    for operation in operations:
        if not isinstance(operation.outcome, Done):
            continue
        if operation.call == "put" and not _stood(operation.key, operation, spans):
            yield Violation(COMPLETE, f"[{operation}] ended, and there was no object")
        if operation.call == "list" and isinstance(operation.outcome.value, tuple):
            yield from _judge(operation, operation.outcome.value, spans)


def _judge(operation: Operation, keys: tuple[str, ...], spans: dict[str, list[tuple[int, int]]]) -> Iterator[Violation]:
    if list(keys) != sorted(set(keys)):
        yield Violation(TRUE, f"[{operation}] is not in order, or has a key twice")
    throughout = {
        key
        for key, lives in spans.items()
        if any(start < operation.called and end > operation.returned for start, end in lives)
    }
    for key in sorted(throughout - set(keys)):
        yield Violation(COMPLETE, f"{key} is missing in [{operation}]")
    for key in keys:
        if not _stood(key, operation, spans):
            yield Violation(TRUE, f"{key} is in [{operation}], and did not stand at the time")


def _stood(key: str, operation: Operation, spans: dict[str, list[tuple[int, int]]]) -> bool:
    return any(start < operation.returned and end > operation.called for start, end in spans.get(key, ()))


def _lifetimes(landings: Sequence[Landing], prefix: str) -> dict[str, list[tuple[int, int]]]:
    """When each key had an object, as positions."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for landing in landings:
        if not landing.key.startswith(prefix):
            continue
        lives = spans.setdefault(landing.key, [])
        if landing.body is None:
            lives[-1] = (lives[-1][0], landing.position)
        elif not lives or lives[-1][1] != FOREVER:
            lives.append((landing.position, FOREVER))
    return spans
