"""A class for a type of which only the schema in the store is known: rows are checked by it as by the user's own.

What a class says beyond its schema (defaults, constraints, upgraders) is not known here. A field that may be empty may
be left out; every other must be given.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.base.codec import Document
from holdfast.ontology.types.declaration import NOT_EMPTY, Declaration
from holdfast.ontology.types.fields import Field
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.schema import fields_of, node_of
from holdfast.ontology.types.typespec import Primitive, without_null


def derived_class(type_id: TypeId, schema: Document, ends: Mapping[str, Document] | None = None) -> type[Mixin]:
    """The class of a type; ``ends`` has the schemas of the entities that a relation relates, as far as known."""
    made: type[Mixin] = _declared(type_id, schema, ends or {}).python
    return made


def _declared(type_id: TypeId, schema: Document, ends: Mapping[str, Document]) -> Declaration:
    found = fields_of(schema)
    key = schema.get("instance_key_field") if type_id.kind == "relation" else None
    fields: dict[str, Field[Any]] = {}
    nodes = {name: node_of(described) for name, described in found.items()}
    for name, described in found.items():
        primary, optional = bool(described.get("primary_key")), without_null(nodes[name])[1]
        index = bool(described.get("index"))
        fields[name] = _field(primary=primary, instance=name == key, optional=optional, index=index)
        fields[name].name = name
        if fields[name].is_key and nodes[name] == Primitive(str):
            nodes[name] = replace(nodes[name], metadata=(NOT_EMPTY,))
    related = None
    if type_id.kind == "relation":
        names = [str(schema.get(side)) for side in ("left_type", "right_type")]
        left, right = (_declared(TypeId("entity", name), ends.get(name) or _KEYED, {}) for name in names)
        related = (left, right)
    python: type[Mixin] = _abstract(type_id.name)
    python.__declaration__ = Declaration(type_id.kind, type_id.name, python, fields, nodes, related)
    return python.__declaration__


def _abstract(name: str) -> type[Mixin]:
    class Made(Mixin, abstract=True):
        """A type that the store knows."""

    Made.__name__ = Made.__qualname__ = name
    return Made


def _field(*, primary: bool, instance: bool, optional: bool, index: bool) -> Field[Any]:
    if primary or instance:
        return Field(primary_key=primary, instance_key=instance, index=index)
    return Field(default=None, index=index) if optional else Field(index=index)


_KEYED: Document = {"fields": {"id": {"primary_key": True, "type_spec": {"kind": "primitive", "name": "str"}}}}
"""An entity of which nothing is known but that it has a key."""
