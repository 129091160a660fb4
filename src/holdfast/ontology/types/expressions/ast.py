"""What a query says, as data. Built by the operators of ``FieldExpr``, and immutable.

A path names a place in a row; ``Reading`` says what a stored JSON value must be to count there. A value that is nothing
of the kind is *unlike*: it equals nothing and is neither smaller nor greater than anything, but it is not null.

Logic is two-valued, as in Python. ``!=`` is the exact opposite of ``==``, so null and unlike values differ from every
value; ``<``, ``<=``, ``>``, ``>=``, ``In``, ``Between`` and ``Text`` are false for them. ``Not`` inverts any of these.

``filters/sql.py`` compiles them to SQL over typed columns where the scope has them, else over ``fields_json``: both
give the same answer.
"""

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal

from holdfast.ontology.types.readings import Reading

End = Literal["own", "left", "right", "item"]
"""Whose field: the row's own, that of an entity at an end of the relation, or the item of a list under a quantifier."""

Operator = Literal["==", "!=", "<", "<=", ">", ">="]
TextOperator = Literal["equals", "contains", "startswith", "endswith", "matches"]
Value = str | int | float | bool | datetime | date | Decimal | bytes
"""Datetimes have the zone UTC. Enums and UUIDs are given as they are stored."""


@dataclass(frozen=True)
class FieldPath:
    """A field, or what lies inside it. ``steps`` are keys of nested objects.

    A step into anything but an object, and a key that is not there, lead to null. Of an end that does not exist every
    field is null. Under a quantifier ``end`` is "item", ``field`` is empty, and the steps start at the item. The ends
    themselves are the fields "left_key" and "right_key" of a relation.
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
    """Equal to one of the values; never, if there are none."""

    path: FieldPath
    values: tuple[Value, ...]
    reading: Reading


@dataclass(frozen=True)
class Between:
    """``low <= value <= high``, both ends included."""

    path: FieldPath
    low: Value
    high: Value
    reading: Reading


@dataclass(frozen=True)
class Text:
    """A test of a string. Nothing is special in ``value``, except for ``matches``, which searches for a pattern.

    With ``fold`` both sides are compared in lower case (``fitting.fold``).
    """

    path: FieldPath
    operator: TextOperator
    value: str
    fold: bool = False


@dataclass(frozen=True)
class IsNull:
    """Null, or not there."""

    path: FieldPath


@dataclass(frozen=True)
class IsNotNull:
    path: FieldPath


@dataclass(frozen=True)
class Length:
    """Compares the number of items of a list. What is not a list has no length, which is as if it were null."""

    path: FieldPath
    operator: Operator
    value: int


@dataclass(frozen=True)
class Quantified:
    """Whether ``where`` holds for ``any`` item of a list, or for ``all``. The paths of ``where`` have the end "item".

    Of null and of what is not a list both are false. Of an empty list ``any`` is false and ``all`` is true, as in
    Python. Quantifiers do not nest.
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
    """One of them at least; false if there are none."""

    terms: tuple["Predicate", ...]


@dataclass(frozen=True)
class Not:
    term: "Predicate"


Atom = Comparison | In | Between | Text | IsNull | IsNotNull | Length
Predicate = Atom | Quantified | And | Or | Not

TRUE = And(())


@dataclass(frozen=True)
class Order:
    """One term of an ordering.

    Nulls come last, ascending or descending, unless ``nulls`` says "first". Unlike values come with the nulls. NaN is
    greater than every number. Texts are ordered by code point. ``reading`` is None where the field may hold anything:
    then booleans come before numbers, numbers before texts, and the rest comes with the nulls.
    """

    path: FieldPath
    reading: Reading | None
    descending: bool = False
    nulls: Literal["first", "last"] = "last"


@dataclass(frozen=True)
class Count:
    """Rows; those where ``where`` holds, if it is given (``count_where``)."""

    where: Predicate | None = None


@dataclass(frozen=True)
class Aggregate:
    """One figure over all values that are neither null nor unlike; null (or 0, to count) if there are none.

    ``quantile`` is the smallest value that at least the share ``at`` of all values does not exceed; ``avg`` is a float.
    """

    function: Literal["sum", "avg", "min", "max", "count_distinct", "quantile"]
    path: FieldPath
    reading: Reading
    at: float | None = None


@dataclass(frozen=True)
class AvgLen:
    """The mean number of items of a list, over the rows where it is one."""

    path: FieldPath


AggregateTerm = Count | Aggregate | AvgLen
