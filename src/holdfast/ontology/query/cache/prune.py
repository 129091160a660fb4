"""Which files cannot matter to a query, from their statistics alone. Pure. What is unknown may match.

A file that cannot contain a wanted *key* never matters. A file whose rows cannot satisfy the rest of the predicate may
still have the newest row of an identity of which an older file has a matching row: a query for a state reads such a
file as a *shadow*, unless no older file that may match overlaps its keys. A query for history needs no shadows.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Literal

from holdfast.ontology.chain.history import Window
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.stats import FileStats, Span, may_hold
from holdfast.ontology.types.expressions.ast import (
    And,
    Comparison,
    FieldPath,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    Text,
)
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.typeinfo import TypeInfo

UNKNOWN = Span(None, None)
_NUMBERS: tuple[Reading, ...] = ("number", "real", "float", "decimal")


@dataclass(frozen=True, slots=True)
class Choice:
    """Whether a file is read, and why not."""

    entry: Entry
    use: Literal["rows", "shadow", "pruned"]
    """rows: it may have rows of the result. shadow: only newer rows that hide others. pruned: it is not read."""
    reason: str
    """commits, keys or columns; empty for rows."""


@dataclass(frozen=True, slots=True)
class Split:
    """A predicate as the conjunction of conditions on keys alone, and of the rest."""

    keys: And
    rest: And


def split(predicate: Predicate, shape: TypeInfo) -> Split:
    """Conditions on keys alone are true of all rows of an identity or of none, so they can be applied to each row."""
    own = {*shape.keys, shape.key_field}
    keys: list[Predicate] = []
    rest: list[Predicate] = []
    for term in conjuncts(predicate):
        (keys if all(each.end == "own" and each.field in own for each in paths(term)) else rest).append(term)
    return Split(And(tuple(keys)), And(tuple(rest)))


def conjuncts(predicate: Predicate) -> Iterable[Predicate]:
    if isinstance(predicate, And):
        for term in predicate.terms:
            yield from conjuncts(term)
    else:
        yield predicate


def paths(predicate: Predicate) -> Iterable[FieldPath]:
    """Every path of a predicate, except those that start at the item of a list."""
    match predicate:
        case And(terms=terms) | Or(terms=terms):
            for term in terms:
                yield from paths(term)
        case Not(term=term):
            yield from paths(term)
        case _:
            yield predicate.path


def choose(entries: Sequence[Entry], window: Window, predicate: Predicate, shape: TypeInfo) -> list[Choice]:
    """The choice for each file of a type, in the order of commits."""
    parts = split(predicate, shape)
    found: list[Choice] = []
    for entry in entries:
        stats = entry.stats
        if not window.touches(entry.first, entry.last):
            found.append(Choice(entry, "pruned", "commits"))
        elif stats is not None and not may_match(parts.keys, stats, shape):
            found.append(Choice(entry, "pruned", "keys"))
        elif stats is not None and not may_match(parts.rest, stats, shape):
            older = [each.entry for each in found if each.use == "rows"]
            # Rows of one file can also hide each other, if an identity has several.
            needed = not window.history and any(may_overlap(one, entry) for one in older)
            found.append(Choice(entry, "shadow" if needed else "pruned", "columns"))
        else:
            found.append(Choice(entry, "rows", ""))
    return found


def may_overlap(one: Entry, other: Entry) -> bool:
    """Whether two files may have rows of the same identity."""
    if one.stats is None or other.stats is None:
        return True
    return all(_ranges_overlap(a, b) for a, b in zip(one.stats.keys, other.stats.keys, strict=False))


def _ranges_overlap(one: Span, other: Span) -> bool:
    return not (_less(one.high, other.low) or _less(other.high, one.low))


def may_match(predicate: Predicate, stats: FileStats, shape: TypeInfo) -> bool:
    """False only if no row of the file can satisfy the predicate."""

    def may_equal(path: FieldPath, value: Any, reading: Reading) -> bool:
        in_range = _may_compare(_span(path, stats, shape), "==", value, reading)
        return in_range and _may_hold_key(path, value, stats, shape)

    match predicate:
        case And(terms=terms):
            return all(may_match(term, stats, shape) for term in terms)
        case Or(terms=terms):
            return any(may_match(term, stats, shape) for term in terms)
        case Comparison(path=path, operator="==", value=value, reading=reading):
            return may_equal(path, value, reading)
        case In(path=path, values=values, reading=reading):
            return any(may_equal(path, each, reading) for each in values)
        case Text(path=path, operator="equals", value=value, fold=False):
            return may_equal(path, value, "text")
        case Comparison(path=path, operator=operator, value=value, reading=reading):
            return _may_compare(_span(path, stats, shape), operator, value, reading)
        case Text(path=path, operator="startswith", value=value, fold=False):
            span = _span(path, stats, shape)
            below = isinstance(span.high, str) and value > span.high
            above = isinstance(span.low, str) and span.low[: len(value)] > value
            return not below and not above
        case IsNull(path=path):
            return _span(path, stats, shape).nulls != 0
    return True


def _may_hold_key(path: FieldPath, value: Any, stats: FileStats, shape: TypeInfo) -> bool:
    """False only if the path is a key and the sketch of the file's keys excludes this value."""
    if path.end != "own" or path.steps or not stats.sketches:
        return True
    column = _key_column(path.field, shape)
    if column is None and shape.ends is None and path.field == shape.key_field:
        column = 0
    if column is None or column >= len(stats.sketches):
        return True
    form = "text" if path.field in shape.keys else shape.forms.get(path.field)
    if form == "text" and isinstance(value, str):
        return may_hold(stats.sketches[column], value)
    if form == "int" and isinstance(value, int) and not isinstance(value, bool):
        return may_hold(stats.sketches[column], str(value))
    return True


