"""Conditions that a reader was asked for, as far as they help to leave something out. Pure.

The caller applies them to every row again, so to leave too much in is slow and never wrong; to leave a row out that
fits would be. What is not understood here is therefore left out of the conditions, not guessed at.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

Operator = Literal["=", "<", "<=", ">", ">=", "in", "startswith", "null", "not null"]


@dataclass(frozen=True)
class Condition:
    """One column against one value; of ``in``, a tuple of values."""

    column: str
    operator: Operator
    value: Any = None


@dataclass(frozen=True)
class Conditions:
    """All of them hold."""

    terms: tuple[Condition, ...] = ()

    def of(self, column: str) -> list[Condition]:
        return [each for each in self.terms if each.column == column]

    def values(self, column: str) -> frozenset[Any] | None:
        """The only values that the column may have; None if that is not known."""
        found: frozenset[Any] | None = None
        for each in self.of(column):
            if each.operator in ("=", "in"):
                own = frozenset(each.value if each.operator == "in" else (each.value,))
                found = own if found is None else found & own
        return found

    def allows(self, column: str) -> Callable[[str], bool]:
        """A test for values of a column of text."""
        known = self.values(column)
        begins = [each.value for each in self.of(column) if each.operator == "startswith"]
        return lambda value: (known is None or value in known) and all(value.startswith(each) for each in begins)

    def whole(self, column: str) -> tuple[int | None, int | None]:
        """The least and the greatest whole number that the column may have."""
        return _bounds((each.operator, each.value) for each in self.of(column))

    def times(self, exact: str, rounded: str) -> tuple[int | None, int | None]:
        """The same of a time: a column of nanoseconds, and one of timestamps, whose values lost what is below a
        microsecond."""
        low, high = self.whole(exact)
        first, last = _bounds((each.operator, _nanoseconds(each.value)) for each in self.of(rounded))
        if first is not None:
            low = first if low is None else max(low, first)
        if last is not None:
            high = last + 999 if high is None else min(high, last + 999)
        return low, high


def _bounds(terms: Iterable[tuple[str, Any]]) -> tuple[int | None, int | None]:
    low: list[int] = []
    high: list[int] = []
    for operator, value in terms:
        if not isinstance(value, int | Sequence) or isinstance(value, bool | str | bytes):
            continue
        if isinstance(value, Sequence):
            numbers = [each for each in value if isinstance(each, int)]
            if operator == "in" and numbers and len(numbers) == len(value):
                low.append(min(numbers))
                high.append(max(numbers))
            continue
        if operator in ("=", ">", ">="):
            low.append(value + (operator == ">"))
        if operator in ("=", "<", "<="):
            high.append(value - (operator == "<"))
    return max(low, default=None), min(high, default=None)


def _nanoseconds(value: Any) -> Any:
    """Of a timestamp with a zone. Without one the moment is ambiguous."""
    if isinstance(value, tuple):
        return tuple(map(_nanoseconds, value))
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    since = value.astimezone(UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
