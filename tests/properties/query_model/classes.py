"""The types that are asked about, as the library knows them."""

from datetime import date, datetime
from decimal import Decimal
from typing import Any

from holdfast.ontology import Entity, Field, Mixin, Relation
from tests.properties.query_model.past import Kind


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    tier: Field[str | None] = Field(default=None)
    age: Field[int | None] = Field(default=None)
    score: Field[float | None] = Field(default=None)
    price: Field[Decimal | None] = Field(default=None)
    tags: Field[list[str] | None] = Field(default=None)
    profile: Field[dict[str, Any]] = Field(default_factory=dict)
    day: Field[date | None] = Field(default=None)
    at: Field[datetime | None] = Field(default=None)
    flag: Field[bool | None] = Field(default=None)


class Item(Entity):
    sku: Field[int] = Field(primary_key=True)
    cost: Field[Decimal] = Field(default=Decimal(0))


class Knows(Relation[Person, Person]):
    note: Field[str] = Field(instance_key=True)
    weight: Field[int | None] = Field(default=None)


class Buys(Relation[Person, Item]):
    quantity: Field[int] = Field(default=1)


CLASSES: dict[Kind, type[Mixin]] = {"Person": Person, "Item": Item, "Knows": Knows, "Buys": Buys}
FIELDS: dict[Kind, tuple[str, ...]] = {
    "Person": ("id", "tier", "age", "score", "price", "tags", "profile", "day", "at", "flag"),
    "Item": ("sku", "cost"),
    "Knows": ("left_key", "right_key", "note", "weight"),
    "Buys": ("left_key", "right_key", "quantity"),
}
