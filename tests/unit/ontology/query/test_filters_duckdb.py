"""What DuckDB does, where generated examples would hardly look: every letter, and keys read from their text."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pytest

from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.filters.jsonsql import key_of
from holdfast.ontology.filters.operand import Source, Sql, TypedColumn
from holdfast.ontology.filters.sql import compile_order, compile_where
from holdfast.ontology.types.expressions.fitting import fold
from holdfast.ontology.types.expressions.terms import Condition
from holdfast.ontology.types.readings import decimal_key

SURROGATES = range(0xD800, 0xE000)


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)


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


def test_keys_of_decimals_are_the_same_and_in_order(engine: Any) -> None:
    negative = ["-1E+30", "-2.5", "-2.50", "-1E-19"]
    texts = [*negative, "0", "-0.00", "1E-400", "0.1", "+0.10", ".5", "5.", "10", "1e5", "1E+15"]
    text = key_of(Sql("t"))
    found = engine.execute(f"SELECT {text.text} FROM unnest(?) AS u(t)", [*text.params, texts]).fetchall()
    keys = [key for (key,) in found]
    assert keys == [decimal_key(Decimal(each)) for each in texts]
    assert keys == sorted(keys)


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


def test_instance_keys_are_ordered_as_their_values(engine: Any) -> None:
    terms = compile_order(Visit.number.asc().order, {"own": Source("'{}'", {"number": TypedColumn("k", "key", True)})})
    sql = f"SELECT k FROM unnest(['9', '10', '-3']) AS t(k) ORDER BY {terms.text}"
    assert [key for (key,) in engine.execute(sql, list(terms.params)).fetchall()] == ["-3", "9", "10"]
