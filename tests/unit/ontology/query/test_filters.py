"""The query language on a class: what is built, what is refused, and what it means for a row."""

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import duckdb
import pytest
from typing_extensions import TypedDict

from holdfast.ontology import Entity, Field, InvalidQuery, Mixin, Relation, left
from holdfast.ontology.filters.jsonsql import decimal_of
from holdfast.ontology.filters.operand import Source, Sql, TypedColumn
from holdfast.ontology.filters.sql import compile_order, compile_where
from holdfast.ontology.types.expressions.terms import Condition
from holdfast.ontology.types.readings import read
from tests.properties.evaluator import fold


class Tier(Enum):
    GOLD = "Gold"
    STD = "Std"


class Address(TypedDict):
    city: str
    visits: int


class Event(TypedDict):
    kind: str
    at: datetime


class Audited(Mixin):
    changed: Field[datetime | None] = Field(default=None)


class Customer(Audited, Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str | None] = Field(default=None)
    level: Field[Tier] = Field(default=Tier.STD)
    age: Field[int] = Field(default=0)
    score: Field[float] = Field(default=0.0)
    price: Field[Decimal] = Field(default=Decimal(0))
    token: Field[UUID | None] = Field(default=None)
    born: Field[date | None] = Field(default=None)
    tags: Field[list[str]] = Field(default_factory=list)
    events: Field[list[Event]] = Field(default_factory=list)
    profile: Field[Address | None] = Field(default=None)
    data: Field[Any] = Field(default=None)


class Product(Entity):
    id: Field[int] = Field(primary_key=True)


class Subscription(Relation[Customer, Product]):
    seats: Field[int] = Field(default=1)


untyped: Any = Customer
"""As code sees it that no type checker has seen."""


# --- building ---


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: untyped.age == "x", "Customer.age is of type int, it cannot be compared with 'x' (str)"),
    (lambda: untyped.age == True, "cannot be compared with True (bool)"),  # noqa: E712  # what is tested
    (lambda: untyped.born == datetime(2024, 1, 1, tzinfo=UTC), "Customer.born is of type"),
    (lambda: untyped.price == 1.1, 'write Decimal("1.1")'),
    (lambda: untyped.level == "Goldd", "it is one of Gold, Std"),
    (lambda: untyped.age.contains("x"), "Customer.age is of type int, not text"),
    (lambda: untyped.tier.contains(3), "3 is not text"),
    (lambda: untyped.tier.matches("(?=a)"), "patterns are those of RE2"),
    (lambda: untyped.tier < None, "nothing is smaller or greater than None"),
    (lambda: untyped.tags == ["a"], "any_path()"),
    (lambda: untyped.tags.path("a"), "use any_path or all_path"),
    (lambda: untyped.tier.any_path("a"), "not a list"),
    (lambda: untyped.tags.length() > 1.5, "is a whole number"),
    (lambda: untyped.profile == {"city": "x"}, 'path("...")'),
    (lambda: untyped.profile.path("ctiy"), "did you mean city?"),
    (lambda: untyped.events.any_path("knid") == "x", "did you mean kind?"),
    (untyped.profile.asc, "cannot be ordered"),
    (untyped.tier.sum, "sum needs values of one kind that are numbers"),
    (lambda: untyped.age.quantile(2), "a share from 0 to 1"),
    (lambda: left(Subscription).__getattr__("teir"), "did you mean tier?"),  # type: ignore[attr-defined]  # as above
    (lambda: left(untyped), "Customer is not a relation: it has no left end"),
    (lambda: Audited.changed == datetime(2024, 1, 1, tzinfo=UTC), "so there are no rows"),
    (lambda: 1 < untyped.age < 3, "combine conditions with &, | and ~"),
    (lambda: (untyped.age > 1) & (untyped.tier), "is not a condition"),
    (lambda: (untyped.age > 1) & (Subscription.seats > 1), "one condition is about Customer, the other"),
]


@pytest.mark.parametrize(("build", "message"), REFUSED)
def test_what_cannot_be_asked_is_refused_when_it_is_built(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(InvalidQuery) as refused:
        build()
    assert message in f"{refused.value} {refused.value.remedy}"


# --- SQL ---


SURROGATES = range(0xD800, 0xE000)


class Visit(Relation[Customer, Customer]):
    number: Field[int] = Field(instance_key=True)


class Meeting(Relation[Customer, Customer]):
    at: Field[datetime] = Field(instance_key=True)


@pytest.fixture
def engine() -> Iterator[Any]:
    with duckdb.connect() as connection:
        yield connection


def test_every_code_point_folds_as_in_duckdb(engine: Any) -> None:
    halves = f"p BETWEEN {SURROGATES.start} AND {SURROGATES.stop - 1}"
    letters = f"SELECT chr(CAST(CASE WHEN {halves} THEN 1 ELSE p END AS INTEGER)) AS c FROM range(1, 1114112) AS t(p)"
    sql = f"SELECT c, lower(c) FROM ({letters}) WHERE c <> lower(c)"
    ours = ((chr(point), fold(chr(point))) for point in range(1, 0x110000) if point not in SURROGATES)
    assert dict(engine.execute(sql).fetchall()) == {letter: folded for letter, folded in ours if letter != folded}


def test_decimals_are_read_alike_and_never_rounded(engine: Any) -> None:
    negative = ["-1E+30", "-2.5", "-2.50", "-1E-19"]
    texts = [
        *negative,
        "0",
        "-0.00",
        "0E+30",
        "1E-400",
        "15E-19",
        "100E-20",
        "0.1",
        "+0.10",
        ".5",
        "5.",
        "1e5",
        "1E+19",
    ]
    texts += ["9" * 20 + "." + "9" * 18, "9" * 21, "0.1000000000000000000000"]
    value = decimal_of(Sql("t"))
    found = engine.execute(f"SELECT {value.text} FROM unnest(?) AS u(t)", [*value.params, texts]).fetchall()
    assert [each for (each,) in found] == [read(text, "decimal") for text in texts]
    assert [text for text in texts if read(text, "decimal") is None] == [
        "-1E+30", "-1E-19", "1E-400", "15E-19", "9" * 21,
    ]  # fmt: skip


def selected(engine: Any, field: str, texts: list[str], condition: Condition) -> list[str]:
    scope: dict[Any, Source] = {"own": Source("'{}'", {field: TypedColumn("k", "key", complete=True)})}
    where = compile_where(condition.predicate, scope)
    sql = f"SELECT k FROM unnest(?) AS t(k) WHERE {where.text}"
    return [key for (key,) in engine.execute(sql, [texts, *where.params]).fetchall()]


def test_an_instance_key_is_read_as_it_is_declared(engine: Any) -> None:
    numbers = ["9", "10", str(2**70), "-3"]
    assert selected(engine, "number", numbers, Visit.number > 9) == ["10", str(2**70)]
    assert selected(engine, "number", numbers, Visit.number.in_([2**70, -3])) == [str(2**70), "-3"]
    assert selected(engine, "number", numbers, Visit.number.is_null()) == []
    moments = [str(datetime(2024, 1, day, tzinfo=UTC)) for day in (1, 2)]
    assert selected(engine, "at", moments, Meeting.at > datetime(2024, 1, 1, 12, tzinfo=UTC)) == moments[1:]
    terms = compile_order(Visit.number.asc().order, {"own": Source("'{}'", {"number": TypedColumn("k", "key", True)})})
    sql = f"SELECT k FROM unnest(['9', '10', '-3']) AS t(k) ORDER BY {terms.text}"
    assert [key for (key,) in engine.execute(sql, list(terms.params)).fetchall()] == ["-3", "9", "10"]
