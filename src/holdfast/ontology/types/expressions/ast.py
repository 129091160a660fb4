"""Conditions, orders and figures of a query as immutable data. Made by the operators of ``FieldExpr``.

A path is a place in a row. A ``Reading`` decides which stored JSON values count there. Any other value is *unlike*: it
equals nothing and is neither smaller nor greater than anything, but it is not null.

Logic is two-valued, as in Python. ``!=`` is the exact opposite of ``==``, so null and unlike values differ from every
value; ``<``, ``<=``, ``>``, ``>=``, ``In`` and ``Text`` are false for them. ``Not`` inverts any of these.

``filters/sql.py`` compiles them to SQL over typed columns, if the scope has them, or over ``fields_json``. Both give
the same answer.
"""

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal

from holdfast.ontology.types.readings import Reading

End = Literal["own", "left", "right", "item"]
"""The owner of a field: the row, an entity at an end of the relation, or the item of a list under a quantifier."""

Operator = Literal["==", "!=", "<", "<=", ">", ">="]
TextOperator = Literal["equals", "contains", "startswith", "endswith", "matches"]
Value = str | int | float | bool | datetime | date | Decimal | bytes
"""Datetimes are in UTC. Enums and UUIDs are in their stored form."""


@dataclass(frozen=True)
class FieldPath:
    """A field, or a place inside it. ``steps`` are keys of nested objects.

    A step into anything but an object, and a missing key, give null. All fields of an end that does not exist are null.
    Under a quantifier ``end`` is "item", ``field`` is empty, and the steps start at the item. The keys of the ends are
    the fields "left_key" and "right_key" of a relation.
    """

    end: End
    field: str
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Comparison:
    path: FieldPath
    operator: Operator
    value: Value
    reading: Reading


@dataclass(frozen=True)
class In:
    """Equal to one of the values; false if there are none."""

    path: FieldPath
    values: tuple[Value, ...]
    reading: Reading


@dataclass(frozen=True)
class Text:
    """A test of a string. ``value`` is literal text, except for ``matches``, which searches for a pattern.

    With ``fold`` both sides are compared in lower case, code point by code point.
    """

    path: FieldPath
    operator: TextOperator
    value: str
    fold: bool = False


@dataclass(frozen=True)
class IsNull:
    """Null or missing."""

    path: FieldPath


@dataclass(frozen=True)
class Length:
    """Compares the number of items of a list. The length of any other value is null."""

    path: FieldPath
    operator: Operator
    value: int


@dataclass(frozen=True)
class Quantified:
    """Whether ``where`` holds for ``any`` item of a list, or for ``all``. The paths of ``where`` have the end "item".

    For null and other values that are not lists both are false. For an empty list ``any`` is false and ``all`` is true,
    as in Python. Quantifiers do not nest.
    """

    quantifier: Literal["any", "all"]
    path: FieldPath
    where: "Predicate"


@dataclass(frozen=True)
class And:
    """All of them; true if there are none."""

    terms: tuple["Predicate", ...]


@dataclass(frozen=True)
class Or:
    """At least one of them; false if there are none."""

    terms: tuple["Predicate", ...]


@dataclass(frozen=True)
class Not:
    term: "Predicate"


Atom = Comparison | In | Text | IsNull | Length
Predicate = Atom | Quantified | And | Or | Not

TRUE = And(())


@dataclass(frozen=True)
class Order:
    """One term of an ordering.

    Nulls come last, ascending or descending, unless ``nulls`` says "first". Unlike values come with the nulls. NaN is
    greater than every number. Texts are ordered by code point. If the field may have values of several types,
    ``reading`` is None: booleans come before numbers, numbers before texts, and the rest is ordered with the nulls.
    """

    path: FieldPath
    reading: Reading | None
    descending: bool = False
    nulls: Literal["first", "last"] = "last"


@dataclass(frozen=True)
class Count:
    """The number of rows, or of rows where ``where`` holds."""

    where: Predicate | None = None


@dataclass(frozen=True)
class Aggregate:
    """A figure over all values that are neither null nor unlike; null (a count 0) if there are none.

    ``quantile`` is the smallest value that a share ``at`` of all values does not exceed; ``avg`` is a float.
    """

    function: Literal["sum", "avg", "min", "max", "count_distinct", "quantile"]
    path: FieldPath
    reading: Reading
    at: float | None = None


@dataclass(frozen=True)
class AvgLen:
    """The mean number of items, over the rows where the value is a list."""

    path: FieldPath


AggregateTerm = Count | Aggregate | AvgLen
