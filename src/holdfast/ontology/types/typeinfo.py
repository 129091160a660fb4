"""``TypeInfo``: one type, for sessions, commits, queries and compaction.

It is made from a class (``model``) or from a schema document of the store (``of_schema``). The latter has no class to
make objects of, and nothing that documents do not record: defaults, constraints, upgraders. ``type_info`` returns that
of a class.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Any
from uuid import UUID

from pydantic import StringConstraints
from pydantic_core import SchemaValidator

from holdfast.base.codec import Document
from holdfast.base.errors import Invalid
from holdfast.ontology.types import names
from holdfast.ontology.types.codecs import Codec, rows_reader
from holdfast.ontology.types.errors import InvalidQuery, InvalidValue, unknown
from holdfast.ontology.types.expressions.ast import End
from holdfast.ontology.types.fields import MISSING, Field
from holdfast.ontology.types.refs import Kind, TypeId
from holdfast.ontology.types.schema import Drift, diff, fields_of, node_of, schema_hash
from holdfast.ontology.types.typespec import Form, Node, Primitive, form_of, to_spec, to_text, without_null
from holdfast.ontology.types.upgrade import Step
from holdfast.ontology.types.validation import Validator

_SHARED = (str, int, float, bool, bytes, type(None), Decimal, UUID, date, datetime, Enum)
"""Immutable types. Defaults of these types are shared by all objects."""

NOT_EMPTY = StringConstraints(min_length=1)
"""Constraint of a text key: the empty text means "no instance key"."""

UNKEYED = ""
"""The instance key of a relation that has none."""
ENDS = ("left_key", "right_key")
"""The fields of a relation with the keys of its ends, as text."""


@dataclass(eq=False)
class TypeInfo:
    """One type. Its name is that of the class, unless the class declares another."""

    type_id: TypeId
    fields: Mapping[str, Field[Any]]
    nodes: Mapping[str, Node]
    """The types of all fields, including the key."""
    ends: "tuple[TypeInfo, TypeInfo] | None" = None
    """The two entity types of a relation."""
    python: Any = None
    """The class; None if only the store's schema is known."""
    stored: Document | None = None
    """The schema document that it was made from, if any."""
    version_id: int | None = None
    """The version of that document in the store; None for a class, and if the store has no document."""
    upgraders: tuple[Step, ...] = field(default=(), init=False)
    """How rows of older versions are upgraded when they are read. Declared after the class."""

    # --- names ---

    @property
    def name(self) -> str:
        return self.type_id.name

    @property
    def kind(self) -> Kind:
        return self.type_id.kind

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return names.key_columns(self.kind)

    @cached_property
    def key_field(self) -> str | None:
        """The primary key of an entity, or the instance key of a relation, if it has one."""
        return next((name for name, each in self.fields.items() if each.is_key), None)

    @cached_property
    def key_is_text(self) -> bool:
        return self.key_field is not None and self.nodes[self.key_field] == Primitive(str)

    @property
    def key_text(self) -> str | None:
        """The key field of an entity, if its values are exactly the texts of the key column."""
        return self.key_field if self.kind == "entity" and self.key_is_text and not self.upgraders else None

    @cached_property
    def payload(self) -> tuple[str, ...]:
        """The fields in ``fields_json``, sorted. They have typed columns. An instance key has a system column."""
        left_out = {self.key_field if self.kind == "relation" else None, *names.SYSTEM_COLUMNS}
        return tuple(sorted(name for name in self.nodes if name not in left_out))

    @cached_property
    def columns(self) -> Mapping[str, Node]:
        """The types of the fields with a typed column."""
        return {name: self.nodes[name] for name in self.payload}

    @cached_property
    def forms(self) -> Mapping[str, Form]:
        """The form of each typed column."""
        return {name: form_of(node) for name, node in self.columns.items()}

    @property
    def shown(self) -> tuple[str, ...]:
        """The columns of a table of this type, as users see them."""
        return (*(() if self.ends is None else ENDS), *self.nodes)

    # --- queries ---

    def at_end(self, end: End) -> "TypeInfo":
        """This type, or the entity type at an end of the relation."""
        if end == "own":
            return self
        if self.ends is None:
            raise InvalidQuery(f"{self.name} is not a relation: it has no {end} end")
        return self.ends[0 if end == "left" else 1]

    def node_of(self, end: End, name: str) -> Node:
        """The type of a field; ``InvalidQuery`` with a suggestion if there is no such field."""
        owner = self.at_end(end)
        if name in ENDS and owner.ends is not None:
            return Primitive(str)
        if name not in owner.nodes:
            raise unknown(owner.name, name, [*owner.nodes, *(ENDS if owner.ends is not None else ())])
        return owner.nodes[name]

    # --- values ---

    @cached_property
    def codecs(self) -> Mapping[str, Codec]:
        return {name: Codec(node) for name, node in self.nodes.items()}

    @cached_property
    def reader(self) -> SchemaValidator:
        """Reads ``fields_json``."""
        return rows_reader({name: self.nodes[name] for name in self.fields if name in self.payload})

    @cached_property
    def validator(self) -> Validator:
        return Validator(self.name, self.nodes)

    def completed(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values, and the defaults of fields without a value."""
        whole = {**self._constants, **values}
        for name in self._made:
            if name not in whole:
                whole[name] = self._default(name)
        return whole

    def default_of(self, name: str) -> Any:
        """A validated default, which no other object shares."""
        return self.validator.one(name, self._default(name))

    @cached_property
    def _constants(self) -> Mapping[str, Any]:
        """Defaults that all objects share."""
        return {
            name: each.default
            for name, each in self.fields.items()
            if each.default is not MISSING and isinstance(each.default, _SHARED)
        }

    @cached_property
    def _made(self) -> tuple[str, ...]:
        """Fields with a default that is made for each object."""
        return tuple(name for name, each in self.fields.items() if each.has_default and name not in self._constants)

    def _default(self, name: str) -> Any:
        each = self.fields[name]
        return copy.deepcopy(each.default) if each.default_factory is None else each.default_factory()

    # --- the schema ---

    @cached_property
    def schema(self) -> Document:
        """The document in the store, or that of the class."""
        if self.stored is not None:
            return self.stored
        described = {name: self._described(name) for name in self.fields}
        if self.ends is None:
            return {"entity_name": self.name, "fields": described}
        left, right = self.ends
        return {
            "relation_name": self.name,
            "left_type": left.name,
            "right_type": right.name,
            "instance_key_field": self.key_field,
            "fields": described,
        }

    def _described(self, name: str) -> Document:
        node, each = self.nodes[name], self.fields[name]
        described: Document = {"index": each.index, "type": to_text(node), "type_spec": to_spec(node)}
        return {"primary_key": each.primary_key, **described} if self.kind == "entity" else described

    @cached_property
    def schema_hash(self) -> str:
        return schema_hash(self.schema)

    def drift(self, stored: Document) -> Drift:
        """The differences from a schema in the store. False if there are none, even if the hashes differ."""
        defaults = [name for name, each in self.fields.items() if each.has_default]
        return diff(stored, self.schema, with_default=defaults)


def type_info(python: type) -> TypeInfo:
    """The type of a class; ``Invalid`` if it is not a concrete type."""
    if not isinstance(python, type):
        raise Invalid(
            f"an entity or relation type was expected, found a {type(python).__name__}: {python!r:.80}",
            remedy="give the types themselves as arguments, as in hf.ontology(Customer, Order)",
        )
    found = getattr(python, "__type_info__", None)  # every subclass has its own, if only None
    if isinstance(found, TypeInfo):
        return found
    raise Invalid(
        f"{python.__name__} is not an entity or relation type",
        remedy="derive it from Entity or Relation, without abstract=True",
    )


# --- from the store ---


def of_schema(
    type_id: TypeId,
    schema: Document,
    ends: Mapping[str, Document] | None = None,
    *,
    version_id: int | None = None,
) -> TypeInfo:
    """A type from a schema document, ours or a plain writer's. ``ends`` has the known documents of the entities at the
    ends of a relation. A field that may be empty is optional; every other is required.
    """
    described = fields_of(schema)
    nodes = {name: node_of(each) for name, each in described.items()}
    key, related = None, None
    if type_id.kind == "relation":
        key = schema.get("instance_key_field")
        left, right = (str(schema.get(side)) for side in ("left_type", "right_type"))
        known = ends or {}
        related = (
            of_schema(TypeId("entity", left), known.get(left) or _KEYED),
            of_schema(TypeId("entity", right), known.get(right) or _KEYED),
        )
    else:
        key = next((name for name, each in described.items() if each.get("primary_key")), None)
        if key is not None:  # documents are sorted by name; the key comes first in tables
            nodes = {key: nodes[key], **nodes}
    if key in nodes and nodes[key] == Primitive(str):
        nodes[key] = replace(nodes[key], metadata=(NOT_EMPTY,))
    fields = {
        name: _field(name, node, key=type_id.kind if name == key else None, index=bool(described[name].get("index")))
        for name, node in nodes.items()
    }
    return TypeInfo(type_id, fields, nodes, related, stored=schema, version_id=version_id)


def _field(name: str, node: Node, *, key: Kind | None, index: bool) -> Field[Any]:
    made: Field[Any]
    if key is not None:
        made = Field(primary_key=key == "entity", instance_key=key == "relation", index=index)
    else:
        made = Field(default=None, index=index) if without_null(node)[1] else Field(index=index)
    made.name = name
    return made


_KEYED: Document = {"fields": {"id": {"primary_key": True, "type_spec": {"kind": "primitive", "name": "str"}}}}
"""An entity of which only the key is known."""


# --- keys ---


def key_text(value: Any) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def end_key(end: TypeInfo, value: Any, where: str) -> str:
    """The key of one end of a relation, from the key itself or from the entity."""
    name = end.key_field or ""
    if end.python is not None and isinstance(value, end.python):
        return key_text(value.__dict__[name])
    if type(value) is str and value and end.key_is_text:
        return value
    try:
        return key_text(end.validator.one(name, value))
    except InvalidValue as error:
        raise InvalidValue(
            f"{where} must be a {end.name} or its key: {error}",
            type_name=where.partition(".")[0],
            field=where.partition(".")[2],
        ) from error
