"""Figures are the same over typed columns, over ``fields_json`` and in this process."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.ontology.query.aggregation import compile_figure
from holdfast.ontology.types.errors import InvalidQuery
from holdfast.ontology.types.expressions.ast import Aggregate, AggregateTerm, AvgLen, Count
from holdfast.ontology.types.expressions.fitting import reading_of
from holdfast.ontology.types.expressions.terms import Function
from tests.properties.evaluator import figure
from tests.properties.filters import body, located, predicates, rows, schemas
from tests.properties.test_filters_agree import files, untyped, written

many = settings(suppress_health_check=list(HealthCheck))
FUNCTIONS: tuple[Function, ...] = ("min", "max", "count_distinct")
__all__ = ["files"]


@pytest.fixture(scope="module")
def engine() -> Any:
    with duckdb.connect() as connection:
        yield connection


@st.composite
def terms(draw: st.DrawFn, schema: Any) -> AggregateTerm:
    place = draw(located(schema))
    kind = draw(st.integers(0, 7))
    try:
        reading = reading_of(place.node, "field", "aggregated")
    except InvalidQuery:
        return AvgLen(place.path)
    if reading is None or kind == 0:
        return Count(draw(predicates(schema)) if draw(st.booleans()) else None)
    if reading in ("number", "real", "float", "decimal") and kind in (1, 2):
        return Aggregate("sum" if kind == 1 else "avg", place.path, reading)
    if kind == 3:
        return Aggregate("quantile", place.path, reading, draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])))
    return Aggregate(draw(st.sampled_from(FUNCTIONS)), place.path, reading)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-300) or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and bool(one == other)


@many
@given(st.data())
def test_figures_agree(engine: Any, files: Iterator[Path], data: st.DataObject) -> None:
    schema = data.draw(schemas)
    stored = data.draw(st.lists(rows(schema), max_size=7))
    path = next(files)
    source = written(path, "own", schema, stored)
    term = data.draw(terms(schema))
    expected = figure(term, [{"own": json.loads(body(row))} for row in stored])
    for each in (source, untyped(source)):
        made = compile_figure(term, {"own": each})
        (found,) = engine.execute(f"SELECT {made.sql.text} FROM '{path}' AS own_", list(made.sql.params)).fetchone()
        assert same(made.decode(found), expected), (term, made.decode(found), expected)
    path.unlink()
