"""The types of fields as trees of nodes: from Python annotations, and to and from schema documents. Pure.

``analyse`` turns an annotation into a ``Node``, or refuses it by name; validation, JSON and columns are derived from
nodes. Supported is every type whose values can be written as JSON and read back unchanged: the primitives, enums and
literals of one kind, lists, dictionaries with string keys, TypedDicts, dataclasses, pydantic models, ``Any`` for JSON
values, and unions whose members have different JSON forms. ``str | UUID`` is refused: both are strings in JSON, and a
row could not be read back as it was.

A schema document describes a type twice. ``to_spec`` writes a tree and ``to_text`` a string; ``from_spec`` and
``from_text`` read them, also as other writers spell them. A tree has the kinds primitive, list, dict, union, typed_dict
and ref:

    {"kind": "primitive", "name": "str"}                     also NoneType, any; enums add "enum": [values]
    {"kind": "list", "item": ...}   {"kind": "dict", "key": ..., "value": ...}
    {"kind": "union", "members": [...]}                      sorted by their JSON
    {"kind": "typed_dict", "name": ..., "total": true, "fields": {...}}
    {"kind": "ref", "name": ...}                             an enclosing typed_dict

Dataclasses and pydantic models are typed_dict as well: what counts for the store is their shape. Keys that may be
absent are listed under "optional" ("required" where ``total`` is false). The specification's writer prints some types
instead, such as ``str | None``. Our manifests have the tree with that "text"; the specification's objects have the text
alone.
"""

import ast
import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from pydantic import BaseModel
from typing_extensions import is_typeddict

from holdfast.ontology.types.errors import InvalidType
from holdfast.ontology.types.readings import Reading

Spec = dict[str, Any]

Form = Literal["text", "int", "float", "bool", "timestamp", "date", "decimal", "blob", "json", "list", "key"]
"""What the typed column of a field holds.

"json" is the canonical JSON of a field that has no type of its own; "list" is a list of any of the others. "key" is a
text of identity (``entity_key``, ``left_key``, ``instance_key``), from which values are read as the field is declared.
"""
JsonForm = Literal["string", "whole number", "number", "boolean", "null", "array", "object"]


class Scalar(NamedTuple):
    """A primitive type: its name in documents, its typed column, its JSON, and how queries read that."""

    name: str
    form: Form
    json: JsonForm
    reading: Reading | None


PRIMITIVES: dict[type, Scalar] = {
    str: Scalar("str", "text", "string", "text"),
    int: Scalar("int", "int", "whole number", "number"),
    float: Scalar("float", "float", "number", "float"),
    bool: Scalar("bool", "bool", "boolean", "bool"),
    datetime: Scalar("datetime", "timestamp", "string", "datetime"),
    date: Scalar("date", "date", "string", "date"),
    Decimal: Scalar("Decimal", "decimal", "string", "decimal"),
    bytes: Scalar("bytes", "blob", "string", "bytes"),
    UUID: Scalar("UUID", "text", "string", "text"),
    type(None): Scalar("NoneType", "json", "null", None),
}
_BY_NAME: dict[str, type] = {scalar.name: python for python, scalar in PRIMITIVES.items()}
_ALIASES = {"none": "NoneType", "None": "NoneType", "Any": "any", "List": "list", "Dict": "dict"}

Flavour = Literal["typed_dict", "dataclass", "model"]


@dataclass(frozen=True, kw_only=True)
class Node:
    metadata: tuple[Any, ...] = field(default=(), compare=False)
    """Constraints from ``Annotated``, for the validator."""
    text: str | None = field(default=None, compare=False)
    """The annotation of a union, a literal or a bare container, as Python prints it."""
    flat: bool = field(default=False, compare=False)
    """The specification's writer stores the text instead of a tree."""


@dataclass(frozen=True)
class Primitive(Node):
    python: type

    @property
    def name(self) -> str:
        return PRIMITIVES[self.python].name


@dataclass(frozen=True)
class Anything(Node):
    """Any JSON value."""