def _span(path: FieldPath, stats: FileStats, shape: TypeInfo) -> Span:
    if path.end != "own" or path.steps:
        return UNKNOWN
    if path.field in stats.columns:
        return stats.columns[path.field]
    column = _key_column(path.field, shape)
    if column is None and path.field == shape.key_field and shape.forms.get(path.field, "text") == "text":
        column = 0 if shape.ends is None else 2
    known = column is not None and column < len(stats.keys)
    return Span(stats.keys[column].low, stats.keys[column].high, 0) if known and column is not None else UNKNOWN


def _key_column(name: str, shape: TypeInfo) -> int | None:
    """The position of a column in the identity."""
    return shape.keys.index(name) if name in shape.keys else None


def _may_compare(span: Span, operator: str, value: Any, reading: Reading) -> bool:
    """False only if the comparison holds for no value in the span."""
    wanted = _as_bound(value, reading)
    low, high = (bound if _comparable_bound(bound, wanted) else None for bound in (span.low, span.high))
    match operator:
        case "==":
            return not (_less(wanted, low) or _less(high, wanted))
        case "<":
            return low is None or bool(low < wanted)
        case "<=":
            return low is None or bool(low <= wanted)
        case ">":
            return high is None or bool(high > wanted)
        case ">=":
            return high is None or bool(high >= wanted)
    return True


def _as_bound(value: Any, reading: Reading) -> Any:
    """The value in the form that bounds in statistics have; None if there are no such bounds."""
    if reading == "text":
        return value if isinstance(value, str) else None
    if reading in _NUMBERS:
        plain = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
        return value if plain and value == value else None  # noqa: PLR0124  # NaN
    if reading == "datetime" and isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return value.isoformat() if reading == "date" and isinstance(value, date) else None


def _comparable_bound(bound: Any, wanted: Any) -> bool:
    """Whether a bound is of the same kind as the value."""
    if isinstance(bound, bool) or bound is None or wanted is None:
        return False
    return isinstance(bound, str) == isinstance(wanted, str)


def _less(one: Any, other: Any) -> bool:
    return one is not None and other is not None and bool(one < other)
