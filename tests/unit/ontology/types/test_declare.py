"""What a class statement declares, and what it is refused for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum
from functools import partial
from types import new_class
from typing import Any, Generic, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict

from holdfast.base.errors import Invalid
from holdfast.ontology import (
    Entity,
    Field,
    InvalidType,
    Relation,
)
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.shop import Audited, Customer, Everything, Product, Subscription, Tier

L = TypeVar("L", bound=Entity)


def make(base: Any = Entity, *, key: bool = True, called: dict[str, Any] | None = None, **annotations: Any) -> type:
    """A class statement with these fields: an annotation, or an annotation and what is assigned."""
    field_of: Any = Field
    body: dict[str, Any] = {"__annotations__": {}, "__module__": __name__}
    if key:
        annotations = {"id": (str, Field(primary_key=True)), **annotations}
    for name, given in annotations.items():
        annotation, *assigned = given if isinstance(given, tuple) else (given,)
        body["__annotations__"][name] = field_of[annotation]
        if assigned:
            body[name] = assigned[0]
    return new_class("Thing", (base,), called, lambda namespace: namespace.update(body))


def relation(ends: Any = Relation[Customer, Product], **annotations: Any) -> type:
    return make(ends, key=False, **annotations)


def raw(**body: Any) -> type:
    return new_class("Thing", (Entity,), None, lambda namespace: namespace.update({"__module__": __name__, **body}))


class TestWhatIsDeclared:
    def test_fields_are_inherited_from_mixins_abstract_and_concrete_types(self) -> None:
        class Named(Entity, abstract=True):
            id: Field[str] = Field(primary_key=True)
            label: Field[str]

        class Base(Audited, Named):
            tier: Field[str] = Field(default="std")

        class Derived(Base):
            extra: Field[int] = Field(default=0)
            tier: Field[str] = Field(default="gold")

        for python in (Named, Audited):
            with pytest.raises(Invalid, match="is not an entity or relation type"):
                type_info(python)
        assert set(type_info(Derived).fields) == {"id", "label", "changed", "tier", "extra"}
        made = Derived(id="a", label="b", changed=datetime(2024, 1, 1, tzinfo=UTC))
        assert (made.tier, made.extra) == ("gold", 0)
        assert str(Derived.label) == "Derived.label"
        assert Base(id="a", label="b", changed=datetime(2024, 1, 1, tzinfo=UTC)).tier == "std"

    def test_ends_come_through_generic_bases_and_by_inheritance(self) -> None:
        class Link(Relation[Customer, L], Generic[L], abstract=True):
            weight: Field[float] = Field(default=1.0)

        class Buys(Link[Product]):
            pass

        class BuysOften(Buys):
            pass

        for python in (Buys, BuysOften):
            ends = type_info(python).ends
            assert ends is not None
            assert [end.name for end in ends] == ["Customer", "Product"]

    def test_annotations_are_looked_up_where_the_class_stands(self) -> None:
        class Colour(Enum):
            RED = "red"

        class Thing(Entity):
            id: "Field[str]" = Field(primary_key=True)
            colour: "Field[Colour]"
            tier: "Field[Tier | None]" = Field(default=None)
            again: Field["Colour | None"] = Field(default=None)

        assert Thing(id="a", colour=Colour.RED).colour is Colour.RED

    def test_expressions_name_type_field_and_path(self) -> None:
        path = Everything.anything.path("geo").path("lat.deep")
        assert (path.owner, path.name, path.steps) == (Everything, "anything", ("geo", "lat", "deep"))
        assert str(Subscription.left_key) == "Subscription.left_key"
        with pytest.raises(Invalid, match="is not a path"):
            Everything.address.path("a..b")


@dataclass
class Holder:
    inner: timedelta


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")


class Twin(BaseModel):
    name: str


class OtherTwin(BaseModel):
    name: str


class Mixed(Enum):
    A = 1
    B = "b"


class Huge(IntEnum):
    HIGH = 2**64


INSTANCE: Any = (str, Field(instance_key=True))
RELATION: Any = Relation
REFUSED: list[tuple[str, Callable[[], object], str]] = [
    ("no key", lambda: make(key=False, name=str), "Thing has no primary key"),
    ("two keys", lambda: make(two=(str, Field(primary_key=True))), "2 primary keys: id, two"),
    ("optional key", lambda: make(key=False, id=(str | None, Field(primary_key=True))), "never None"),
    ("key of floats", lambda: make(key=False, id=(float, Field(primary_key=True))), "a key must be"),
    ("constant key", lambda: make(key=False, id=(str, _constant_key())), "the same for every object"),
    ("instance key of an entity", lambda: make(two=(str, Field(instance_key=True))), "primary_key"),
    ("system column", lambda: make(commit_id=int), "Thing.commit_id"),
    ("system column in capitals", lambda: make(Fields_JSON=str), "Thing.Fields_JSON"),
    ("underscore", lambda: make(_hidden=str), "Thing._hidden"),
    ("names that differ in case", lambda: make(name=str, Name=str), "differ only in case"),
    ("unsupported class", lambda: make(wait=timedelta), "Thing.wait: .* timedelta"),
    ("unsupported generic", lambda: make(one=set[str]), r"Thing.one: .* set\[str\]"),
    ("unsupported inside", lambda: make(one=list[Holder]), "Thing.one: .* timedelta"),
    ("dictionary of numbers", lambda: make(one=dict[int, str]), "keys of a dict must be str"),
    ("an entity", lambda: make(one=Customer), "cannot hold an entity"),
    ("a model that takes anything", lambda: make(one=Loose), 'extra="allow"'),
    ("an enum of two kinds", lambda: make(one=Mixed), "Mixed"),
    ("an enum beyond int64", lambda: make(one=Huge), "must fit into int64"),
    ("a union that JSON cannot tell", lambda: make(one=str | UUID), "str and UUID in one union"),
    ("models that JSON cannot tell", lambda: make(one=Twin | OtherTwin), "Twin and OtherTwin"),
    ("a default that does not fit", lambda: make(one=(int, Field(default="x"))), "default does not fit"),
    ("a plain default that does not fit", lambda: make(one=(int, "x")), "Thing.one"),
    ("two defaults", lambda: make(one=(int, _two_defaults())), "both a default and a default_factory"),
    ("two instance keys", lambda: relation(one=INSTANCE, two=INSTANCE), "2 instance keys: one, two"),
    ("key of a relation", lambda: relation(one=(str, Field(primary_key=True))), "identified by its ends"),
    ("ends that are numbers", lambda: relation(RELATION[Customer, int]), "int is not an entity type"),
    ("end that is a relation", lambda: relation(RELATION[Customer, Subscription]), "Subscription is not"),
    ("no ends", lambda: relation(Relation), "does not declare its ends"),
    ("entity and relation", lambda: new_class("Both", (Customer, Subscription)), "at once"),
    ("no field", lambda: raw(__annotations__={"name": str}), "fields are annotated as Field"),
    ("no annotation", lambda: raw(id=Field[str](primary_key=True)), "without an annotation"),
    ("unknown name", lambda: raw(__annotations__={"id": "Field[Nowhere]"}), "Nowhere"),
    *(
        (f"end called {name}", partial(relation, **{name: str}), f"Thing.{name}")
        for name in ("left", "right", "left_key", "instance_key")
    ),
    *(
        (f"type called {name}", partial(make, called={"name": name}), "cannot be the name of a type")
        for name in ("a-b", "a b", "class", "Größe", "a/b")
    ),
]


def _constant_key() -> Field[str]:
    field: Field[str] = Field(primary_key=True)
    field.default = "same"
    return field


def _two_defaults() -> Field[int]:
    field: Field[int] = Field(default=1)
    field.default_factory = int
    return field


@pytest.mark.parametrize(("make_it", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_refused(make_it: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidType, match=message):
        make_it()
