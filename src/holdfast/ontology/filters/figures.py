"""Figures over rows in this process, and the reference for ``figuresql.py``. Pure.

Nulls and unlike values are left out. The sum of whole numbers is one, of any size; with a float among them it is a
float. Decimals are added up exactly, to ten thousand digits. ``min``, ``max`` and ``quantile`` follow the order of
``evaluate.ordered``, where NaN is greatest; to ``count_distinct`` all NaN are one value.
"""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal, localcontext
from typing import Any

from holdfast.ontology.filters.ast import Aggregate, AggregateTerm, AvgLen, Count, Order
from holdfast.ontology.filters.evaluate import Rows, at, evaluate, sort_value
from holdfast.ontology.filters.reading import read


def figure(term: AggregateTerm, rows: Iterable[Rows]) -> Any:
    """One figure over rows, each given by "own", "left" and "right"."""
    match term:
        case Count(where=where):
            if where is None:
                return sum(1 for _ in rows)
            return sum(evaluate(where, row["own"], row.get("left"), row.get("right")) for row in rows)
        case AvgLen(path=path):
            lengths = [len(found) for row in rows if isinstance(found := at(path, row), list)]
            return sum(lengths) / len(lengths) if lengths else None
        case Aggregate():
            return _aggregate(term, [at(term.path, row) for row in rows])


def _aggregate(term: Aggregate, found: list[Any]) -> Any:
    values = [value for each in found if (value := read(each, term.reading)) is not None]
    if term.function == "count_distinct":
        return len({_identity(value) for value in values})
    if not values:
        return None
    match term.function:
        case "sum":
            return total(values)
        case "avg":
            return mean(total(values), len(values))
    ordering = Order(term.path, term.reading)
    ranked = sorted(
        (key, number) for number, each in enumerate(found) if (key := sort_value(each, ordering)) is not None
    )
    share = {"min": 0.0, "max": 1.0}.get(term.function, term.at or 0.0)
    return read(found[ranked[position(share, len(ranked))][1]], term.reading)


def _identity(value: Any) -> Any:
    return "NaN" if isinstance(value, float) and math.isnan(value) else (type(value) is str, value)


def position(share: float, count: int) -> int:
    """Which of ``count`` values in order is the smallest that at least this share does not exceed."""
    return min(max(math.ceil(Decimal(repr(share)) * count), 1), count) - 1


def total(values: Sequence[Any]) -> Any:
    """The sum: exact, unless there are floats in it."""
    if any(isinstance(value, float) for value in values):
        return float(sum(value for value in values if isinstance(value, float))) + _rounded(
            sum(value for value in values if not isinstance(value, float))
        )
    if not isinstance(values[0], Decimal):
        return sum(values)
    with localcontext(prec=10_000, Emin=-(10**17), Emax=10**17):
        return sum(values, Decimal(0))


def mean(summed: Any, count: int) -> float:
    if isinstance(summed, float):
        return summed / count
    if isinstance(summed, Decimal):
        with localcontext(prec=60):
            return float(summed / count)
    try:
        return float(summed / count)
    except OverflowError:
        return _rounded(summed)


def _rounded(number: int) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf
