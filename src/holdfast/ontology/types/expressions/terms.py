"""The operators of the query language: from ``Customer.tier == "Gold"`` to a predicate. Pure.

A ``Term`` is a place in a row and its declared type; comparing it gives a ``Condition``, which combines with ``&``,
``|`` and ``~``. Names, types and values are checked here, when the query is built.

Type checkers know the type of a field, so they report the same mistakes earlier.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar

from holdfast.base.errors import Invalid
from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import (
    Aggregate,
    AggregateTerm,
    And,
    AvgLen,
    Comparison,
    Count,
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
from holdfast.ontology.types.expressions.fitting import (
    check_pattern,
    check_text,
    fitted,
    item_node,
    node_at,
    reading_of,
    require_text,
)
from holdfast.ontology.types.readings import Reading
from holdfast.ontology.types.typespec import Anything, Node, without_null

if TYPE_CHECKING:
    from holdfast.ontology.types.typeinfo import TypeInfo

T = TypeVar("T")
Function = Literal["sum", "avg", "min", "max", "count_distinct", "quantile"]


def info_of(owner: type) -> "TypeInfo":
    """The type that a field was taken from; ``InvalidQuery`` for an abstract one."""
    found: TypeInfo | None = getattr(owner, "__type_info__", None)
    if found is None:
        raise InvalidQuery(
            f"{owner.__name__} is not an entity or relation type, so there are no rows of it",
            remedy="use the field of a type that derives from it",
        )
    return found


@dataclass(frozen=True, eq=False)
class Condition:
    """A predicate about rows of one type. Combine with ``&``, ``|`` and ``~``."""

    predicate: Predicate
    root: type
    """The type whose rows it describes."""

    def __and__(self, other: "Condition") -> "Condition":
        before = self.predicate.terms if isinstance(self.predicate, And) else (self.predicate,)
        return Condition(And((*before, self._same(other).predicate)), self.root)

    def __or__(self, other: "Condition") -> "Condition":
        # Flat: thousands of joined conditions are one list, not a tree of that depth.
        before = self.predicate.terms if isinstance(self.predicate, Or) else (self.predicate,)
        return Condition(Or((*before, self._same(other).predicate)), self.root)

    def __invert__(self) -> "Condition":
        return Condition(Not(self.predicate), self.root)

    def __bool__(self) -> NoReturn:
        raise InvalidQuery(
            "a condition of a query is neither true nor false before it runs",
            remedy="combine conditions with &, | and ~ in parentheses, not with and, or, not or 1 < x < 3",
        )

    def _same(self, other: "Condition") -> "Condition":
        if not isinstance(other, Condition):
            raise InvalidQuery(
                f"{other!r} is not a condition", remedy="write a comparison on each side, in parentheses"
            )
        if other.root is not self.root:
            raise InvalidQuery(
                f"one condition is about {self.root.__name__}, the other about {other.root.__name__}",
                remedy="use left(Relation) and right(Relation) for the fields at the ends of a relation",
            )
        return other


@dataclass(frozen=True)
class Ordering:
    """A term of ``order_by``."""

    order: Order
    root: type


@dataclass(frozen=True)
class Figure:
    """An aggregate over rows of a type, or of any type if ``root`` is None."""

    term: AggregateTerm
    root: type | None


class Term(ABC, Generic[T]):
    """An operand of a comparison."""

    __hash__ = object.__hash__

    @property
    @abstractmethod
    def _path(self) -> FieldPath:
        """Its place in a row."""

    @property
    @abstractmethod
    def _node(self) -> Node:
        """Its declared type."""

    @abstractmethod
    def _condition(self, predicate: Predicate) -> Condition:
        """A predicate about this place as a condition on the row."""

    def __eq__(self, other: T) -> Condition:  # type: ignore[override]  # a term of a query, as in every such language
        return self._compared("==", other)

    def __ne__(self, other: T) -> Condition:  # type: ignore[override]  # as above
        return self._compared("!=", other)

    def __lt__(self, other: T) -> Condition:
        return self._compared("<", other)

    def __le__(self, other: T) -> Condition:
        return self._compared("<=", other)

    def __gt__(self, other: T) -> Condition:
        return self._compared(">", other)

    def __ge__(self, other: T) -> Condition:
        return self._compared(">=", other)

    def in_(self, values: Iterable[T]) -> Condition:
        """Equal to one of the values; None among them stands for null."""
        given = list(values)
        rest = [fitted(self._node, value, str(self)) for value in given if value is not None]
        readings = dict.fromkeys(reading for reading, _ in rest)
        parts: list[Predicate] = [
            In(self._path, tuple(value for found, value in rest if found == reading), reading) for reading in readings
        ]
        if len(rest) < len(given):
            parts.append(IsNull(self._path))
        return self._condition(parts[0] if len(parts) == 1 else Or(tuple(parts)))

    def between(self, low: T, high: T) -> Condition:
        """From ``low`` to ``high``, both included."""
        return self._condition(And((self._comparison(">=", low), self._comparison("<=", high))))

    def is_null(self) -> Condition:
        return self._condition(IsNull(self._path))

    def is_not_null(self) -> Condition:
        return self._condition(Not(IsNull(self._path)))

    def equals(self: "TextTerm", value: str, *, fold: bool = False) -> Condition:
        return self._text("equals", value, fold)

    def contains(self: "TextTerm", value: str, *, fold: bool = False) -> Condition:
        """``fold=True`` compares without regard to case, here and below."""
        return self._text("contains", value, fold)

    def startswith(self: "TextTerm", value: str, *, fold: bool = False) -> Condition:
        return self._text("startswith", value, fold)

    def endswith(self: "TextTerm", value: str, *, fold: bool = False) -> Condition:
        return self._text("endswith", value, fold)

    def matches(self: "TextTerm", pattern: str, *, fold: bool = False) -> Condition:
        """Whether a regular expression (RE2) is found in the text."""
        return self._text("matches", check_pattern(pattern), fold)

    def _compared(self, operator: Operator, value: Any) -> Condition:
        if value is None and operator in ("==", "!="):
            return self.is_null() if operator == "==" else self.is_not_null()
        return self._condition(self._comparison(operator, value))

    def _comparison(self, operator: Operator, value: Any) -> Comparison:
        if value is None:
            raise InvalidQuery(f"{self}: nothing is smaller or greater than None", remedy="use is_null or is_not_null")
        reading, stored = fitted(self._node, value, str(self))
        return Comparison(self._path, operator, stored, reading)

    def _text(self, operator: TextOperator, value: Any, fold: bool) -> Condition:
        require_text(self._node, str(self))
        if not isinstance(value, str):
            raise InvalidQuery(f"{self}: {value!r} is not text")
        check_text(value, str(self))
        return self._condition(Text(self._path, operator, value, fold))


@dataclass(frozen=True, eq=False)
class FieldExpr(Term[T]):
    """A field of a type, or a path into one, in a query.

    ``end`` says whose field it is: the type's own, or that of the entity at an end of a relation (``left``, ``right``).
    """

    owner: type
    name: str
    steps: tuple[str, ...] = ()
    end: Literal["own", "left", "right"] = "own"

    def path(self, path: str) -> "FieldExpr[Any]":
        """The value at ``path`` inside the field: names of nested fields or keys, with dots in between."""
        made: FieldExpr[Any] = FieldExpr(self.owner, self.name, (*self.steps, *_steps(self, path)), self.end)
        node_at(made._declared, made.steps, f"{made.owner.__name__}.{made.name}")
        return made

    def __str__(self) -> str:
        end = () if self.end == "own" else (self.end,)
        return ".".join((self.owner.__name__, *end, self.name, *self.steps))

    @property
    def _path(self) -> FieldPath:
        return FieldPath(self.end, self.name, self.steps)

    @property
    def _node(self) -> Node:
        return node_at(self._declared, self.steps, f"{self.owner.__name__}.{self.name}")

    @property
    def _declared(self) -> Node:
        return info_of(self.owner).node_of(self.end, self.name)

    def _condition(self, predicate: Predicate) -> Condition:
        return Condition(predicate, self.owner)

    def any_path(self: "ListTerm", path: str = "") -> "ItemTerm":
        """A comparison with this must hold for at least one item of the list, or for the value at ``path`` in it."""
        return ItemTerm(self, "any", _steps(self, path) if path else ())

    def all_path(self: "ListTerm", path: str = "") -> "ItemTerm":
        """A comparison with this must hold for all items of the list."""
        return ItemTerm(self, "all", _steps(self, path) if path else ())

    def length(self: "ListTerm") -> "LengthTerm":
        item_node(without_null(self._node)[0], str(self))
        return LengthTerm(self)

    def asc(self, *, nulls: Literal["first", "last"] = "last") -> Ordering:
        return self._ordering(False, nulls)

    def desc(self, *, nulls: Literal["first", "last"] = "last") -> Ordering:
        return self._ordering(True, nulls)

    def _ordering(self, descending: bool, nulls: Literal["first", "last"]) -> Ordering:
        reading = reading_of(self._node, str(self), "ordered")
        return Ordering(Order(self._path, reading, descending, nulls), self.owner)

    def sum(self) -> Figure:
        return self._figure("sum", ("number", "real", "float", "decimal"))

    def avg(self) -> Figure:
        return self._figure("avg", ("number", "real", "float", "decimal"))

    def min(self) -> Figure:
        return self._figure("min")

    def max(self) -> Figure:
        return self._figure("max")

    def count_distinct(self) -> Figure:
        return self._figure("count_distinct")

    def quantile(self, at: float) -> Figure:
        if not 0 <= at <= 1:
            raise InvalidQuery(f"{self}: a quantile is asked at a share from 0 to 1, not at {at!r}")
        return self._figure("quantile", at=at)

    def avg_len(self: "ListTerm") -> Figure:
        item_node(without_null(self._node)[0], str(self))
        return Figure(AvgLen(self._path), self.owner)

    def _figure(self, function: Function, among: tuple[Reading, ...] = (), at: float | None = None) -> Figure:
        reading = reading_of(self._node, str(self), "aggregated")
        if reading is None and isinstance(self._node, Anything):
            reading = "number"
        if reading is None or (among and reading not in among):
            raise InvalidQuery(f"{self}: {function} needs values of one kind{' that are numbers' if among else ''}")
        return Figure(Aggregate(function, self._path, reading, at), self.owner)


TextTerm = Term[str] | Term[str | None]
ListTerm = FieldExpr[list[Any]] | FieldExpr[list[Any] | None]


def _steps(term: FieldExpr[Any], path: str) -> tuple[str, ...]:
    steps = tuple(path.split("."))
    if not all(steps):
        raise Invalid(f"{term}: {path!r} is not a path", remedy='write names with dots in between, as in "a.b"')
    return steps


class ItemTerm(Term[Any]):
    """An item of a list, or the value at a path inside it."""

    def __init__(self, of: FieldExpr[Any], quantifier: Literal["any", "all"], steps: tuple[str, ...]) -> None:
        self._of, self._quantifier, self._steps = of, quantifier, steps
        node_at(item_node(without_null(of._node)[0], str(of)), steps, f"{of}[]")

    @property
    def _path(self) -> FieldPath:
        return FieldPath("item", "", self._steps)

    @property
    def _node(self) -> Node:
        return node_at(item_node(without_null(self._of._node)[0], str(self._of)), self._steps, f"{self._of}[]")

    def _condition(self, predicate: Predicate) -> Condition:
        return self._of._condition(Quantified(self._quantifier, self._of._path, predicate))

    def __str__(self) -> str:
        return ".".join((f"{self._of}[]", *self._steps))


class LengthTerm:
    """The number of items of a list."""

    __hash__ = object.__hash__

    def __init__(self, of: FieldExpr[Any]) -> None:
        self._of = of

    def _compared(self, operator: Operator, value: Any) -> Condition:
        if type(value) is not int:
            raise InvalidQuery(f"the length of {self._of} is a whole number, it cannot be compared with {value!r}")
        return self._of._condition(Length(self._of._path, operator, value))

    def __eq__(self, other: int) -> Condition:  # type: ignore[override]  # as in Term
        return self._compared("==", other)

    def __ne__(self, other: int) -> Condition:  # type: ignore[override]  # as in Term
        return self._compared("!=", other)

    def __lt__(self, other: int) -> Condition:
        return self._compared("<", other)

    def __le__(self, other: int) -> Condition:
        return self._compared("<=", other)

    def __gt__(self, other: int) -> Condition:
        return self._compared(">", other)

    def __ge__(self, other: int) -> Condition:
        return self._compared(">=", other)


def count() -> Figure:
    """The number of rows."""
    return Figure(Count(), None)


def count_where(condition: Condition) -> Figure:
    """The number of rows for which the condition holds."""
    return Figure(Count(condition.predicate), condition.root)
