"""Objects to rows to tables to files, and back."""

import json
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, RootModel
from pydantic import Field as ModelField

from holdfast.base.errors import Corrupt, HoldfastError
from holdfast.ontology import Entity, Field, InvalidValue, Relation, UnreadableRow
from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.columns import complete_forms, typed_columns
from holdfast.ontology.format.data.rows import (
    from_table,
    read,
    to_table,
    written,
)
from holdfast.ontology.types.typeinfo import type_info
from holdfast.ontology.types.typespec import ListOf, Primitive
from tests.unit.ontology.shop import (
    NOON,
    Address,
    Cat,
    Customer,
    Dog,
    Everything,
    Knows,
    Level,
    Order,
    Price,
    Product,
    Spot,
    Subscription,
    back,
    everything,
    fields,
    row,
)


class TestCanonical:
    def test_one_form_for_every_type(self) -> None:
        made = everything(
            level=Level.HIGH,
            tags=["b", "a"],
            moments=[NOON, None],
            counts={"b": 1, "a": 2},
            either=1.0,
            place={"lat": 1.5, "lng": float("inf")},
            address=Address(city="Zürich", since=NOON, spot=Spot(lat=Decimal("1E+3"), seal=b"\x00")),
            price=Price(Decimal("2.50"), b"\x01", [Price(Decimal(1))]),
            pets=[Cat(lives=9), Dog(tricks=["sit"])],
            anything={"x": [1, None, {"y": "z"}]},
        )
        assert row(made).fields_json == (
            '{"address":{"city":"Zürich","since":"2024-05-01T12:00:00.000000+00:00","spot":{"lat":"1E+3","seal":"AA=="}},'
            '"amount":"1.10","anything":{"x":[1,null,{"y":"z"}]},"blob":"/wA=","changed":"2024-05-01T12:00:00.000000+00:00",'
            '"counts":{"a":2,"b":1},"day":"2024-05-01","either":1.0,"flag":true,'
            '"id":"00000000-0000-0000-0000-000000000007","level":2,"moments":["2024-05-01T12:00:00.000000+00:00",null],'
            '"number":0.5,"pets":[{"kind":"cat","lives":9},{"kind":"dog","tricks":["sit"]}],'
            '"place":{"lat":1.5,"lng":"Infinity"},'
            '"price":{"amount":"2.50","history":[{"amount":"1","history":[],"seal":""}],"seal":"AQ=="},'
            '"size":"m","tags":["b","a"],"text":"ü","tier":"gold","whole":3}'
        )
        assert back(made) == made

    def test_a_union_with_text_has_no_place_for_what_is_not_a_number(self) -> None:
        with pytest.raises(
            InvalidValue,
            match=r"Everything\.either, number 0: Input should be .* one of the types of the union",
        ):
            row(everything(either=float("nan")))

    def test_a_time_without_a_zone_stays_so_in_a_record_of_the_users(self) -> None:
        since = datetime(2024, 5, 1, 12)  # noqa: DTZ001  # that is the point
        assert back(everything(address=Address(city="a", since=since))).address.since == since


class Day(Entity):
    id: Field[date] = Field(primary_key=True)


class At(Relation[Day, Day]):
    level: Field[Level] = Field(instance_key=True)


def test_identities() -> None:
    assert row(everything()).identity == ("00000000-0000-0000-0000-000000000007",)
    assert row(Subscription(left_key="c1", right_key=5)).identity == ("c1", "5", "")
    assert row(Knows(left_key="a", right_key="b")) == Row(("a", "b", ""), "{}")
    order = Order(left_key="c1", right_key=5, number="n1", placed=NOON)
    assert fields(order) == {"placed": "2024-05-01T12:00:00.000000+00:00"}  # the instance key is in its column alone
    found = At(left_key=Day(id=date(2024, 1, 2)), right_key="2024-01-03", level=Level.LOW)
    assert row(found).identity == ("2024-01-02", "2024-01-03", "1")
    assert (back(order), back(found)) == (order, found)


@dataclass
class Careless:
    count: int


CARELESS: Any = "x"


class Animal(BaseModel):
    name: str


class Bird(Animal):
    wings: int = 2


class Pen(Entity):
    id: Field[str] = Field(primary_key=True)
    careless: Field[Careless | None] = Field(default=None)
    animal: Field[Animal | None] = Field(default=None)
    numbers: Field[list[int]] = Field(default_factory=list)
    more: Field[Any] = Field(default=None)
    note: Field[str] = Field(default="")
    whole: Field[int] = Field(default=0)


class TestWhatCannotBeWritten:
    """An object may have become unfit since it was validated, and inside a dataclass nothing was checked."""

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"note": "\ud800"}, r"Pen\.note, number 1: .* surrogates not allowed"),
            ({"more": ["\ud800"]}, r"Pen\.more, number 1: .* surrogates not allowed"),
            (
                {"careless": Careless(CARELESS)},
                r"Pen\.careless\.count, .*: Input should be a valid integer, found 'x'",
            ),
            ({"animal": Bird(name="a")}, r"Pen\.animal, number 1: Input should be a Animal, found Bird"),
            ({"more": {"a": [1, {2}]}}, r"Pen\.more, number 1: Input should be a JSON value, not \{2\}"),
            ({"more": {1: 2}}, r"Pen\.more, number 1: Input should be a JSON value, not \{1: 2\}"),
            ({"more": float("nan")}, r"Pen\.more, number 1: Input should be a JSON value, not nan"),
            ({"more": 10**5000}, r"Pen\.more, number 1: it has no JSON form"),
            ({"whole": 2**63}, r"Pen\.whole, number 1: Input should be less than or equal to 9223"),
        ],
    )
    def test_it_is_named(self, changes: dict[str, Any], message: str) -> None:
        good, bad = Pen(id="a"), Pen(**{"id": "b", **changes})
        with pytest.raises(InvalidValue, match=message) as caught:
            written(type_info(Pen), [good, bad])
        assert caught.value.row == 1

    def test_an_object_of_another_type(self) -> None:
        with pytest.raises(InvalidValue, match="number 1: a Customer was expected, found a Product"):
            written(type_info(Customer), [Customer(id="a", name="b"), Product(id=1)])


