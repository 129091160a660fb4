"""Single conditional writes: what their writer was told against what landed.

WRITTEN means landed, once, by then. LOST means not standing: never landed, or overwritten before the writer was told.
Failed means never landed, then or later. Open may mean either, but not twice.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence

from holdfast.sim.checkers.applied import NO_FALSE_CONFLICT, NO_LOSS, ONCE
from holdfast.sim.checkers.models import LOST, WRITTEN
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import FOREVER, Done, Failed, Landing, Operation


def told_the_truth(operations: Iterable[Operation], landings: Sequence[Landing]) -> Iterator[Violation]:
    """``operations`` are ``cas((expected, new))``; versions must be unique to their write."""
    standing = _standing(landings)
    for operation in operations:
        if operation.call != "cas" or not isinstance(operation.argument, tuple):
            continue
        spans = standing.get((operation.key, operation.argument[1]), [])
        if len(spans) > 1:
            yield Violation(ONCE, f"[{operation}] landed {len(spans)} times")
        match operation.outcome:
            case Done(value) if value == WRITTEN and not any(start < operation.returned for start, _ in spans):
                yield Violation(NO_LOSS, f"[{operation}] had not landed")
            case Done(value) if value == LOST and any(end > operation.returned for _, end in spans):
                yield Violation(NO_FALSE_CONFLICT, f"[{operation}] stands there, or came later")
            case Failed() if spans:
                yield Violation(NO_FALSE_CONFLICT, f"[{operation}] landed")


def _standing(landings: Sequence[Landing]) -> dict[tuple[str, Hashable], list[tuple[int, int]]]:
    """For every write when it landed and when it was overwritten, as positions."""
    spans: dict[tuple[str, Hashable], list[tuple[int, int]]] = {}
    until: dict[str, int] = {}
    for landing in reversed(landings):
        span = (landing.position, until.get(landing.key, FOREVER))
        spans.setdefault((landing.key, landing.version), []).append(span)
        until[landing.key] = landing.position
    return spans
