"""Three evaluators, one answer: DuckDB over typed columns, DuckDB over ``fields_json``, and this process."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.ontology.filters.operand import Source, Sql, joined, quoted, typed_column
from holdfast.ontology.filters.sql import compile_order, compile_where
from holdfast.ontology.format.data.columns import typed_columns
from holdfast.ontology.types.expressions.ast import End
from tests.properties.evaluator import evaluate, ordered
from tests.properties.filters import Kind, body, orders, predicates, rows, schemas
from tests.soak import SOAKING

Stored = Sequence[Mapping[str, Any]]
many = settings(suppress_health_check=list(HealthCheck))
more = settings(many, max_examples=2_000 if SOAKING else 60)
"""Of schemas; with some filters and some rows for each, there are hundreds of filters over rows in every run."""


@pytest.fixture(scope="module")
def engine() -> Any:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """New names for ever: the engine remembers what it has seen under a name."""
    folder = tmp_path_factory.mktemp("agree")
    return (folder / f"{number}.parquet" for number in count())


def written(path: Path, alias: End, schema: Mapping[str, Kind], stored: Stored) -> Source:
    """A file with ``fields_json`` and the typed columns, and where SQL finds them."""
    bodies = [body(row) for row in stored]
    typed = typed_columns({name: kind.node for name, kind in schema.items()}, bodies)
    columns = {name: made.array for name, made in typed.items()}
    numbers = pa.array(range(len(stored)), pa.int64())
    pq.write_table(pa.table({"n": numbers, "fields_json": bodies, **columns}), path, store_schema=False)
    return Source(
        f'{alias}_."fields_json"',
        {
            name: typed_column(f"{alias}_.{quoted(name)}", kind.node, complete=not typed[name].partial)
            for name, kind in schema.items()
        },
    )


def untyped(source: Source) -> Source:
    return Source(source.fields_json)


def selected(engine: Any, tables: Mapping[End, Path], where: Sql) -> list[int]:
    joins = "".join(f" LEFT JOIN '{tables[end]}' AS {end}_ ON own_.n = {end}_.n" for end in tables if end != "own")
    sql = f"SELECT own_.n FROM '{tables['own']}' AS own_{joins} WHERE {where.text} ORDER BY own_.n"
    return [n for (n,) in engine.execute(sql, list(where.params)).fetchall()]


@more
@given(st.data())
def test_typed_columns_json_and_process_agree(engine: Any, files: Iterator[Path], data: st.DataObject) -> None:
    schema = data.draw(schemas)
    stored = data.draw(st.lists(rows(schema), min_size=1, max_size=6))
    path = next(files)
    source = written(path, "own", schema, stored)
    read_back = [json.loads(body(row)) for row in stored]
    for predicate in data.draw(st.lists(predicates(schema), min_size=1, max_size=4)):
        expected = [n for n, row in enumerate(read_back) if evaluate(predicate, row)]
        for each in (source, untyped(source)):
            where = compile_where(predicate, {"own": each})
            assert selected(engine, {"own": path}, where) == expected, (predicate, where)
    path.unlink()


@many
@given(st.data())
def test_orderings_agree(engine: Any, files: Iterator[Path], data: st.DataObject) -> None:
    schema = data.draw(schemas)
    stored = data.draw(st.lists(rows(schema), min_size=2, max_size=8))
    path = next(files)
    source = written(path, "own", schema, stored)
    read_back = list(enumerate(json.loads(body(row)) for row in stored))
    terms = data.draw(orders(schema))
    expected = [n for n, _ in ordered(read_back, terms, lambda row: {"own": row[1]})]
    for each in (source, untyped(source)):
        parts = joined(", ", [*(compile_order(term, {"own": each}) for term in terms), Sql("own_.n")])
        sql = f"SELECT own_.n FROM '{path}' AS own_ ORDER BY {parts.text}"
        assert [n for (n,) in engine.execute(sql, list(parts.params)).fetchall()] == expected, terms
    path.unlink()


@many
@given(st.data())
def test_ends_agree(engine: Any, files: Iterator[Path], data: st.DataObject) -> None:
    """Own fields and those of both ends, in any combination; an end may not exist."""
    schema = data.draw(schemas)
    ends: tuple[End, ...] = ("own", "left", "right")
    stored = {end: data.draw(st.lists(rows(schema), min_size=1, max_size=4)) for end in ends}
    tables = {end: next(files) for end in ends}
    sources = {end: written(tables[end], end, schema, stored[end]) for end in ends}
    predicate = data.draw(predicates(schema, ends))

    def row(end: End, number: int) -> Any:
        return json.loads(body(stored[end][number])) if number < len(stored[end]) else None

    numbers = range(len(stored["own"]))
    expected = [n for n in numbers if evaluate(predicate, row("own", n), row("left", n), row("right", n))]
    for scope in (sources, {end: untyped(source) for end, source in sources.items()}):
        assert selected(engine, tables, compile_where(predicate, scope)) == expected, predicate
    for path in tables.values():
        path.unlink()
