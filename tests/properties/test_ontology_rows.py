"""Whatever a type declares, and whatever its objects hold: rows, files and Arrow tables give it back as it was."""

import json
import math
from dataclasses import dataclass, make_dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NotRequired
from uuid import UUID

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import create_model
from typing_extensions import TypedDict

from holdfast.ontology import Entity, Field
from holdfast.ontology.format.data.columns import column, complete_forms, typed_columns
from holdfast.ontology.format.data.intake import queued
from holdfast.ontology.format.data.rows import (
    from_parquet,
    from_table,
    read,
    to_parquet,
    to_table,
    written,
)
from holdfast.ontology.types.schema import diff
from holdfast.ontology.types.typeinfo import TypeInfo, type_info

field_of: Any = Field
"""For annotations that are known at run time only."""


class Tier(Enum):
    GOLD = "gold"
    STANDARD = 'ständ"ard'


class Level(Enum):
    LOW = 1
    HIGH = 2**62


@dataclass(frozen=True)
class Kind:
    """An annotation, the values that it takes, and whether it is written as text in JSON."""

    annotation: Any
    values: st.SearchStrategy[Any]
    form: str


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
zones = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30)), timezone(timedelta(hours=-8))])
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=zones)  # noqa: DTZ001  # zones are drawn
decimals = st.decimals(-(10**20) + 1, 10**20 - 1, places=18) | st.decimals(-(10**9), 10**9, places=2)
numbers = st.floats(allow_nan=False)

