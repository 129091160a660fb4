"""Schema documents: the description of a type in the store, and the differences between two of them. Pure.

    entity    {"entity_name", "fields": {name: {"primary_key", "index", "type", "type_spec"}}}
    relation  {"relation_name", "left_type", "right_type", "instance_key_field",
               "fields": {name: {"index", "type", "type_spec"}}}

The hash covers the whole document. Two documents with different hashes may still describe the same type (``type`` is a
Python string, which writers spell differently), so ``diff`` compares two documents field by field.

A difference is additive if every stored row can still be read: a new field that may be empty or has a default, a type
that allows more than before, an index. It needs a new version of the schema and no rewrite. Any other difference needs
a migration, because rows would be lost or misread.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.base.codec import Document
from holdfast.ontology.types.typespec import (
    Anything,
    Choice,
    DictOf,
    ListOf,
    Node,
    OneOf,
    Primitive,
    Record,
    Ref,
    from_spec,
    from_text,
    plain_spec,
    to_text,
    without_null,
)


def plain_schema(schema: Document) -> Document:
    """The document as the specification's writer spells it, for the objects that it reads. Manifests have more."""
    fields = {
        name: {**field, "type_spec": plain_spec(field["type_spec"])} if "type_spec" in field else field
        for name, field in fields_of(schema).items()
    }
    return {**schema, "fields": fields} if fields else schema


def schema_json(schema: Document) -> str:
    """The text that is hashed, and stored as ``schema_json`` of a version."""
    return json.dumps(plain_schema(schema), sort_keys=True, separators=(",", ":"))


def schema_hash(schema: Document) -> str:
    return hashlib.sha256(schema_json(schema).encode()).hexdigest()


def fields_of(schema: Any) -> dict[str, Document]:
    """The fields of a schema document, ours or a plain writer's."""
    fields = schema.get("fields") if isinstance(schema, dict) else None
    if not isinstance(fields, dict):
        return {}
    return {str(name): field if isinstance(field, dict) else {} for name, field in fields.items()}


@dataclass(frozen=True)
class Change:
    """One difference. ``field`` is None for a difference of the type as a whole."""

    field: str | None
    what: str
    additive: bool

    def __str__(self) -> str:
        return self.what if self.field is None else f"{self.field} {self.what}"


@dataclass(frozen=True)
class Drift:
    type_name: str
    added: tuple[Change, ...] = ()
    removed: tuple[Change, ...] = ()
    changed: tuple[Change, ...] = ()
    identity: tuple[Change, ...] = ()
    """Changes of the identity of objects: the key field, the ends of a relation."""

    @property
    def changes(self) -> tuple[Change, ...]:
        return (*self.identity, *self.added, *self.removed, *self.changed)

    def __bool__(self) -> bool:
        return bool(self.changes)

    @property
    def additive(self) -> bool:
        return all(change.additive for change in self.changes)

    @property
    def remedy(self) -> str:
        if not self:
            return "nothing to do"
        if self.additive:
            return "register the new schema: every stored row can be read with it"
        if self.identity:
            return "make a new type: with another key objects are other objects"
        return "write an upgrader and migrate the type (holdfast onto migrate), or use the class that the store knows"

    def __str__(self) -> str:
        listed = "; ".join(map(str, self.changes)) or "no difference"
        return f"{self.type_name}: the class differs from the schema in the store: {listed}"


def diff(old: Document, new: Document, *, with_default: Collection[str] = ()) -> Drift:
    """The differences from the schema in the store to the one in the code.

    ``with_default`` names the fields of the class with a default, which documents do not record.
    """
    before, after = fields_of(old), fields_of(new)
    name = str(new.get("entity_name") or new.get("relation_name") or old.get("entity_name") or old.get("relation_name"))
    added = [_added(each, after[each], each in with_default) for each in after if each not in before]
    removed = [Change(each, "is not in the class", additive=False) for each in before if each not in after]
    changed = [change for each in after if each in before for change in _changed(each, before[each], after[each])]
    return Drift(name, tuple(added), tuple(removed), tuple(changed), tuple(_identity(old, new)))