@dataclass(frozen=True)
class Choice(Node):
    """An enum, or a ``Literal`` (then ``python`` is None), of strings or of whole numbers."""

    name: str
    values: tuple[str, ...] | tuple[int, ...]
    python: type[Enum] | None = None

    @property
    def stored(self) -> type:
        return type(self.values[0])


@dataclass(frozen=True)
class ListOf(Node):
    item: Node


@dataclass(frozen=True)
class DictOf(Node):
    """Keys are strings, as in JSON."""

    value: Node


@dataclass(frozen=True)
class OneOf(Node):
    """A union, in the order in which it was written."""

    members: tuple[Node, ...]


@dataclass(frozen=True)
class Record(Node):
    """Named fields. ``python`` is None where only a schema document is known."""

    name: str
    fields: Mapping[str, Node] = field(hash=False)
    optional: frozenset[str] = frozenset()
    flavour: Flavour = "typed_dict"
    python: Any = None


@dataclass(frozen=True)
class Ref(Node):
    """An enclosing record, inside a record that contains itself."""

    name: str
    python: Any = None


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
NULL = Primitive(type(None))


def without_null(node: Node) -> tuple[Node, bool]:
    """The node without None, and whether None is allowed."""
    if isinstance(node, Anything) or node == NULL:
        return node, True
    if not isinstance(node, OneOf) or NULL not in node.members:
        return node, False
    rest = tuple(member for member in node.members if member != NULL)
    return (rest[0] if len(rest) == 1 else OneOf(rest, metadata=node.metadata)), True


def form_of(node: Node) -> Form:
    """The form of the typed column of a field of this type."""
    match without_null(node)[0]:
        case Primitive(python=python):
            return PRIMITIVES[python].form
        case Choice() as choice:
            return "text" if choice.stored is str else "int"
        case ListOf(item=item):
            return "json" if form_of(item) == "json" else "list"
    return "json"


def json_form(node: Node) -> JsonForm:
    """What a value of this node is in JSON."""
    match node:
        case Primitive(python=python):
            return PRIMITIVES[python].json
        case Choice() as choice:
            return PRIMITIVES[choice.stored].json
        case ListOf():
            return "array"
    return "object"


# --- nodes to documents ---


def to_spec(node: Node) -> Spec:
    return {**_tree(node), "text": node.text} if node.flat else _tree(node)


def plain_spec(spec: Any) -> Any:
    """The tree as the specification's writer makes it, with text for some types and without our additions."""
    if not isinstance(spec, Mapping):
        return spec
    if "text" in spec:
        return {"kind": "primitive", "name": spec["text"]}
    known = {name: value for name, value in spec.items() if name not in ("enum", "optional", "required")}
    for name in ("item", "key", "value"):
        if name in known:
            known[name] = plain_spec(known[name])
    if isinstance(known.get("members"), list):
        known["members"] = _sorted(map(plain_spec, known["members"]))
    if isinstance(known.get("fields"), Mapping):
        known["fields"] = {name: plain_spec(inner) for name, inner in known["fields"].items()}
    return known


def _tree(node: Node) -> Spec:
    match node:
        case Primitive():
            return {"kind": "primitive", "name": node.name}
        case Anything():
            return {"kind": "primitive", "name": "any"}
        case Choice(name=name, values=values):
            return {"kind": "primitive", "name": name, "enum": sorted(values)}
        case ListOf(item=item):
            return {"kind": "list", "item": to_spec(item)}
        case DictOf(value=value):
            return {"kind": "dict", "key": to_spec(Primitive(str)), "value": to_spec(value)}
        case OneOf(members=members):
            return {"kind": "union", "members": _sorted(to_spec(member) for member in members)}
        case Record():
            return _record_spec(node)
        case Ref(name=name):
            return {"kind": "ref", "name": name}
    raise TypeError(f"{node!r} is not a node")


def _record_spec(node: Record) -> Spec:
    total = not node.optional or node.optional != node.fields.keys()
    spec: Spec = {
        "kind": "typed_dict",
        "name": node.name,
        "total": total,
        "fields": {name: to_spec(node.fields[name]) for name in sorted(node.fields)},
    }
    if total and node.optional:
        spec["optional"] = sorted(node.optional)
    return spec


