"""Predicates written as text, which ``parse`` reads back as they were. Pure."""

import base64
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from holdfast.ontology.filters.parse import name_text, quoted_text
from holdfast.ontology.types.expressions.ast import (
    And,
    Between,
    Comparison,
    FieldPath,
    In,
    IsNotNull,
    IsNull,
    Length,
    Not,
    Or,
    Predicate,
    Quantified,
    Text,
)


def to_text(predicate: Predicate) -> str:
    """The text that ``parse`` reads back as the same predicate."""
    return _written(predicate, None)


def _written(predicate: Predicate, through: FieldPath | None) -> str:
    match predicate:
        case And(terms=terms):
            return _joined(terms, " and ", "true", through)
        case Or(terms=terms):
            return _joined(terms, " or ", "false", through)
        case Not(term=term):
            return f"not {_grouped(term, through)}"
        case Quantified(quantifier=quantifier, path=path, where=where):
            return f"{quantifier}({_written(where, path)})"
        case Length(path=path, operator=operator, value=value):
            return f"len({_path(path, through)}) {operator} {value}"
    return f"{_path(predicate.path, through)} {_tested(predicate)}"


def _joined(terms: tuple[Predicate, ...], word: str, empty: str, through: FieldPath | None) -> str:
    return word.join(_grouped(term, through) for term in terms) if terms else empty


def _grouped(term: Predicate, through: FieldPath | None) -> str:
    text = _written(term, through)
    return f"({text})" if isinstance(term, And | Or) and term.terms else text


def _tested(predicate: Comparison | In | Between | Text | IsNull | IsNotNull) -> str:
    match predicate:
        case Comparison(operator=operator, value=value):
            return f"{operator} {literal(value)}"
        case In(values=values):
            return f"in [{', '.join(map(literal, values))}]"
        case Between(low=low, high=high):
            return f"between {literal(low)} and {literal(high)}"
        case Text(operator=operator, value=value, fold=fold):
            return f"{operator} {quoted_text(value)}{' nocase' if fold else ''}"
        case IsNull():
            return "is null"
        case IsNotNull():
            return "is not null"


def _path(path: FieldPath, through: FieldPath | None) -> str:
    if path.end == "item" and through is not None:
        return ".".join((f"{_path(through, None)}[]", *(name_text(step) for step in path.steps)))
    names = [name_text(name) for name in (path.field, *path.steps)]
    return ".".join(names if path.end == "own" else [path.end, *names])


def literal(value: Any) -> str:
    """A value as it is written in a text."""
    match value:
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        case int() | float():
            return repr(value)
        case datetime():
            return f'datetime "{value.isoformat()}"'
        case date():
            return f'date "{value.isoformat()}"'
        case Decimal():
            return f'decimal "{value}"'
        case bytes():
            return f'bytes "{base64.b64encode(value).decode()}"'
    return quoted_text(value)
