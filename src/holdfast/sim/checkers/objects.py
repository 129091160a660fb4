"""Single operations on objects, compared with the landings: conditional writes, numbers that grow, listings, reads.

* ``applied_once``: every acknowledged operation has one effect, every failed one none.
* ``outcomes_are_true``: WRITTEN means landed, once, by then. LOST means not standing: never landed, or overwritten
  before the answer. Failed means never landed. Open may mean either, but not twice.
* ``complete_listings``: a listing has what existed from its call to its end, nothing that never existed between, each
  key once and in order.
* ``true_reads``: reads of immutable objects, possibly from a cache, return the object's bytes, and no object that the
  reader has deleted.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

from holdfast.sim.checkers.linearizable import LOST, WRITTEN
from holdfast.sim.history import FOREVER, Done, Failed, Landing, Operation, Outcome, Violation, answers

NO_LOSS = "no acknowledged loss"
ONCE = "applied at most once"
NO_FALSE_CONFLICT = "no false conflict"


def applied_once(applied: Iterable[Hashable], asked: Mapping[Hashable, Sequence[Outcome]]) -> Iterator[Violation]:
    """``applied`` are the tokens whose effects the store has seen; ``asked`` the outcomes that callers saw."""
    times = Counter(applied)
    for token, outcomes in asked.items():
        count = times.pop(token, 0)
        if count == 0 and any(isinstance(outcome, Done) for outcome in outcomes):
            yield Violation(NO_LOSS, f"{token} was acknowledged, and is not there")
        if count > 1:
            yield Violation(ONCE, f"{token} was applied {count} times")
        if count > 0 and all(isinstance(outcome, Failed) for outcome in outcomes):
            yield Violation(NO_FALSE_CONFLICT, f"{token} was reported as not applied ({outcomes[-1]}), and is there")
    for token in times:
        yield Violation(ONCE, f"{token} was applied without a call for it")


def outcomes_are_true(operations: Iterable[Operation], landings: Sequence[Landing]) -> Iterator[Violation]:
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


Span = tuple[int, int]


class Lifetimes:
    """Of every key under a prefix, from landing to delete. Overwriting does not end a life."""

    def __init__(self, landings: Sequence[Landing], prefix: str = "") -> None:
        self._spans: dict[str, list[Span]] = {}
        for landing in landings:
            if landing.key.startswith(prefix):
                self._add(landing)

    def _add(self, landing: Landing) -> None:
        spans = self._spans.setdefault(landing.key, [])
        if landing.body is None:
            spans[-1] = (spans[-1][0], landing.position)
        elif not spans or spans[-1][1] != FOREVER:
            spans.append((landing.position, FOREVER))

    def stood(self, key: str, since: int, until: int) -> bool:
        """At some moment between the two."""
        return any(start < until and end > since for start, end in self._spans.get(key, ()))

    def stood_throughout(self, key: str, since: int, until: int) -> bool:
        return any(start < since and end > until for start, end in self._spans.get(key, ()))

    def throughout(self, since: int, until: int) -> set[str]:
        """The keys that existed all the time between the two."""
        return {key for key in self._spans if self.stood_throughout(key, since, until)}


COMPLETE = "listings are complete"
TRUE = "listings are true"


def complete_listings(operations: Iterable[Operation], landings: Sequence[Landing], prefix: str) -> Iterator[Violation]:
    """``list`` = keys. What existed is known from the landings; ``put`` must have ended in an object."""
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
    for operation, found in answers(operations, "read"):
        key = operation.key
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