def _added(name: str, field: Mapping[str, Any], has_default: bool) -> Change:
    if without_null(node_of(field))[1]:
        return Change(name, "is new and may be empty", additive=True)
    if has_default:
        return Change(name, "is new and has a default", additive=True)
    return Change(name, "is new, and stored rows have no value for it", additive=False)


def _changed(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    old, new = node_of(before), node_of(after)
    if not _same(old, new):
        what = f"was {to_text(old, inner=True)} and is {to_text(new, inner=True)}"
        yield Change(name, what, additive=_covers(new, old))
    if bool(before.get("index")) != bool(after.get("index")):
        yield Change(name, "is an index now" if after.get("index") else "is no index any more", additive=True)


def _identity(old: Document, new: Document) -> Iterator[Change]:
    kinds = [next((kind for kind in ("entity", "relation") if f"{kind}_name" in each), None) for each in (old, new)]
    if kinds[0] != kinds[1]:
        yield Change(None, f"its kind was {kinds[0]} and is {kinds[1]}", additive=False)
        return
    for end in ("left_type", "right_type"):
        if old.get(end) != new.get(end):
            yield Change(None, f"{end} was {old.get(end)} and is {new.get(end)}", additive=False)
    keys = [_key(each) for each in (old, new)]
    if keys[0] != keys[1]:
        yield Change(None, f"the key field was {keys[0]} and is {keys[1]}", additive=False)


def _key(schema: Document) -> str | None:
    if "relation_name" in schema:
        return schema.get("instance_key_field")
    return next((name for name, field in fields_of(schema).items() if field.get("primary_key")), None)


def node_of(field: Mapping[str, Any]) -> Node:
    """The type of a field in a document. Older documents have only the ``type`` string."""
    if "type_spec" in field:
        return from_spec(field["type_spec"])
    return from_text(str(field.get("type", "typing.Any")))


# --- types ---


def _same(old: Node, new: Node) -> bool:
    return _covers(old, new) and _covers(new, old)


def _covers(wide: Node, narrow: Node) -> bool:
    """Whether every value of ``narrow`` can be read as one of ``wide``."""
    match wide, narrow:
        case (Anything(), _):
            return True
        case (_, OneOf(members=members)):
            return all(_covers(wide, member) for member in members)
        case (OneOf(members=members), _):
            return any(_covers(member, narrow) for member in members)
        case (Primitive(python=one), Primitive(python=other)):
            return one is other or (one, other) == (float, int)
        case (Primitive(python=python), Choice()):
            return python is narrow.stored
        case (Choice(values=more), Choice(values=fewer)):
            return set(more) >= set(fewer)
        case (ListOf(item=one), ListOf(item=other)):
            return _covers(one, other)
        case (DictOf(value=one), DictOf(value=other)):
            return _covers(one, other)
        case (DictOf(value=value), Record(fields=fields)) if fields:
            return all(_covers(value, field) for field in fields.values())
        case (Record() | Ref() | Choice(), Record() | Ref() | Choice()):
            return _record_covers(wide, narrow)
    return False


def _record_covers(wide: Node, narrow: Node) -> bool:
    """Compares records by their fields, or by name if only a name is known (a ref, or a class of another writer)."""
    if not isinstance(wide, Record) or not isinstance(narrow, Record) or not wide.fields or not narrow.fields:
        return _name(wide) == _name(narrow)
    if wide.fields.keys() - wide.optional - narrow.fields.keys() or narrow.fields.keys() - wide.fields.keys():
        return False
    lost = (narrow.optional - wide.optional) & wide.fields.keys()
    return not lost and all(_covers(wide.fields[name], field) for name, field in narrow.fields.items())


def _name(node: Node) -> str | None:
    return node.name if isinstance(node, Record | Ref | Choice) else None
