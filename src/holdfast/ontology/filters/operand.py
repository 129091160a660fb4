"""Pieces of SQL: where the compilers find values, and how a value is compared with a parameter. Pure.

A query reads up to three tables: the rows themselves, and the entities at the two ends of a relation. Each is a
``Source``: the SQL of its ``fields_json``, and its typed columns. The caller decides, file by file, which typed columns
are usable. If an end does not exist, all columns of its source are NULL.

    scope = {"own": Source('r."fields_json"', {"age": TypedColumn('r."age"', "int", complete=True)})}
    compile_where(predicate, scope) -> Sql(text, params)

An ``Operand`` is a piece of SQL and its domain. The domain decides which values it can be compared with, and how they
are bound. A comparison is NULL if the operand is.

SQL engines compare a whole number with a double as two doubles, and so find 2**53 + 1 equal to 2.0**53. Python does
not. So a ``Grid`` moves the value to the nearest number that the column can hold, and adjusts the operator:

    age < 2.5           over whole numbers    age <= 2
    score > 2**53 + 1   over doubles          score >= 9007199254740994.0
    age == 2.5          over whole numbers    never
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from typing import Any, Literal, NamedTuple

from holdfast.ontology.types.expressions.ast import End, Operator, TextOperator
from holdfast.ontology.types.expressions.fitting import pattern_text
from holdfast.ontology.types.typespec import Form, ListOf, Node, form_of, without_null


class Sql(NamedTuple):
    """A piece of SQL and the values of its ``?``, in order. Values of users are parameters, and names are quoted."""

    text: str
    params: tuple[Any, ...] = ()


@dataclass(frozen=True)
class TypedColumn:
    """A typed column, quoted.

    If it is ``complete``, NULL means null in ``fields_json``, for every row in scope. Otherwise some files lack it, and
    ``fields_json`` is read where the column is NULL. ``items`` is the form of the items of a list.
    """

    sql: str
    form: Form
    complete: bool
    items: Form | None = None


@dataclass(frozen=True)
class Source:
    """A table. Fields without a typed column are read from ``fields_json``."""

    fields_json: str
    columns: Mapping[str, TypedColumn] = field(default_factory=dict)


Scope = Mapping[End, Source]


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    """A text as an SQL literal, where a parameter cannot be."""
    return "'" + text.replace("'", "''") + "'"


def typed_column(sql: str, node: Node, *, complete: bool) -> TypedColumn:
    """The column of a field of this type, as ``columns.typed_columns`` makes it."""
    plain, form = without_null(node)[0], form_of(node)
    items = form_of(plain.item) if isinstance(plain, ListOf) and form == "list" else None
    return TypedColumn(sql, form, complete, items)


class Bound(NamedTuple):
    """A comparison with a number of a grid."""

    operator: Operator
    value: Any


Near = Callable[[Any], Any]
"""The nearest number of the grid on one side of a number, or the number itself; None if there is none."""


class Grid(NamedTuple):
    below: Near
    above: Near

    def bound(self, operator: Operator, value: Any) -> Bound | None:
        """An equal comparison; None if it holds for no number. Not for ``!=``."""
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
    """The nearest double in this direction. Python compares doubles and whole numbers exactly."""
    if isinstance(value, float):
        return value
    try:
        near = float(value)
    except OverflowError:
        near = math.inf if value > 0 else -math.inf
    wrong = near > value if direction < 0 else near < value
    return math.nextafter(near, direction) if wrong else near


# Written out, because arithmetic would round to the precision of the context.
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
"""For whole numbers of 64 bits, with or without a sign. Bounds beyond are equivalent to these."""
DOUBLE = Grid(lambda value: _double_near(value, -math.inf), lambda value: _double_near(value, math.inf))
DECIMAL_38_18 = Grid(
    _fixed("ROUND_FLOOR", lambda value: _MOST if value > 0 else None),
    _fixed("ROUND_CEILING", lambda value: _MOST.copy_negate() if value < 0 else None),
)


Domain = Literal["text", "int", "whole", "double", "decimal", "bool", "timestamp", "date", "blob"]

_SQL_TYPES: dict[Domain, str] = {
    "text": "VARCHAR",
    "int": "BIGINT",
    "whole": "HUGEINT",
    "double": "DOUBLE",
    "decimal": "DECIMAL(38, 18)",
    "bool": "BOOLEAN",
    "timestamp": "TIMESTAMPTZ",
    "date": "DATE",
    "blob": "BLOB",
}
_GRIDS: dict[Domain, Grid] = {"int": INT64, "whole": INT100, "double": DOUBLE, "decimal": DECIMAL_38_18}
_SQL_OPERATORS: dict[Operator, str] = {"==": "=", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_QUOTED_OR_MARK = {
    mark: re.compile(rf"""\"(?:[^\"]|\"\")*\"|'(?:[^']|'')*'|{re.escape(mark)}""") for mark in ("{}", "?")
}
NEVER, ALWAYS = Sql("false"), Sql("true")


