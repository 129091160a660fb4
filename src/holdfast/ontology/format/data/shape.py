"""Shape: what a query knows of a type, from its class or, where there is none, from the schema in the store."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from holdfast.base.codec import Document
from holdfast.ontology.format.data.columns import Form, form_of
from holdfast.ontology.format.data.upgrade import Upgrades
from holdfast.ontology.types import names
from holdfast.ontology.types.declaration import Declaration
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import fields_of, node_of
from holdfast.ontology.types.typespec import Node, Primitive


@dataclass(frozen=True, eq=False)
class Shape:
    type_id: TypeId
    nodes: Mapping[str, Node]
    """Of all fields, the key included."""
    key_field: str | None
    """The primary key of an entity, the instance key of a relation that has one."""
    ends: tuple[TypeId, TypeId] | None = None
    upgrades: Upgrades | None = None
    """What is done to rows of older versions when they are read."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return names.ENTITY_KEYS if self.type_id.kind == "entity" else names.RELATION_KEYS

    @cached_property
    def payload(self) -> tuple[str, ...]:
        """The fields that have a typed column."""
        own = self.type_id.kind == "entity"
        return tuple(sorted(name for name in self.nodes if own or name != self.key_field))

    @cached_property
    def key_text(self) -> str | None:
        """The field of an entity that is its key as it is: a text, which nothing changes when rows are read."""
        plain = self.type_id.kind == "entity" and self.key_field is not None and self.upgrades is None
        return self.key_field if plain and self.nodes[self.key_field or ""] == Primitive(str) else None

    @cached_property
    def forms(self) -> Mapping[str, Form]:
        return {name: form_of(self.nodes[name]) for name in self.payload}


def of_class(declared: Declaration) -> Shape:
    ends = None if declared.ends is None else (declared.ends[0].type_id, declared.ends[1].type_id)
    return Shape(declared.type_id, declared.nodes, declared.key_field, ends, Upgrades.of(declared))


def of_schema(type_id: TypeId, schema: Document) -> Shape:
    """From a schema document, ours or a plain writer's."""
    fields = fields_of(schema)
    nodes = {name: node_of(field) for name, field in fields.items()}
    if type_id.kind == "relation":
        key = schema.get("instance_key_field")
        ends = (TypeId("entity", str(schema.get("left_type"))), TypeId("entity", str(schema.get("right_type"))))
        return Shape(type_id, nodes, key if key in nodes else None, ends)
    key = next((name for name, field in fields.items() if field.get("primary_key")), None)
    first = {key: nodes[key]} if key is not None else {}  # a document is sorted by name; people look for the key first
    return Shape(type_id, {**first, **nodes}, key)


def column_names(shape: Shape) -> tuple[str, ...]:
    """The columns of a table of this type."""
    return (*(() if shape.ends is None else ("left_key", "right_key")), *shape.nodes)
