"""A comparison with a number, turned into one among the numbers that a column can hold. Pure.

Engines compare a whole number with a double as two doubles, and so find 2**53 + 1 equal to 2.0**53. Python does not.
Here the value is moved to the nearest number that the column could hold, and the operator with it, so that the engine
compares like with like:

    age < 2.5           over whole numbers    age <= 2
    score > 2**53 + 1   over doubles          score >= 9007199254740994.0
    age == 2.5          over whole numbers    never
"""

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from typing import Any, NamedTuple

from holdfast.ontology.filters.ast import Operator


class Bound(NamedTuple):
    """The comparison to make instead."""

    operator: Operator
    value: Any


Near = Callable[[Any], Any]
"""The nearest number of the grid on one side, the number itself included; None if there is none."""


class Grid(NamedTuple):
    below: Near
    above: Near

    def bound(self, operator: Operator, value: Any) -> Bound | None:
        """None: it holds for no number at all. ``!=`` is left to the caller."""
        if isinstance(value, float) and math.isnan(value):
            return None
        low, high = self.below(value), self.above(value)
        if low is not None and low == high:
            return Bound(operator, low)
        if operator == "==":
            return None
        edge = low if operator in ("<", "<=") else high
        return None if edge is None else Bound("<=" if operator in ("<", "<=") else ">=", edge)


def _whole(least: int, most: int) -> Grid:
    def below(value: int | float) -> int | None:
        if isinstance(value, float) and math.isinf(value):
            return most if value > 0 else None
        floor = math.floor(value)
        return None if floor < least else min(floor, most)

    def above(value: int | float) -> int | None:
        if isinstance(value, float) and math.isinf(value):
            return least if value < 0 else None
        ceiling = math.ceil(value)
        return None if ceiling > most else max(ceiling, least)

    return Grid(below, above)


def _double_near(value: int | float, direction: float) -> float:
    """The nearest double on the side of ``direction``. All doubles compare exactly with whole numbers, in Python."""
    if isinstance(value, float):
        return value
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    wrong = near > value if direction < 0 else near < value
    return math.nextafter(near, direction) if wrong else near


# Arithmetic would round to the context's precision; what is written out and ``copy_...`` does not.
_STEP = Decimal("0." + "0" * 17 + "1")
_MOST = Decimal("9" * 20 + "." + "9" * 18)


def _fixed(rounding: str, outside: Callable[[Decimal], Decimal | None]) -> Near:
    def near(value: Decimal) -> Decimal | None:
        if value.copy_abs() > _MOST:
            return outside(value)
        with localcontext(prec=60, rounding=rounding):
            return value.quantize(_STEP)

    return near


INT64 = _whole(-(2**63), 2**63 - 1)
INT100 = _whole(-(2**100), 2**100)
"""For whole numbers of 64 bits, with or without a sign: this far beyond them all bounds are alike."""
DOUBLE = Grid(lambda value: _double_near(value, -math.inf), lambda value: _double_near(value, math.inf))
DECIMAL_38_18 = Grid(
    _fixed("ROUND_FLOOR", lambda value: _MOST if value > 0 else None),
    _fixed("ROUND_CEILING", lambda value: _MOST.copy_negate() if value < 0 else None),
)