def _sorted(specs: Any) -> list[Spec]:
    return sorted(specs, key=lambda spec: json.dumps(spec, sort_keys=True))


def to_text(node: Node, *, inner: bool = False) -> str:
    """The ``type`` string, as Python prints the annotation."""
    if node.text is not None:
        return f"<class '{node.text}'>" if node.text in ("list", "dict") and not inner else node.text
    match node:
        case Primitive(python=python):
            return "None" if python is type(None) and inner else _class_text(python, inner=inner)
        case Anything():
            return "typing.Any"
        case Choice(python=None, values=values):
            return f"typing.Literal[{', '.join(map(repr, values))}]"
        case Choice(python=python) | Record(python=python) if python is not None:
            return _class_text(python, inner=inner)
        case ListOf(item=item):
            return f"list[{to_text(item, inner=True)}]"
        case DictOf(value=value):
            return f"dict[str, {to_text(value, inner=True)}]"
        case OneOf(members=members):
            return " | ".join(to_text(member, inner=True) for member in members)
        case Record(name=name) | Ref(name=name) | Choice(name=name):
            return name
    raise TypeError(f"{node!r} is not a node")


def _class_text(python: Any, *, inner: bool) -> str:
    name = python.__qualname__ if python.__module__ == "builtins" else f"{python.__module__}.{python.__qualname__}"
    if inner:
        return name
    return f"<enum '{python.__name__}'>" if issubclass(python, Enum) else f"<class '{name}'>"


# --- documents to nodes ---


def from_spec(spec: Any) -> Node:
    """The node of a type tree, ours or a plain writer's. A missing or unreadable tree allows any value."""
    if not isinstance(spec, Mapping):
        return Anything()
    if "text" in spec:
        made = from_spec({name: value for name, value in spec.items() if name != "text"})
        return replace(made, text=str(spec["text"]), flat=True)
    match spec.get("kind"):
        case "primitive":
            return _from_name(str(spec.get("name")), spec.get("enum"))
        case "list":
            return ListOf(from_spec(spec.get("item")))
        case "dict":
            return DictOf(from_spec(spec.get("value")))
        case "union":
            return _from_union(spec.get("members"))
        case "typed_dict":
            return _from_record(spec)
        case "ref":
            return Ref(str(spec.get("name")))
    return Anything()


def _from_union(members: Any) -> Node:
    if not isinstance(members, list):
        return Anything()
    # None comes last, as people write it.
    return OneOf(tuple(sorted(map(from_spec, members), key=lambda member: member == NULL)))


def _from_record(spec: Mapping[str, Any]) -> Node:
    described = spec.get("fields")
    fields = {name: from_spec(inner) for name, inner in described.items()} if isinstance(described, Mapping) else {}
    if spec.get("total", True):
        optional = frozenset(spec.get("optional", ())) & fields.keys()
    else:
        optional = frozenset(fields) - frozenset(spec.get("required", ()))
    return Record(str(spec.get("name")), fields, optional)


def _from_name(name: str, values: Any) -> Node:
    if isinstance(values, list) and {type(value) for value in values} in ({str}, {int}):
        return Choice(name, tuple(values))
    found = _known(name)
    # The specification's writer stores the text of a whole annotation as the name, such as "str | None".
    return found if found is not None else replace(from_text(name), text=name, flat=True)


def _known(name: str) -> Node | None:
    name = _ALIASES.get(name, name)
    if name == "any":
        return Anything()
    return Primitive(_BY_NAME[name]) if name in _BY_NAME else None


def from_text(text: str) -> Node:
    """The node of a ``type`` string, for documents without a tree. An unknown class is a record without fields."""
    found = re.fullmatch(r"<(?:class|enum) '([\w.<>]+)'>", text)
    try:
        tree = ast.parse(found[1].rpartition(".")[2] if found is not None else text, mode="eval")
    except (SyntaxError, ValueError):
        return Anything()
    return _from_ast(tree.body)