class TestStoredRows:
    def test_of_an_older_schema(self) -> None:
        (made,) = read(type_info(Customer), [Row(("c1",), '{"id":"c1","name":"Ada","gone":1}')])
        assert made == Customer(id="c1", name="Ada")

    @pytest.mark.parametrize(
        ("text", "error", "message"),
        [
            ('{"id":"c1"}', UnreadableRow, "Customer 'c1': name: it is missing, and has no default"),
            ('{"id":"c1","name":3}', UnreadableRow, "Customer 'c1': name: Input should be a valid string, found 3"),
            ('{"id":"c1"', Corrupt, "Customer 'c1': fields_json is not JSON"),
            ("[]", Corrupt, "Customer 'c1': fields_json is not an object"),
        ],
    )
    def test_that_do_not_fit(self, text: str, error: type[HoldfastError], message: str) -> None:
        with pytest.raises(error, match=message):
            read(type_info(Customer), [Row(("c1",), text)])

    def test_a_record_that_refuses_what_was_stored(self) -> None:
        with pytest.raises(UnreadableRow, match=r"pets\[0\]: .*one of the types"):
            read(type_info(Everything), [_with(everything(), pets=[{"kind": "bird"}])])
        with pytest.raises(UnreadableRow, match=r"address\.since: it is missing"):
            read(type_info(Everything), [_with(everything(), address={"city": "a"})])


def _with(obj: Any, **changes: Any) -> Row:
    found = row(obj)
    return Row(found.identity, json.dumps({**json.loads(found.fields_json), **changes}))


@dataclass
class Total:
    """Its constructor runs once, and not for what was stored."""

    parts: list[int]
    count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.parts = [*self.parts, sum(self.parts)]
        self.count = len(self.parts)


class Names(RootModel[list[str]]):
    pass


class Line(BaseModel):
    model_config = ConfigDict(strict=True)
    count: int = ModelField(alias="qty")
    when: datetime = NOON


class Odd(Entity):
    id: Field[str] = Field(primary_key=True)
    total: Field[Total]
    names: Field[Names]
    line: Field[Line]


def test_records_are_built_from_their_fields_without_constructors_roots_or_aliases() -> None:
    made = Odd(id="a", total=Total([1, 2]), names=Names(["x"]), line=Line(qty=3))
    assert fields(made) == {
        "id": "a",
        "total": {"parts": [1, 2, 3], "count": 3},
        "names": {"root": ["x"]},
        "line": {"count": 3, "when": "2024-05-01T12:00:00.000000+00:00"},
    }
    assert back(made) == made


@pytest.mark.parametrize(
    "text", ["1E+30", "-1.5E+25", "12345678901234567890123", "34873660746309966351.2018283108915297326"]
)
def test_a_decimal_that_its_column_cannot_hold_is_null_there(text: str) -> None:
    """Arrow makes another number of some of them, and says nothing."""
    bodies = [f'{{"amount":"{each}"}}' for each in ("1.10", text)]
    for given in (bodies, [*bodies, '{"amount":7}']):
        found = typed_columns({"amount": Primitive(Decimal)}, given)["amount"]
        assert found.partial
        assert found.array.to_pylist()[:2] == [Decimal("1.10"), None]
    listed = typed_columns({"all": ListOf(Primitive(Decimal))}, [f'{{"all":["{text}"]}}'])["all"]
    assert (listed.partial, listed.array.to_pylist()) == (True, [None])


def test_columns_that_an_older_version_called_partial_do_not_count() -> None:
    metadata = {b"holdfast.forms": b'{"a":"int","b":"text"}', b"holdfast.partial": b'["a"]'}
    assert (complete_forms(metadata), complete_forms({}), complete_forms(None)) == ({"b": "text"}, None, None)


class TestTables:
    def test_fields_json_is_the_last_column(self) -> None:
        entity = to_table(type_info(Customer), [row(Customer(id="c1", name="Ada"))], 7, 3)
        assert entity.column_names == [
            *("commit_id", "entity_type", "entity_key", "schema_version_id"),
            *("id", "name", "tier", "fields_json"),
        ]
        assert entity.to_pylist()[0] == {
            "commit_id": 7,
            "entity_type": "Customer",
            "entity_key": "c1",
            "schema_version_id": 3,
            "fields_json": '{"id":"c1","name":"Ada","tier":null}',
            "id": "c1",
            "name": "Ada",
            "tier": None,
        }
        relation = to_table(type_info(Order), [row(Order(left_key="c1", right_key=5, number="n"))], 7, 3)
        assert relation.column_names == [
            *("commit_id", "relation_type", "left_key", "right_key", "instance_key"),
            *("schema_version_id", "placed", "fields_json"),
        ]

    def test_a_mark_only_where_something_is_retracted(self) -> None:
        rows = [row(Customer(id=key, name="x")) for key in ("a", "b")]
        assert "_retracted" not in to_table(type_info(Customer), rows, 1, 1).column_names
        table = to_table(type_info(Customer), [rows[0], rows[1]._replace(retracted=True)], 1, 1)
        assert table.column("_retracted").to_pylist() == [False, True]
        assert from_table(table) == [rows[0], rows[1]._replace(retracted=True)]
