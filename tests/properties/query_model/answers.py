"""Orders, groups and figures, as plain Python over facts. Nothing of the library is used here."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal, NamedTuple

from tests.properties.query_model.past import Fact, Version


class By(NamedTuple):
    """A term of an order."""

    name: str
    descending: bool
    nulls: Literal["first", "last"]


def ordered(rows: Sequence[Version], terms: Sequence[By]) -> list[Version]:
    """Ties stay in the order in which the rows come."""
    found = list(rows)
    for name, descending, nulls in reversed(terms):
        absent = [row for row in found if row.fact[name] is None]
        present = [row for row in found if row.fact[name] is not None]
        present.sort(key=lambda row: _rank(row.fact[name]), reverse=descending)
        found = absent + present if nulls == "first" else present + absent
    return found


def _rank(value: Any) -> tuple[bool, Any]:
    """NaN is greater than all numbers."""
    return (True, 0) if _is_nan(value) else (False, value)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def group_of(values: Sequence[Any]) -> tuple[Any, ...]:
    """NaN is like NaN in groups, and unlike itself in Python."""
    return tuple("NaN" if _is_nan(value) else value for value in values)


def grouped(rows: Sequence[Version], names: Sequence[str]) -> dict[tuple[Any, ...], list[Fact]]:
    groups: dict[tuple[Any, ...], list[Fact]] = {}
    for row in rows:
        groups.setdefault(group_of([row.fact[name] for name in names]), []).append(row.fact)
    return groups


def figures(people: Sequence[Fact]) -> dict[str, Any]:
    """Of one group. Nulls count for nothing, and a figure of nothing is None."""

    def present(name: str) -> list[Any]:
        return [each[name] for each in people if each[name] is not None]

    ages, prices, scores, lengths = sorted(present("age")), present("price"), present("score"), present("tags")
    return {
        "rows": len(people),
        "golden": sum(tier.lower() == "gold" for tier in present("tier")),
        "years": sum(ages) if ages else None,
        "median": ages[max(math.ceil(len(ages) / 2), 1) - 1] if ages else None,
        "worth": sum(map(Fraction, prices)) if prices else None,
        "mean": float(sum(map(Fraction, prices)) / len(prices)) if prices else None,
        "dearest": max(prices, default=None),
        "worst": min(scores, key=_rank, default=None),
        "tiers": len(set(present("tier"))),
        "length": sum(map(len, lengths)) / len(lengths) if lengths else None,
    }


def same(one: Any, other: Any) -> bool:
    """Of the same types and values all through; NaN is NaN."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if _is_nan(one) or _is_nan(other):
        return _is_nan(one) and _is_nan(other)
    return type(one) is type(other) and bool(one == other)
