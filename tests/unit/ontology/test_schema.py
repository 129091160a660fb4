"""Schema documents, their hashes, and how two of them differ."""

import hashlib
from typing import Annotated, Any, Literal, Optional, TypedDict

import pytest
from pydantic import BaseModel
from pydantic import Field as Constraint

from holdfast.base.errors import Corrupt
from holdfast.ontology import Entity, Field, Relation, SchemaDrift
from holdfast.ontology.format.schema_objects import Dropped, Registry, SchemaVersion, Types, Versions
from holdfast.ontology.types.schema import diff, schema_hash, schema_json
from holdfast.ontology.types.typeinfo import type_info
from tests.unit.ontology.shop import Customer, Order, Product, Subscription

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
    def test_of_an_entity(self) -> None:
        assert type_info(Customer).schema == {
            "entity_name": "Customer",
            "fields": {
                "id": {"primary_key": True, "index": False, "type": "<class 'str'>", "type_spec": STR},
                "name": {"primary_key": False, "index": False, "type": "<class 'str'>", "type_spec": STR},
                "tier": {
                    "primary_key": False,
                    "index": False,
                    "type": "str | None",
                    "type_spec": {"kind": "union", "members": [NONE, STR], "text": "str | None"},
                },
            },
        }
        assert type_info(Product).schema["fields"]["title"]["index"] is True

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

    def test_the_hash_is_of_the_sorted_compact_text(self) -> None:
        found = {"b": "ü", "a": [1, None]}
        assert schema_json(found) == '{"a":[1,null],"b":"\\u00fc"}'
        assert schema_hash(found) == hashlib.sha256(b'{"a":[1,null],"b":"\\u00fc"}').hexdigest()

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


class Tree(TypedDict):
    children: list["Tree"]


class TestDrift:
    @pytest.mark.parametrize(
        "annotation", [str, int | None, list[Inner], dict[str, Any], Literal["a", "b"], Tree, int | str | None]
    )
    def test_none(self, annotation: Any) -> None:
        drift = diff(schema(x=annotation), schema(x=annotation))
        assert not drift
        assert drift.additive

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (int, int | None),
            (int, float),
            (str, str | int),
            (int | None, int | str | None),
            (Literal["a"], Literal["a", "b"]),
            (Literal["a"], str),
            (list[int], list[float | None]),
            (Inner, Wider),
            (Inner, dict[str, str]),
            (Inner, Any),
            (dict[str, int], dict[str, int | None]),
        ],
    )
    def test_a_wider_type_is_additive_and_the_other_way_round_it_is_not(self, before: Any, after: Any) -> None:
        wider = diff(schema(x=before), schema(x=after))
        assert ([change.field for change in wider.changed], wider.additive) == (["x"], True)
        assert "register" in wider.remedy
        narrower = diff(schema(x=after), schema(x=before))
        assert ([change.field for change in narrower.changed], narrower.additive) == (["x"], False)
        assert "migrate" in narrower.remedy

    @pytest.mark.parametrize(("before", "after"), [(int, str), (Inner, Narrower), (list[int], int), (str, bytes)])
    def test_another_type_is_not_additive(self, before: Any, after: Any) -> None:
        assert not diff(schema(x=before), schema(x=after)).additive

    def test_new_fields(self) -> None:
        old = schema()
        assert diff(old, schema(x=str | None)).additive
        assert not diff(old, schema(x=str)).additive
        assert diff(old, schema(x=str), with_default=["x"]).additive

    def test_removed_fields(self) -> None:
        drift = diff(schema(x=str | None), schema())
        assert ([change.field for change in drift.removed], drift.additive) == (["x"], False)

    def test_an_index(self) -> None:
        old = schema(x=str)
        new = {**old, "fields": {**old["fields"], "x": {**old["fields"]["x"], "index": True}}}
        assert diff(old, new).additive
        assert str(diff(old, new).changed[0]) == "x is an index now"

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

    def test_it_is_told_as_an_error(self) -> None:
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


class TestCatalog:
    """What others have added stays, at every level."""

    def test_types(self) -> None:
        document = {"entities": ["B", "A"], "relations": [], "updated_at": "t", "theirs": 1}
        assert Types.parse(document, key="k").document() == {**document, "entities": ["A", "B"]}

    def test_registry(self) -> None:
        document = {"entity": {"A": {"x": 1}}, "relation": {}, "updated_at": "t", "theirs": {"y": 2}}
        assert Registry.parse(document, key="k").document() == document

    def test_versions(self) -> None:
        first = SchemaVersion.of(1, schema(), created_at="t1", runtime_id="w", reason="register").document()
        second = {**first, "schema_version_id": 2, "theirs": True}
        document = {"type_kind": "entity", "type_name": "Thing", "versions": [second, first], "more": 1}
        found = Versions.parse(document, key="k")
        assert found.latest is not None
        assert found.latest.schema_version_id == 2
        assert found.document() == {**document, "versions": [first, second]}
        assert first["schema_hash"] == schema_hash(schema())

    def test_dropped(self) -> None:
        gone = {"commit_id": 4, "purged": True, "updated_at": "t", "theirs": 1}
        document = {"entity": {"A": gone}, "relation": {}, "updated_at": "t", "more": [1]}
        assert Dropped.parse(document, key="k").document() == document

    def test_what_is_not_there_is_empty(self) -> None:
        assert Types.parse({}, key="k").document() == {"entities": [], "relations": [], "updated_at": ""}
        assert Registry.parse({}, key="k").document() == {"entity": {}, "relation": {}, "updated_at": ""}
        assert Dropped.parse({}, key="k").document() == {"entity": {}, "relation": {}, "updated_at": ""}
        assert Versions.parse({}, key="k").latest is None

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
    def test_what_is_no_such_document(self, parse: Any, document: dict[str, Any]) -> None:
        with pytest.raises(Corrupt, match="meta/schema"):
            parse(document, key="meta/schema/x.json")


def test_a_relation_without_fields() -> None:
    class Likes(Relation[Customer, Product]):
        pass

    assert type_info(Likes).schema["fields"] == {}
