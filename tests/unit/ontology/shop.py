"""Types that the tests of declarations, rows and schemas share, and objects of them."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, Literal, NotRequired, TypedDict
from uuid import UUID

from pydantic import BaseModel

from holdfast.ontology import Entity, Field, Mixin, Relation
from holdfast.ontology.format.data.batch import Row
from holdfast.ontology.format.data.rows import read, written
from holdfast.ontology.types.typeinfo import type_info


class Tier(Enum):
    GOLD = "gold"
    STANDARD = "std"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Geo(TypedDict):
    lat: float
    lng: float
    seen: NotRequired[datetime]


class Spot(BaseModel):
    lat: Decimal
    seal: bytes = b""


class Address(BaseModel):
    city: str
    since: datetime
    spot: Spot | None = None


@dataclass
class Price:
    amount: Decimal
    seal: bytes = b""
    history: list["Price"] = field(default_factory=list)


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str]


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]
    tier: Field[str | None] = Field(default=None)


class Product(Entity):
    id: Field[int] = Field(primary_key=True)
    title: Field[str] = Field(default="", index=True)


class Subscription(Relation[Customer, Product]):
    seats: Field[int] = Field(default=1)


class Order(Relation[Customer, Product]):
    number: Field[str] = Field(instance_key=True)
    placed: Field[datetime | None] = Field(default=None)


class Knows(Relation[Customer, Customer]):
    pass


class Person(Entity):
    id: Field[str] = Field(primary_key=True)
    age: Field[int]


class Likes(Relation[Person, Person]):
    much: Field[float] = Field(default=1.0)


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Audited(Mixin):
    changed: Field[datetime]


class Everything(Audited, Entity):
    id: Field[UUID] = Field(primary_key=True)
    text: Field[str]
    whole: Field[int]
    number: Field[float]
    flag: Field[bool]
    day: Field[date]
    amount: Field[Decimal]
    blob: Field[bytes]
    tier: Field[Tier]
    level: Field[Level | None] = Field(default=None)
    size: Field[Literal["s", "m", "l"]] = Field(default="m")
    tags: Field[list[str]] = Field(default_factory=list)
    moments: Field[list[datetime | None]] = Field(default_factory=list)
    counts: Field[dict[str, int]] = Field(default_factory=dict)
    either: Field[int | float | str | None] = Field(default=None)
    place: Field[Geo | None] = Field(default=None)
    address: Field[Address | None] = Field(default=None)
    price: Field[Price | None] = Field(default=None)
    pets: Field[list[Cat | Dog]] = Field(default_factory=list)
    anything: Field[Any] = Field(default=None)


NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


def everything(**changes: Any) -> Everything:
    values: dict[str, Any] = {
        "id": UUID(int=7),
        "changed": NOON,
        "text": "ü",
        "whole": 3,
        "number": 0.5,
        "flag": True,
        "day": date(2024, 5, 1),
        "amount": Decimal("1.10"),
        "blob": b"\xff\x00",
        "tier": Tier.GOLD,
    }
    return Everything(**{**values, **changes})


def row(obj: Any) -> Row:
    (made,) = written(type_info(type(obj)), [obj])
    return made


def fields(obj: Any) -> Any:
    return json.loads(row(obj).fields_json)


def back(obj: Any) -> Any:
    (made,) = read(type_info(type(obj)), [row(obj)])
    return made
