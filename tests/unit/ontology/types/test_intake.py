"""Rows from Arrow tables: the same as from objects, and the first value that does not fit is named."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pytest
from pydantic import Field as Constraint

from holdfast.base.errors import Invalid
from holdfast.ontology import Entity, Field, InvalidValue
from holdfast.ontology.format.data.intake import arrow_columns, queued
from holdfast.ontology.format.data.rows import written
from holdfast.ontology.types.model import derived_class
from holdfast.ontology.types.typeinfo import of_schema, type_info
from tests.unit.ontology.shop import NOON, Customer, Everything, Geo, Knows, Order, Product, Subscription, everything


class Flat(Entity):
    id: Field[str] = Field(primary_key=True)
    text: Field[str | None] = Field(default=None)
    whole: Field[int] = Field(default=1)
    number: Field[float | None] = Field(default=None)
    flag: Field[bool | None] = Field(default=None)
    moment: Field[datetime | None] = Field(default=None)
    day: Field[date | None] = Field(default=None)
    amount: Field[Decimal | None] = Field(default=None)
    count: Field[Annotated[int, Constraint(ge=0)]] = Field(default=0)


def check_same(python: type, columns: dict[str, Any]) -> None:
    """A table gives the rows of the objects that its rows would make."""
    table = pa.table(columns)
    objects = [python(**values) for values in table.to_pylist()]
    assert queued(type_info(python), table) == written(type_info(python), objects)


@pytest.mark.parametrize(
    "columns",
    [
        {"text": ["plain", None, "ü😀", ""]},
        {"text": ['"', "\\", "\n\x00", "\x7f"]},
        {"text": pa.array(["a", "b", "a", None]).dictionary_encode()},
        {"text": pa.array(["a", "b", "a", None], pa.large_string())},
        {"text": pa.array(["a", "b", "a", None], pa.string_view())},
        {"text": pa.nulls(4)},
        {"whole": [1, -(2**63), 2**63 - 1, 0]},
        {"whole": pa.array([1, 2, 3, 2**63 - 1], pa.uint64())},
        {"whole": pa.array([1, 2, 3, 4], pa.int8())},
        {"whole": ["1", "2", "3", "4"]},
        {"whole": [1.0, 2.0, 3.0, 4.0]},
        {"number": [0.1, None, float("inf"), -0.0]},
        {"number": [1, 2, 3, None]},
        {"flag": [True, False, None, True]},
        {"moment": pa.array([0, 1, None, -1], pa.timestamp("us", "UTC"))},
        {"moment": pa.array([0, 1, None, -1], pa.timestamp("s"))},
        {"moment": pa.array([0, 10**9, None, -(10**9)], pa.timestamp("ms", "Europe/Paris"))},
        {"moment": pa.array([0, 1000, None, -1000], pa.timestamp("ns", "UTC"))},
        {"moment": [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC), None, None]},
        {"moment": ["2024-05-01T12:00:00+02:00", None, None, None]},
        {"day": [date(1, 1, 1), date(9999, 12, 31), None, None]},
        {"day": pa.array([0, 86_400_000, None, None], pa.date64())},
        {"amount": [Decimal("1.10"), None, Decimal("-3.00"), Decimal("0.00")]},
        {"count": [1, 2, 3, 4]},
        {},
    ],
)
def test_columns_of_plain_types(columns: dict[str, Any]) -> None:
    check_same(Flat, {"id": ["a", "b", "c", "d"], **columns})


@pytest.mark.parametrize("kind", [pa.decimal128(38, 18), pa.decimal256(76, 18), pa.decimal256(60, 30)], ids=str)
def test_decimals_keep_all_their_digits(kind: pa.DataType) -> None:
    texts = ["12345678901234567890.123456789012345678", f"-{'9' * 20}.{'9' * 18}", "1.5", "99000000000000000000"]
    numbers = [Decimal(each) for each in texts]
    objects = [Flat(id=str(place), amount=number) for place, number in enumerate(numbers)]
    table = pa.table({"id": [one.id for one in objects], "amount": pa.array(numbers, kind)})
    assert queued(type_info(Flat), table) == written(type_info(Flat), objects)


COUNTS = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))
NESTED: dict[str, Any] = {
    "place": [Geo(lat=1.0, lng=2.0)],
    "address": [{"city": "a", "since": NOON, "spot": None}],
    "pets": [[{"kind": "cat", "lives": 9}]],
    "tier": ["gold"],
    "tags": [["x", "y"]],
    "moments": [[]],
    "size": ["s"],
    **{name: [None] for name in ("level", "either", "price", "anything")},
}
TWICE = pa.array([[], [("x", 1), ("x", 2)]], COUNTS.type)
PLAIN = ("changed", "text", "whole", "number", "flag", "day", "amount", "blob")


def test_nested_columns_and_a_class_derived_from_the_schema() -> None:
    plain = {name: [getattr(everything(), name)] for name in PLAIN}
    table = pa.table({**plain, **NESTED, "id": [str(everything().id)], "counts": COUNTS})
    nested = {name: value for name, (value,) in NESTED.items()}
    expected = everything(**{**nested, "counts": {"a": 1}})
    form = type_info(Everything)
    assert queued(form, table) == written(form, [expected])
    derived = type_info(derived_class(of_schema(form.type_id, form.schema)))
    assert not derived.drift(form.schema)
    assert queued(derived, table) == queued(form, table)
    with pytest.raises(InvalidValue, match=r"Everything\.whole is missing among the columns") as missing:
        queued(derived, table.drop_columns(["whole"]))
    assert (missing.value.remedy or "").startswith("without its class a type has no defaults")
    with pytest.raises(InvalidValue, match=r"Everything\.tier"):
        queued(derived, table.set_column(table.column_names.index("tier"), "tier", pa.array(["lead"])))


@pytest.mark.parametrize("ends", [True, False], ids=["ends known", "ends unknown"])
def test_a_relation_of_a_class_derived_from_the_schema(ends: bool) -> None:
    form = type_info(Order)
    known = {each.__name__: type_info(each).schema for each in (Customer, Product)} if ends else {}
    derived = type_info(derived_class(of_schema(form.type_id, form.schema, known)))
    given = pa.table({"left_key": ["a", "b"], "right_key": [1, 2] if ends else ["1", "2"], "number": ["x", "y"]})
    assert queued(derived, given) == queued(form, given)
    assert derived.schema_hash == form.schema_hash


def test_relations() -> None:
    table = pa.table({"left_key": ["a", "b", "a"], "right_key": [5, 6, 5], "seats": [1, 2, 3]})
    objects = [Subscription(**values) for values in table.to_pylist()]
    assert queued(type_info(Subscription), table) == written(type_info(Subscription), objects)
    orders = pa.table({"left_key": ["a"], "right_key": ["5"], "number": ["n"]})
    assert [row.identity for row in queued(type_info(Order), orders)] == [("a", "5", "n")]
    bare = pa.table({"left_key": ["a"], "right_key": ["b"]})
    assert [row.fields_json for row in queued(type_info(Knows), bare)] == ["{}"]


def test_whatever_gives_itself_as_a_table() -> None:
    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"id": [1]}).__arrow_c_stream__(requested_schema)

    assert [row.identity for row in queued(type_info(Product), Frame())] == [("1",)]
    with pytest.raises(Invalid, match="a int is not an Arrow table"):
        arrow_columns(type_info(Product), 3)


@pytest.mark.parametrize(
    ("columns", "message", "row"),
    [
        ({"id": ["a", None]}, r"Flat\.id, row 1: Input should be a valid string, found None", 1),
        ({"id": ["a", ""]}, r"Flat\.id, row 1: String should have at least 1 character", 1),
        ({"id": ["a", "b"], "whole": [1, None]}, r"Flat\.whole, row 1: Input should be a valid integer", 1),
        ({"id": ["a", "b"], "whole": [1.0, 1.5]}, r"Flat\.whole, row 1: .*found 1\.5", 1),
        ({"id": ["a", "b"], "flag": ["yes", "perhaps"]}, r"Flat\.flag, row 1: .*found 'perhaps'", 1),
        ({"id": ["a", "b"], "count": [0, -1]}, r"Flat\.count, row 1: .*greater than or equal to 0", 1),
        (
            {"id": ["a", "b"], "moment": pa.array([0, 1], pa.timestamp("ns"))},
            r"Flat\.moment, row 1: .*would lose data",
            1,
        ),
        (
            {"id": ["a", "b"], "moment": pa.array([0, 1 << 60], pa.timestamp("us"))},
            r"Flat\.moment, row 1: .*out of range",
            1,
        ),
        ({"id": ["a", "b"], "day": pa.array([0, 1 << 24], pa.date32())}, r"Flat\.day, row 1: .*out of range", 1),
        ({"id": ["a", "b"], "text": TWICE}, r"Flat\.text, row 1: Converting.*duplicate key was 'x'", 1),
        ({"text": ["a"]}, r"Flat\.id is missing among the columns", None),
        ({"id": ["a"], "tetx": ["b"]}, "Flat has no field tetx, but the table has such a column", None),
    ],
)
def test_the_first_value_that_does_not_fit_is_named(columns: dict[str, Any], message: str, row: int | None) -> None:
    with pytest.raises(InvalidValue, match=message) as caught:
        queued(type_info(Flat), pa.table(columns))
    assert caught.value.row == row


@pytest.mark.parametrize("keys", [["5", "five"], [5, None], [[5], [6]]])
def test_an_end_that_does_not_fit(keys: list[Any]) -> None:
    table = pa.table({"left_key": ["a", "b"], "right_key": keys})
    with pytest.raises(InvalidValue, match=r"Subscription\.right_key must be a Product or its key.*row [01]"):
        queued(type_info(Subscription), table)