def fill(template: str, *parts: Sql) -> Sql:
    """The template with a part in place of each ``{}``, and the parameters in the same order."""
    texts = pieces(template, "{}")
    text = "".join(piece for pair in zip(texts, (part.text for part in parts), strict=False) for piece in pair)
    return Sql(text + texts[len(parts)], tuple(value for part in parts for value in part.params))


def pieces(text: str, mark: str) -> list[str]:
    """The text between the marks. Marks in quoted names and in literals do not count."""
    if '"' not in text and "'" not in text:
        return text.split(mark)
    found, begin = [], 0
    for match in _QUOTED_OR_MARK[mark].finditer(text):
        if match.group() == mark:
            found.append(text[begin : match.start()])
            begin = match.end()
    return [*found, text[begin:]]


def joined(separator: str, parts: Sequence[Sql]) -> Sql:
    return fill(separator.join(["{}"] * len(parts)), *parts)


def bound(value: Any, kind: str) -> Sql:
    """A parameter of an SQL type."""
    return Sql(f"CAST(? AS {kind})", (value,))


class Operand(NamedTuple):
    sql: Sql
    domain: Domain

    def compare(self, operator: Operator, value: Any) -> Sql:
        """For every operator but ``!=``."""
        found = self._found(operator, value)
        if found is None:
            return NEVER
        test = fill(f"{{}} {_SQL_OPERATORS[found.operator]} {{}}", self.sql, self._bound(found.value))
        if self.domain == "double" and found.operator in (">", ">="):
            # NaN is greater than all numbers in DuckDB, and greater than none in Python.
            return fill("({} AND {} <= CAST('Infinity' AS DOUBLE))", test, self.sql)
        return test

    def differs(self, value: Any) -> Sql | None:
        """``!=`` as one expression that is never NULL; None if there is none."""
        found = self._found("==", value)
        # Not IS DISTINCT FROM: beside OR, DuckDB (1.5.5) treats it as false in row groups that are all null.
        return None if found is None else fill("({} = {}) IS NOT TRUE", self.sql, self._bound(found.value))

    def among(self, values: Sequence[Any]) -> Sql:
        found = [one.value for value in values if (one := self._found("==", value)) is not None]
        if not found:
            return NEVER
        return fill("{} IN ({})", self.sql, joined(", ", [self._bound(value) for value in found]))

    def text(self, operator: TextOperator, value: str, *, folded: bool) -> Sql:
        if operator == "matches":
            return fill("regexp_matches({}, {})", self.sql, bound(pattern_text(value, folded=folded), "VARCHAR"))
        sides = [self.sql, bound(value, "VARCHAR")]
        if folded:
            sides = [fill("lower({})", side) for side in sides]
        test = fill(_TEXT_TESTS[operator], *sides)
        if operator == "startswith" and not folded and (after := _after(value)) is not None:
            # DuckDB prunes row groups by the range, and not by starts_with.
            return fill("({} AND {} AND {})", self.compare(">=", value), self.compare("<", after), test)
        return test

    def _found(self, operator: Operator, value: Any) -> Bound | None:
        """The comparison in this domain; None if it holds for no value."""
        grid = _GRIDS.get(self.domain)
        return Bound(operator, value) if grid is None else grid.bound(operator, value)

    def _bound(self, value: Any) -> Sql:
        if self.domain == "decimal":
            value = format(value, "f")
        elif self.domain == "double" and math.isinf(value):
            value = "Infinity" if value > 0 else "-Infinity"
        return bound(value, _SQL_TYPES[self.domain])


Test = Callable[[Operand], Sql]

_TEXT_TESTS: dict[TextOperator, str] = {
    "equals": "{} = {}",
    "contains": "contains({}, {})",
    "startswith": "starts_with({}, {})",
    "endswith": "suffix({}, {})",
}
_LAST, _SURROGATES = 0x10FFFF, range(0xD800, 0xE000)


def _after(prefix: str) -> str | None:
    """The least text that is greater than all texts with this prefix; None if there is none."""
    stem = prefix.rstrip(chr(_LAST))
    if not stem:
        return None
    following = ord(stem[-1]) + 1
    return stem[:-1] + chr(_SURROGATES.stop if following in _SURROGATES else following)
