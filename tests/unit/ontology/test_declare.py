"""What a class statement declares, and what it is refused for."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict

from holdfast.base.errors import Invalid
from holdfast.ontology import (
    Entity,
    Field,
    FieldExpr,
    InvalidType,
    MissingKey,
    NotAnEntity,
    Relation,
    ReservedName,
    TooManyKeys,
    UnfitKey,
    UnsupportedAnnotation,
)
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.shop import Audited, Customer, Everything, Order, Product, Subscription, Tier

L = TypeVar("L", bound=Entity)


def make(base: type = Entity, *, key: bool = True, **annotations: Any) -> type:
    """A class statement with these fields: an annotation, or an annotation and what is assigned."""
    field_of: Any = Field
    body: dict[str, Any] = {"__annotations__": {}}
    if key:
        annotations = {"id": (str, Field(primary_key=True)), **annotations}
    for name, given in annotations.items():
        annotation, *assigned = given if isinstance(given, tuple) else (given,)
        body["__annotations__"][name] = field_of[annotation]
        if assigned:
            body[name] = assigned[0]
    return type("Thing", (base,), body)


class TestWhatIsDeclared:
    def test_fields_in_their_order_with_their_keys(self) -> None:
        declared = type_info(Customer)
        assert (declared.kind, declared.name, declared.key_field) == ("entity", "Customer", "id")
        assert list(declared.fields) == ["id", "name", "tier"]
        assert declared.payload == ("id", "name", "tier")

    def test_an_instance_key_is_no_payload(self) -> None:
        declared = type_info(Order)
        assert (declared.key_field, declared.payload) == ("number", ("placed",))
        assert declared.ends is not None
        assert [end.name for end in declared.ends] == ["Customer", "Product"]

    def test_a_plain_value_is_a_default(self) -> None:
        class Thing(Entity):
            id: Field[str] = Field(primary_key=True)
            tier: Field[str | None] = None  # type: ignore[assignment]  # works, but checkers want Field(default=None)
            size: Field[int] = 3  # type: ignore[assignment]  # as above

        assert Thing(id="a") == Thing(id="a", tier=None, size=3)
        assert isinstance(Thing.tier, FieldExpr)

    def test_names_of_their_own(self) -> None:
        class Thing(Entity, name="Widget"):
            id: Field[str] = Field(primary_key=True)

        assert type_info(Thing).name == "Widget"

    def test_fields_are_inherited_from_mixins_abstract_and_concrete_types(self) -> None:
        class Named(Entity, abstract=True):
            id: Field[str] = Field(primary_key=True)
            label: Field[str]

        class Base(Audited, Named):
            tier: Field[str] = Field(default="std")

        class Derived(Base):
            extra: Field[int] = Field(default=0)
            tier: Field[str] = Field(default="gold")

        assert set(type_info(Derived).fields) == {"id", "label", "changed", "tier", "extra"}
        made = Derived(id="a", label="b", changed=datetime(2024, 1, 1, tzinfo=UTC))
        assert (made.tier, made.extra) == ("gold", 0)
        assert str(Derived.label) == "Derived.label"
        assert Base(id="a", label="b", changed=datetime(2024, 1, 1, tzinfo=UTC)).tier == "std"

    def test_abstract_types_and_mixins_make_no_objects(self) -> None:
        class Named(Entity, abstract=True):
            label: Field[str]

        bases: list[Any] = [Named, Audited, Entity]
        for python in bases:
            with pytest.raises(Invalid, match="is not an entity or relation type"):
                python()

    def test_class_variables_and_methods_are_not_fields(self) -> None:
        class Thing(Entity):
            limit: ClassVar[int] = 3
            id: Field[str] = Field(primary_key=True)

            def shout(self) -> str:
                return self.id.upper() * self.limit

        assert list(type_info(Thing).fields) == ["id"]
        assert Thing(id="a").shout() == "AAA"

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


REFUSED: list[tuple[str, Callable[[], object], type[InvalidType], str]] = [
    ("no key", lambda: make(key=False, name=str), MissingKey, "Thing has no primary key"),
    ("two keys", lambda: make(two=(str, Field(primary_key=True))), TooManyKeys, "2 primary keys: id, two"),
    ("optional key", lambda: make(key=False, id=(str | None, Field(primary_key=True))), UnfitKey, "never None"),
    ("key of floats", lambda: make(key=False, id=(float, Field(primary_key=True))), UnfitKey, "a key must be"),
    ("constant key", lambda: make(key=False, id=(str, _constant_key())), UnfitKey, "the same for every object"),
    ("instance key of an entity", lambda: make(two=(str, Field(instance_key=True))), InvalidType, "primary_key"),
    ("system column", lambda: make(commit_id=int), ReservedName, "Thing.commit_id"),
    ("system column in capitals", lambda: make(Fields_JSON=str), ReservedName, "Thing.Fields_JSON"),
    ("underscore", lambda: make(_hidden=str), ReservedName, "Thing._hidden"),
    ("names that differ in case", lambda: make(name=str, Name=str), ReservedName, "differ only in case"),
    ("unsupported class", lambda: make(wait=timedelta), UnsupportedAnnotation, "Thing.wait: .* timedelta"),
    ("unsupported generic", lambda: make(one=set[str]), UnsupportedAnnotation, r"Thing.one: .* set\[str\]"),
    ("unsupported inside", lambda: make(one=list[Holder]), UnsupportedAnnotation, "Thing.one: .* timedelta"),
    ("dictionary of numbers", lambda: make(one=dict[int, str]), UnsupportedAnnotation, "keys of a dict must be str"),
    ("an entity", lambda: make(one=Customer), UnsupportedAnnotation, "cannot hold an entity"),
    ("a model that takes anything", lambda: make(one=Loose), UnsupportedAnnotation, 'extra="allow"'),
    ("an enum of two kinds", lambda: make(one=Mixed), UnsupportedAnnotation, "Mixed"),
    ("a union that JSON cannot tell", lambda: make(one=str | UUID), UnsupportedAnnotation, "str and UUID in one union"),
    ("models that JSON cannot tell", lambda: make(one=Twin | OtherTwin), UnsupportedAnnotation, "Twin and OtherTwin"),
    ("a default that does not fit", lambda: make(one=(int, Field(default="x"))), InvalidType, "default does not fit"),
    ("a plain default that does not fit", lambda: make(one=(int, "x")), InvalidType, "Thing.one"),
    ("two defaults", lambda: make(one=(int, _two_defaults())), InvalidType, "both a default and a default_factory"),
]


def _constant_key() -> Field[str]:
    field: Field[str] = Field(primary_key=True)
    field.default = "same"
    return field


def _two_defaults() -> Field[int]:
    field: Field[int] = Field(default=1)
    field.default_factory = int
    return field


@pytest.mark.parametrize(
    ("make_it", "error", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED]
)
def test_refused(make_it: Callable[[], object], error: type[InvalidType], message: str) -> None:
    with pytest.raises(error, match=message):
        make_it()


class TestRefusedStatements:
    def test_two_instance_keys(self) -> None:
        with pytest.raises(TooManyKeys, match="2 instance keys: one, two"):

            class Twice(Relation[Customer, Product]):
                one: Field[str] = Field(instance_key=True)
                two: Field[str] = Field(instance_key=True)

    def test_a_primary_key_of_a_relation(self) -> None:
        with pytest.raises(InvalidType, match="identified by its ends"):

            class Keyed(Relation[Customer, Product]):
                one: Field[str] = Field(primary_key=True)

    @pytest.mark.parametrize("name", ["left", "right", "left_key", "instance_key"])
    def test_names_of_the_ends(self, name: str) -> None:
        body = {"__annotations__": {name: Field[str]}, "__orig_bases__": (Relation[Customer, Product],)}
        with pytest.raises(ReservedName, match=f"Ends.{name}"):
            type("Ends", (Relation,), body)

    def test_ends_that_are_not_entities(self) -> None:
        with pytest.raises(NotAnEntity, match="int is not an entity type"):

            class Counts(Relation[Customer, int]):  # type: ignore[type-var]  # that is the point
                pass

        with pytest.raises(NotAnEntity, match="Subscription is not an entity type"):

            class Nested(Relation[Customer, Subscription]):  # type: ignore[type-var]  # as above
                pass

    def test_no_ends(self) -> None:
        with pytest.raises(NotAnEntity, match="does not say what it relates"):

            class Bare(Relation):
                pass

    def test_an_annotation_that_is_no_field(self) -> None:
        with pytest.raises(UnsupportedAnnotation, match=r"Thing\.name: fields are annotated as Field") as caught:

            class Thing(Entity):
                id: Field[str] = Field(primary_key=True)
                name: str

        assert "Field[str]" in str(caught.value.remedy)

    def test_a_field_without_an_annotation(self) -> None:
        with pytest.raises(UnsupportedAnnotation, match=r"Thing\.id: a field without an annotation"):

            class Thing(Entity):
                id = Field[str](primary_key=True)

    def test_an_annotation_that_names_nothing(self) -> None:
        with pytest.raises(UnsupportedAnnotation, match="Nowhere"):

            class Thing(Entity):
                id: "Field[Nowhere]" = Field(primary_key=True)  # type: ignore[name-defined]  # noqa: F821

    def test_an_entity_and_a_relation_at_once(self) -> None:
        with pytest.raises(InvalidType, match="at once"):

            class Both(Customer, Subscription):
                pass

    @pytest.mark.parametrize("given", ["a-b", "a b", "class", "Größe", "a/b"])
    def test_names_that_are_no_names(self, given: str) -> None:
        with pytest.raises(ReservedName, match="cannot be the name of a type"):

            class Thing(Entity, name=given):
                id: Field[str] = Field(primary_key=True)