def _from_ast(tree: ast.expr) -> Node:
    match tree:
        case ast.Constant(value=None):
            return NULL
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _named(name)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _union(_from_ast(left), _from_ast(right))
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            return _generic(name, inner.elts if isinstance(inner, ast.Tuple) else [inner])
    return Anything()


def _named(name: str) -> Node:
    match _ALIASES.get(name, name):
        case "list":
            return ListOf(Anything())
        case "dict":
            return DictOf(Anything())
    return _known(name) or Record(name, {})


def _generic(name: str, inner: list[ast.expr]) -> Node:
    match _ALIASES.get(name, name), inner:
        case "list", [item]:
            return ListOf(_from_ast(item))
        case "dict", [_, value]:
            return DictOf(_from_ast(value))
        case "Optional", [item]:
            return _union(_from_ast(item), NULL)
        case "Union", [*members]:
            return _union(*map(_from_ast, members))
        case "Annotated", [item, *_]:
            return _from_ast(item)
        case "Literal", [*values] if all(isinstance(value, ast.Constant) for value in values):
            return _from_name("Literal", [value.value for value in values if isinstance(value, ast.Constant)])
    return Anything()


def _union(*members: Node) -> Node:
    flat: list[Node] = []
    for member in members:
        flat += member.members if isinstance(member, OneOf) else [member]
    return OneOf(tuple(flat))


# --- from Python annotations ---

_SUPPORTED = (
    "str, int, float, bool, datetime, date, Decimal, bytes, UUID, enums, lists, dicts, models, unions with None"
)


def analyse(annotation: Any, where: str) -> Node:
    """The node of an annotation; ``where`` is the field, for the message."""
    return _Analysis(where).node(annotation)