PLAIN = [
    Kind(str, texts, "text"),
    Kind(int, st.integers(-(2**63), 2**63 - 1), "whole"),
    Kind(float, numbers, "number"),
    Kind(bool, st.booleans(), "boolean"),
    Kind(datetime, moments, "text"),
    Kind(date, st.dates(), "text"),
    Kind(Decimal, decimals, "text"),
    Kind(bytes, st.binary(max_size=12), "text"),
    Kind(UUID, st.uuids(), "text"),
    Kind(Tier, st.sampled_from(Tier), "text"),
    Kind(Level, st.sampled_from(Level), "whole"),
    Kind(Literal["a", "b"], st.sampled_from(["a", "b"]), "text"),
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def of(kind: Kind) -> st.SearchStrategy[Kind]:
        return st.sampled_from(
            [
                Kind(list[kind.annotation], st.lists(kind.values, max_size=3), "array"),  # type: ignore[name-defined]
                Kind(dict[str, kind.annotation], st.dictionaries(texts, kind.values, max_size=3), "object"),  # type: ignore[name-defined]
                Kind(kind.annotation | None, kind.values | st.none(), kind.form),
            ]
        )

    return inner.flatmap(of) | st.lists(inner, min_size=1, max_size=3).flatmap(record) | unions(inner)


def record(kinds: list[Kind]) -> st.SearchStrategy[Kind]:
    names = [f"f{number}" for number in range(len(kinds))]
    annotations = {name: kind.annotation for name, kind in zip(names, kinds, strict=True)}
    values = {name: kind.values for name, kind in zip(names, kinds, strict=True)}
    model: Any = create_model("Model", **{name: (each, ...) for name, each in annotations.items()})  # type: ignore[call-overload]
    plain: Any = make_dataclass("Plain", list(annotations.items()))
    total: Any = TypedDict("Total", annotations)  # type: ignore[misc]  # made at run time
    loose: Any = TypedDict("Loose", {name: NotRequired[each] for name, each in annotations.items()})  # type: ignore[misc]
    return st.sampled_from(
        [
            Kind(model, st.fixed_dictionaries(values).map(lambda fields: model(**fields)), "object"),
            Kind(plain, st.fixed_dictionaries(values).map(lambda fields: plain(**fields)), "object"),
            Kind(total, st.fixed_dictionaries(values), "object"),
            Kind(loose, st.fixed_dictionaries({}, optional=values), "object"),
        ]
    )


def unions(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    """Of kinds that JSON can tell apart."""

    def joined(kinds: list[Kind]) -> Kind:
        apart = list({kind.form: kind for kind in kinds}.values())
        if any(kind.form == "text" for kind in apart):
            finite = st.floats(allow_nan=False, allow_infinity=False)
            apart = [Kind(float, finite, "number") if kind.annotation is float else kind for kind in apart]
        annotation = apart[0].annotation
        for kind in apart[1:]:
            annotation |= kind.annotation
        return Kind(annotation, st.one_of(*(kind.values for kind in apart)), "union")

    return st.lists(st.sampled_from(PLAIN), min_size=2, max_size=4).map(joined)


kinds = st.recursive(st.sampled_from(PLAIN), nested, max_leaves=4) | st.just(Kind(Any, json_values, "any"))
flat = st.sampled_from(PLAIN) | st.sampled_from(PLAIN).map(
    lambda kind: Kind(kind.annotation | None, kind.values | st.none(), kind.form)
)


def declared(drawn: list[Kind]) -> TypeInfo:
    names = {f"field{number}": kind for number, kind in enumerate(drawn)}
    body = {"__annotations__": {"id": Field[str], **{name: field_of[kind.annotation] for name, kind in names.items()}}}
    return type_info(type("Drawn", (Entity,), {**body, "id": Field(primary_key=True)}))


@st.composite
def batches(draw: st.DrawFn, some: st.SearchStrategy[Kind]) -> tuple[TypeInfo, list[Any]]:
    """A type, and objects of it in the order of their keys."""
    drawn = draw(st.lists(some, max_size=4))
    made = declared(drawn)
    values = st.fixed_dictionaries({f"field{number}": kind.values for number, kind in enumerate(drawn)})
    keys = sorted(draw(st.sets(texts.filter(bool), max_size=4)))
    return made, [made.python(id=key, **draw(values)) for key in keys]


slow = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


@slow
@given(batches(kinds))
def test_objects_come_back_from_rows_and_files(batch: tuple[TypeInfo, list[Any]]) -> None:
    made, objects = batch
    rows = written(made, objects)
    assert read(made, rows) == objects
    table = to_table(made, rows, 3, 1)
    found = from_parquet(to_parquet(table), key="k")
    assert from_table(found) == rows
    assert read(made, from_table(found)) == objects
    assert complete_forms(found.schema.metadata) == complete_forms(table.schema.metadata)


@slow
@given(batches(kinds))
def test_fields_are_canonical(batch: tuple[TypeInfo, list[Any]]) -> None:
    made, objects = batch
    for row in written(made, objects):
        again = json.dumps(json.loads(row.fields_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert row.fields_json == again
    # Once more, from what came back: nothing has changed.
    assert written(made, read(made, written(made, objects))) == written(made, objects)


@slow
@given(batches(kinds | flat))
def test_typed_columns_agree_with_the_fields(batch: tuple[TypeInfo, list[Any]]) -> None:
    made, objects = batch
    rows = written(made, objects)
    table = from_parquet(to_parquet(to_table(made, rows, 3, 1)), key="k")
    partial = set(made.payload) - (complete_forms(table.schema.metadata) or {}).keys()
    for name in made.payload:
        stored = [json.loads(row.fields_json)[name] for row in rows]
        for value, json_value in zip(table.column(name).to_pylist(), stored, strict=True):
            if value is None:
                assert json_value is None or name in partial
            else:
                assert agrees(value, json_value), (value, json_value)


def agrees(typed: Any, stored: Any) -> bool:
    """Whether a value of a typed column is what JSON says, without the help of the code under test."""
    match typed:
        case datetime():
            return bool(typed == datetime.fromisoformat(stored))
        case date():
            return bool(typed.isoformat() == stored)
        case Decimal():
            return typed == Decimal(stored)
        case bytes():
            return len(stored) == 4 * math.ceil(len(typed) / 3)
        case float():
            return typed == float(stored)
        case list():
            return len(typed) == len(stored) and all(map(agrees, typed, stored))
        case str() if not isinstance(stored, str) or typed != stored:
            return bool(json.loads(typed) == stored)
    return bool(typed == stored and type(typed) is type(stored))


@slow
@given(batches(flat))
def test_arrow_parses_as_python_does(batch: tuple[TypeInfo, list[Any]]) -> None:
    made, objects = batch
    bodies = [row.fields_json for row in written(made, objects)]
    nodes = {name: made.nodes[name] for name in made.payload}
    for name, found in typed_columns(nodes, bodies).items():
        assert found == column(nodes[name], [json.loads(body)[name] for body in bodies])


@slow
@given(batches(flat))
def test_a_table_of_the_values_gives_the_same_rows(batch: tuple[TypeInfo, list[Any]]) -> None:
    made, objects = batch
    columns = {name: [_plain(getattr(one, name)) for one in objects] for name in made.fields}
    if any(not -(2**63) <= value < 2**63 for values in columns.values() for value in values if type(value) is int):
        return  # Arrow has no column for them
    form: TypeInfo = type_info(made.python)
    try:
        table = pa.table(columns)
    except pa.ArrowInvalid:
        return  # nor for decimals of any number of digits
    rows = queued(form, table)
    assert [row.identity for row in rows] == [row.identity for row in queued(form, objects)]
    # Compared as objects: a column of decimals has one number of digits, so 1.0 may come back as 1.00.
    assert read(form, rows) == objects


def _plain(value: Any) -> Any:
    """As a table holds it."""
    if isinstance(value, Enum):
        return value.value
    return str(value) if isinstance(value, UUID) else value


@slow
@given(st.lists(kinds, max_size=4))
def test_a_schema_does_not_differ_from_itself(drawn: list[Kind]) -> None:
    one, other = declared(drawn).schema, declared(drawn).schema
    assert one == other
    assert json.loads(json.dumps(one)) == one
    assert not diff(one, other)


def test_the_strategies_draw_every_kind() -> None:
    """A property over nothing would always hold."""
    assert {kind.form for kind in PLAIN} == {"text", "whole", "number", "boolean"}
    assert {kind.annotation for kind in PLAIN} >= {str, int, float, bool, datetime, date, Decimal, bytes, UUID}
