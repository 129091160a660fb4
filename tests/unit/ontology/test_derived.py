"""A class from the schema in the store: it makes the rows that the user's own class makes."""

from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Literal, TypedDict
from uuid import UUID

import pyarrow as pa
import pytest

from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.format.data.intake import queued
from holdfast.ontology.types.errors import InvalidValue
from holdfast.ontology.types.model import derived_class
from holdfast.ontology.types.typeinfo import of_schema, type_info


class Tier(Enum):
    GOLD = "Gold"
    STD = "Std"


class Address(TypedDict):
    street: str
    number: int | None


class Account(Entity):
    id: Field[int] = Field(primary_key=True)
    at: Field[datetime]
    day: Field[date | None] = Field(default=None)
    cost: Field[Decimal]
    blob: Field[bytes]
    tags: Field[list[str]]
    tier: Field[Tier]
    token: Field[UUID] = Field(index=True)
    address: Field[Address | None] = Field(default=None)
    kind: Field[Literal["a", "b"]]
    counts: Field[dict[str, int]]


class Product(Entity):
    sku: Field[str] = Field(primary_key=True)


class Owns(Relation[Account, Product]):
    number: Field[int] = Field(instance_key=True)
    weight: Field[float]


ACCOUNTS = pa.table(
    {
        "id": [1, 2],
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
        "day": [date(2026, 1, 1), None],
        "cost": [Decimal("1.5"), Decimal(2)],
        "blob": [b"x", b""],
        "tags": [["a"], []],
        "tier": ["Gold", "Std"],
        "token": [str(UUID(int=5))] * 2,
        "address": [{"street": "s", "number": None}, None],
        "kind": ["a", "b"],
        "counts": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    }
)


def test_rows_of_an_entity_are_those_of_its_class() -> None:
    form = type_info(Account)
    derived = type_info(derived_class(of_schema(form.type_id, form.schema)))
    assert not derived.drift(form.schema)
    assert queued(derived, ACCOUNTS) == queued(form, ACCOUNTS)
    with pytest.raises(InvalidValue, match=r"Account\.tier"):
        queued(derived, ACCOUNTS.set_column(6, "tier", pa.array(["Gold", "Lead"])))


@pytest.mark.parametrize("ends", [True, False], ids=["ends known", "ends unknown"])
def test_rows_of_a_relation_are_those_of_its_class(ends: bool) -> None:
    form = type_info(Owns)
    known = {"Account": type_info(Account).schema, "Product": type_info(Product).schema} if ends else {}
    derived = type_info(derived_class(of_schema(form.type_id, form.schema, known)))
    keys = pa.array([1, 2]) if ends else pa.array(["1", "2"])
    given = pa.table({"left_key": keys, "right_key": ["a", "b"], "number": [1, 2], "weight": [0.5, 1.0]})
    same = given.set_column(0, "left_key", pa.array([1, 2]))
    assert queued(derived, given) == queued(form, same)
    assert derived.schema_hash == form.schema_hash