class _Analysis:
    def __init__(self, where: str) -> None:
        self._where = where
        self._enclosing: list[Any] = []
        """The classes of the records around the current node."""

    def node(self, annotation: Any) -> Node:
        if annotation is None:
            return NULL
        if isinstance(annotation, type) and annotation in PRIMITIVES:
            return Primitive(annotation)
        if annotation is Any:
            return Anything()
        if isinstance(annotation, NewType):
            return self.node(annotation.__supertype__)
        if hasattr(annotation, "__value__"):  # a type alias made by a `type` statement
            return self.node(annotation.__value__)
        if annotation in (list, dict):
            text: str = annotation.__name__
            return (
                ListOf(Anything(), text=text, flat=True) if text == "list" else DictOf(Anything(), text=text, flat=True)
            )
        if isinstance(annotation, type) and get_origin(annotation) is None:
            return self._class(annotation)
        return self._special(annotation)

    def _special(self, annotation: Any) -> Node:
        origin, inner = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return dataclasses.replace(self.node(inner[0]), metadata=inner[1:])
        if origin in (typing.Union, types.UnionType):
            made = self._union(tuple(map(self.node, inner)))
            if "Annotated[" in str(annotation):
                return made
            # The specification's writer prints ``str | None`` and makes a tree of ``Optional[str]``.
            return dataclasses.replace(made, text=str(annotation), flat=origin is types.UnionType)
        if origin is Literal:
            return dataclasses.replace(self._literal(inner), text=str(annotation), flat=True)
        if origin is list:
            return ListOf(self.node(inner[0]))
        if origin is dict:
            if inner[0] is not str:
                raise self._unsupported(annotation, "the keys of a dict must be str, as in JSON")
            return DictOf(self.node(inner[1]))
        if origin in (Required, NotRequired):
            return self.node(inner[0])
        raise self._unsupported(annotation)

    def _class(self, annotation: Any) -> Node:
        if issubclass(annotation, Enum):
            return self._choice(annotation, annotation.__name__, [member.value for member in annotation], annotation)
        if is_typeddict(annotation):
            required = annotation.__required_keys__
            return self._record(
                annotation, "typed_dict", lambda: self._hints(annotation), lambda name: name in required
            )
        if issubclass(annotation, BaseModel):
            return self._model(annotation)
        if dataclasses.is_dataclass(annotation):
            described = {each.name: each for each in dataclasses.fields(annotation)}
            return self._record(
                annotation,
                "dataclass",
                lambda: {name: hint for name, hint in self._hints(annotation).items() if name in described},
                lambda name: not _has_default(described[name]),
            )
        if hasattr(annotation, "__type_info__"):
            raise self._unsupported(
                annotation, "a field cannot hold an entity or a relation", "relate the two entities with a Relation"
            )
        raise self._unsupported(annotation)

    def _model(self, annotation: type[BaseModel]) -> Node:
        if annotation.model_config.get("extra") == "allow":
            raise self._unsupported(annotation, 'a model with extra="allow" has fields that no schema knows')
        described = annotation.model_fields
        return self._record(
            annotation,
            "model",
            lambda: {
                name: Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
                for name, info in described.items()
            },
            lambda name: described[name].is_required(),
        )

    def _record(
        self, python: Any, flavour: Flavour, hints: Callable[[], dict[str, Any]], required: Callable[[str], bool]
    ) -> Node:
        if python in self._enclosing:
            return Ref(python.__name__, python)
        self._enclosing.append(python)
        fields = {name: self.node(hint) for name, hint in hints().items()}
        self._enclosing.pop()
        return Record(
            python.__name__, fields, frozenset(name for name in fields if not required(name)), flavour, python
        )

    def _hints(self, annotation: Any) -> dict[str, Any]:
        try:
            return get_type_hints(annotation, include_extras=True)
        except NameError as error:
            raise self._unsupported(annotation, f"an annotation inside it cannot be resolved: {error}") from error

    def _literal(self, values: tuple[Any, ...]) -> Node:
        rest = [value for value in values if value is not None]
        choice = self._choice(Literal.__getitem__(values), "Literal", rest, None) if rest else NULL
        return choice if len(rest) == len(values) or not rest else OneOf((choice, NULL))

    def _choice(self, annotation: Any, name: str, values: list[Any], python: type[Enum] | None) -> Node:
        kinds = {type(value) for value in values}
        if kinds not in ({str}, {int}):
            raise self._unsupported(annotation, "its values must all be strings, or all whole numbers")
        if kinds == {int} and not all(INT64_MIN <= value <= INT64_MAX for value in values):
            raise self._unsupported(annotation, "its whole numbers must fit into int64")
        return Choice(name, tuple(values), python)

    def _union(self, members: tuple[Node, ...]) -> Node:
        if any(isinstance(member, Anything) for member in members):
            return Anything()
        by_form: dict[str, Node] = {}
        for member in members:
            form = json_form(member)
            other = by_form.setdefault(form, member)
            if other is not member and not _distinguishable(other, member):
                raise InvalidType(
                    f"{self._where}: {_name(other)} and {_name(member)} in one union both become a JSON {form}, "
                    "so a row could not be read back as it was",
                    remedy="keep one of them; records may share a union if a Literal field of each says which it is",
                )
        return OneOf(members)

    def _unsupported(self, annotation: Any, why: str = "", remedy: str = f"supported are {_SUPPORTED}") -> Exception:
        name = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
        return InvalidType(
            f"{self._where}: a field cannot be of type {name}{f' ({why})' if why else ''}", remedy=remedy
        )


def _has_default(described: "dataclasses.Field[Any]") -> bool:
    return described.default is not dataclasses.MISSING or described.default_factory is not dataclasses.MISSING


def _tags(record: Record) -> Iterator[tuple[str, frozenset[Any]]]:
    """The Literal and enum fields of a record, with their values."""
    for name, node in record.fields.items():
        if isinstance(node, Choice):
            yield name, frozenset(node.values)


def _distinguishable(one: Node, other: Node) -> bool:
    """Whether two records have a Literal field of the same name without common values."""
    if not isinstance(one, Record) or not isinstance(other, Record):
        return False
    first, second = dict(_tags(one)), dict(_tags(other))
    return any(not first[name] & second[name] for name in first.keys() & second.keys())


def _name(node: Node) -> str:
    match node:
        case Primitive() | Choice() | Record() | Ref():
            return node.name
        case ListOf():
            return "list"
    return "dict"
