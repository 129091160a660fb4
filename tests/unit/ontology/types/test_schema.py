"""Schema documents, their hashes, and how two of them differ."""

from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel
from pydantic import Field as Constraint

from holdfast.base.errors import Corrupt
from holdfast.ontology import Entity, Field, SchemaDrift
from holdfast.ontology.format.schema_objects import Dropped, Registry, SchemaVersion, Types, Versions
from holdfast.ontology.types.schema import diff, schema_hash
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.shop import Customer, Order, Subscription

NONE = {"kind": "primitive", "name": "NoneType"}
STR = {"kind": "primitive", "name": "str"}


def schema(**annotations: Any) -> dict[str, Any]:
    """The document of an entity with these fields."""
    field_of: Any = Field
    body = {"__annotations__": {"id": Field[str], **{name: field_of[each] for name, each in annotations.items()}}}
    made = type("Thing", (Entity,), {**body, "id": Field(primary_key=True)})
    found: dict[str, Any] = type_info(made).schema
    return found


class TestDocuments:
    def test_of_a_relation(self) -> None:
        found = type_info(Order).schema
        assert {name: value for name, value in found.items() if name != "fields"} == {
            "relation_name": "Order",
            "left_type": "Customer",
            "right_type": "Product",
            "instance_key_field": "number",
        }
        assert found["fields"]["number"] == {"index": False, "type": "<class 'str'>", "type_spec": STR}
        assert type_info(Subscription).schema["instance_key_field"] is None

    def test_the_hash_of_a_type_is_for_ever(self) -> None:
        """If this fails, every store that knows a type will find that it has changed."""
        assert schema_hash(schema(name=str, size=int)) == (
            "fabb9945646d58169e98ef469d0dd1fde14b44a759ba975ffbad519511206b19"
        )

    def test_spellings_do_not_matter(self) -> None:
        one = schema(a=Optional[str], b=Annotated[int, Constraint(ge=0)])  # noqa: UP045  # that is the point
        other = schema(a=str | None, b=int)
        assert schema_hash(one) != schema_hash(other)  # as in documents of the specification's writer
        assert not diff(one, other)


class Inner(BaseModel):
    city: str


class Wider(BaseModel):
    city: str
    zip: str | None = None


class Narrower(BaseModel):
    city: str
    zip: str


WIDER: list[tuple[Any, Any]] = [(int, int | None), (int, float), (str, str | int), (int | None, int | str | None)]
WIDER += [(list[int], list[float | None])]
WIDER += [(Literal["a"], Literal["a", "b"]), (Literal["a"], str), (dict[str, int], dict[str, int | None])]
WIDER += [(Inner, Wider), (Inner, dict[str, str]), (Inner, Any)]


class TestDrift:
    @pytest.mark.parametrize(("before", "after"), WIDER)
    def test_a_wider_type_is_additive_and_the_other_way_round_it_is_not(self, before: Any, after: Any) -> None:
        wider = diff(schema(x=before), schema(x=after))
        assert ([change.field for change in wider.changed], wider.additive) == (["x"], True)
        assert "register" in wider.remedy
        narrower = diff(schema(x=after), schema(x=before))
        assert ([change.field for change in narrower.changed], narrower.additive) == (["x"], False)
        assert "migrate" in narrower.remedy

    def test_other_types_and_new_and_removed_fields(self) -> None:
        for before, after in ((int, str), (Inner, Narrower), (list[int], int), (str, bytes)):
            assert not diff(schema(x=before), schema(x=after)).additive
        assert diff(schema(), schema(x=str | None)).additive
        assert not diff(schema(), schema(x=str)).additive
        assert diff(schema(), schema(x=str), with_default=["x"]).additive
        removed = diff(schema(x=str | None), schema())
        assert ([change.field for change in removed.removed], removed.additive) == (["x"], False)
        plain = schema(x=str)
        indexed = {**plain, "fields": {**plain["fields"], "x": {**plain["fields"]["x"], "index": True}}}
        assert (diff(plain, indexed).additive, str(diff(plain, indexed).changed[0])) == (True, "x is an index now")

    def test_identity(self) -> None:
        order, subscription = type_info(Order).schema, type_info(Subscription).schema
        for old, new in (
            (order, {**order, "left_type": "Person"}),
            (order, {**order, "instance_key_field": None}),
            (order, subscription),
            (schema(), order),
            (schema(), {**schema(), "fields": {}}),
        ):
            drift = diff(old, new)
            assert drift.identity
            assert not drift.additive
            assert "new type" in drift.remedy

    def test_documents_of_other_writers(self) -> None:
        ours = type_info(Customer).schema
        theirs: dict[str, Any] = {
            "entity_name": "Customer",
            "fields": {
                "id": {"primary_key": True, "index": False, "type": "<class 'str'>"},
                "name": {"primary_key": False, "type": "str", "type_spec": STR, "note": "theirs"},
                "tier": {"type": "str | None", "type_spec": {"kind": "primitive", "name": "str | None"}},
            },
        }
        assert not diff(theirs, ours)
        assert not diff(schema(x=Inner), _noted(schema(x=Inner), {"kind": "primitive", "name": "Inner"}))

    def test_it_is_reported_as_an_error(self) -> None:
        error = SchemaDrift(diff(schema(x=int, y=str), schema(x=str, z=str | None)))
        assert error.exit_code == 3
        assert str(error) == (
            "Thing: the class differs from the schema in the store: "
            "z is new and may be empty; y is not in the class; x was int and is str"
        )
        assert error.remedy is not None
        assert not error.drift.additive


def _noted(document: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    fields = {**document["fields"], "x": {**document["fields"]["x"], "type_spec": spec}}
    return {**document, "fields": fields}


VERSION = SchemaVersion.of(1, schema(), created_at="t1", runtime_id="w", reason="register").document()
SECOND = {"schema_version_id": 2, "theirs": True}
GONE = {"commit_id": 4, "purged": True, "updated_at": "t", "theirs": 1}
OTHERS: list[tuple[Any, dict[str, Any]]] = [
    (Types, {"entities": ["A", "B"], "relations": [], "updated_at": "t", "theirs": 1}),
    (Registry, {"entity": {"A": {"x": 1}}, "relation": {}, "updated_at": "t", "theirs": {"y": 2}}),
    (Versions, {"type_kind": "entity", "type_name": "Thing", "versions": [VERSION, VERSION | SECOND], "theirs": 1}),
    (Dropped, {"entity": {"A": GONE}, "relation": {}, "updated_at": "t", "theirs": [1]}),
]


@pytest.mark.parametrize(("kind", "document"), OTHERS)
def test_what_others_have_added_stays_at_every_level(kind: Any, document: dict[str, Any]) -> None:
    assert kind.parse(document, key="k").document() == document


@pytest.mark.parametrize(
    ("parse", "document"),
    [
        (Types.parse, {"entities": "A"}),
        (Registry.parse, {"entity": []}),
        (Versions.parse, {"versions": {}}),
        (Versions.parse, {"versions": [{"schema_version_id": 0}]}),
        (Versions.parse, {"versions": [3]}),
        (Dropped.parse, {"relation": {"A": {}}}),
    ],
)
def test_what_is_no_such_document(parse: Any, document: dict[str, Any]) -> None:
    with pytest.raises(Corrupt, match="meta/schema"):
        parse(document, key="meta/schema/x.json")
