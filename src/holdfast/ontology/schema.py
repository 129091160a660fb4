"""Schema documents: what the store says of a type. Pure.

    entity    {"entity_name", "fields": {name: {"primary_key", "index", "type", "type_spec"}}}
    relation  {"relation_name", "left_type", "right_type", "instance_key_field",
               "fields": {name: {"index", "type", "type_spec"}}}

The hash covers the whole document. Two documents of different hash may still mean the same type (``type`` is a Python
string, and writers have their habits): whether anything has changed is for ``drift`` to say.
"""

import hashlib
import json
from typing import Any

from holdfast.base.codec import Document
from holdfast.ontology.declaration import Declaration
from holdfast.ontology.typespec import to_spec, to_text


def schema_of(declared: Declaration) -> Document:
    """The document of a declared type."""
    fields = {name: _field(declared, name) for name in declared.fields}
    if declared.ends is None:
        return {"entity_name": declared.name, "fields": fields}
    left, right = declared.ends
    return {
        "relation_name": declared.name,
        "left_type": left.name,
        "right_type": right.name,
        "instance_key_field": declared.key_field,
        "fields": fields,
    }


def _field(declared: Declaration, name: str) -> Document:
    node, field = declared.nodes[name], declared.fields[name]
    described: Document = {"index": field.index, "type": to_text(node), "type_spec": to_spec(node)}
    return {"primary_key": field.primary_key, **described} if declared.kind == "entity" else described


def schema_json(schema: Document) -> str:
    """The text that is hashed, and kept as ``schema_json`` in a version."""
    return json.dumps(schema, sort_keys=True, separators=(",", ":"))


def schema_hash(schema: Document) -> str:
    return hashlib.sha256(schema_json(schema).encode()).hexdigest()


def fields_of(schema: Any) -> dict[str, Document]:
    """The fields of a document, of whoever wrote it."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, dict):
        return {}
    return {str(name): field if isinstance(field, dict) else {} for name, field in fields.items()}
