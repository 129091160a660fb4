"""Acknowledged, applied, and how often: every operation by its token."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Done, Failed, Outcome

NO_LOSS = "no acknowledged loss"
ONCE = "applied at most once"
NO_FALSE_CONFLICT = "no false conflict"


def applied_once(applied: Iterable[Hashable], asked: Mapping[Hashable, Sequence[Outcome]]) -> Iterator[Violation]:
    """``applied`` are the tokens whose effects the store has seen; ``asked`` what the caller heard, once per call."""
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
        yield Violation(ONCE, f"{token} was applied, and nobody asked for it")
