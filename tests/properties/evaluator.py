"""The query language in plain Python: what the SQL of ``filters`` is compared with.

A row is what ``fields_json`` says, as ``json.loads`` gives it: a mapping from the names of fields to JSON values. Of a
relation it also has ``left_key`` and ``right_key``, and its instance key under the name of that field.

No row makes an evaluator raise: what is unlike is false, not an error.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ontology.types.expressions.ast import (
    And,
    Comparison,
    FieldPath,
    In,
    IsNull,
    Length,
    Not,
    Operator,
    Or,
    Order,
    Predicate,
    Quantified,
    Text,
    TextOperator,
)
from holdfast.ontology.types.expressions.fitting import pattern_text
from holdfast.ontology.types.readings import read

Row = Mapping[str, Any]
Rows = Mapping[str, Any]
"""The row, the rows at its ends and the item of a list, by the ``end`` of paths."""
T = TypeVar("T")

_COMPARE: dict[Operator, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def evaluate(predicate: Predicate, row: Row, left: Row | None = None, right: Row | None = None) -> bool:
    """Whether the predicate holds. An end that is None does not exist: all of its fields are null."""
    return _holds(predicate, {"own": row, "left": left, "right": right})


def at(path: FieldPath, rows: Rows) -> Any:
    """The JSON value at a path; None where there is none."""
    value: Any = rows[path.end]
    for step in path.steps if path.end == "item" else (path.field, *path.steps):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _holds(predicate: Predicate, rows: Rows) -> bool:
    match predicate:
        case And(terms=terms):
            return all(_holds(term, rows) for term in terms)
        case Or(terms=terms):
            return any(_holds(term, rows) for term in terms)
        case Not(term=term):
            return not _holds(term, rows)
        case IsNull(path=path):
            return at(path, rows) is None
        case Quantified():
            return _quantified(predicate, rows)
    return _atom(predicate, rows)


def _quantified(predicate: Quantified, rows: Rows) -> bool:
    items = at(predicate.path, rows)
    if not isinstance(items, list):
        return False
    decide = any if predicate.quantifier == "any" else all
    return decide(_holds(predicate.where, {**rows, "item": item}) for item in items)


def _atom(predicate: Comparison | In | Text | Length, rows: Rows) -> bool:
    found = at(predicate.path, rows)
    match predicate:
        case Comparison():
            return _compared(read(found, predicate.reading), predicate.operator, predicate.value)
        case In():
            value = read(found, predicate.reading)
            return value is not None and any(value == one for one in predicate.values)
        case Text():
            return type(found) is str and holds(predicate.operator, found, predicate.value, folded=predicate.fold)
        case Length():
            return _compared(len(found) if isinstance(found, list) else None, predicate.operator, predicate.value)


def _compared(value: Any, comparison: Operator, other: Any) -> bool:
    if value is None:
        return comparison == "!="
    return _COMPARE[comparison](value, other)


def ordered(rows: Iterable[T], terms: Sequence[Order], rows_of: Callable[[T], Rows]) -> list[T]:
    """Sorted by the terms, and otherwise as they came. ``rows_of`` gives the rows by "own", "left" and "right"."""
    result = list(rows)
    for term in reversed(terms):
        keyed = [(sort_value(at(term.path, rows_of(row)), term), row) for row in result]
        present = [pair for pair in keyed if pair[0] is not None]
        present.sort(key=lambda pair: pair[0] or (), reverse=term.descending)
        absent = [row for key, row in keyed if key is None]
        sorted_rows = [row for _, row in present]
        result = absent + sorted_rows if term.nulls == "first" else sorted_rows + absent
    return result


def sort_value(found: Any, term: Order) -> tuple[Any, ...] | None:
    """What a stored value is sorted by; None for null and for what is unlike."""
    if term.reading is None:
        return _sort_any(found)
    value = read(found, term.reading)
    if value is None:
        return None
    return _number_key(value) if isinstance(value, float) else (0, value)


def _sort_any(found: Any) -> tuple[Any, ...] | None:
    match found:
        case bool():
            return (0, found)
        case int() | float():
            return (1, *_number_key(found))
        case str():
            return (2, found)
    return None


def _number_key(value: int | float) -> tuple[Any, ...]:
    """NaN after all numbers."""
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def fold(text: str) -> str:
    """In lower case, code point by code point. Of one of them Python makes two: DuckDB has the simple mapping."""
    return "".join("i" if each == "\u0130" else each.lower() for each in text)


def holds(operator: TextOperator, text: str, value: str, *, folded: bool) -> bool:
    if operator == "matches":
        return pc.match_substring_regex(pa.array([text]), pattern_text(value, folded=folded))[0].as_py() is True
    if folded:
        text, value = fold(text), fold(value)
    match operator:
        case "equals":
            return text == value
        case "contains":
            return value in text
        case "startswith":
            return text.startswith(value)
        case "endswith":
            return text.endswith(value)
