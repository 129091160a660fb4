"""From a Python annotation to a node, or ``UnsupportedAnnotation``. Pure.

Supported is every type whose values can be written as JSON and read back unchanged: the primitives, enums and literals
of one kind, lists, dictionaries with string keys, TypedDicts, dataclasses, pydantic models, ``Any`` for JSON values,
and unions whose members have different JSON forms. ``str | UUID`` is refused: both are strings in JSON, and a row does
not say which of them it holds.
"""

import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel
from typing_extensions import is_typeddict

from holdfast.ontology.types.errors import UnsupportedAnnotation
from holdfast.ontology.types.typespec import (
    INT64_MAX,
    INT64_MIN,
    NULL,
    PRIMITIVES,
    Anything,
    Choice,
    DictOf,
    Flavour,
    ListOf,
    Node,
    OneOf,
    Primitive,
    Record,
    Ref,
    tags,
)

_STRING = "string"
_FORMS = {str: _STRING, int: "whole number", float: "number", bool: "boolean", type(None): "null"}
_SUPPORTED = (
    "str, int, float, bool, datetime, date, Decimal, bytes, UUID, enums, lists, dicts, models, unions with None"
)


def analyse(annotation: Any, where: str) -> Node:
    """The node of an annotation; ``where`` is the field, for the message."""
    return _Analysis(where).node(annotation)


class _Analysis:
    def __init__(self, where: str) -> None:
        self._where = where
        self._open: list[Any] = []
        """The records that enclose the current node."""

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
        if python in self._open:
            return Ref(python.__name__, python)
        self._open.append(python)
        fields = {name: self.node(hint) for name, hint in hints().items()}
        self._open.pop()
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
        taken: dict[str, Node] = {}
        for member in members:
            form = _form(member)
            other = taken.setdefault(form, member)
            if other is not member and not _told_apart(other, member):
                raise UnsupportedAnnotation(
                    f"{self._where}: {_name(other)} and {_name(member)} in one union both become a JSON {form}, "
                    "so a row could not be read back as it was",
                    remedy="keep one of them; records may share a union if a Literal field of each says which it is",
                )
        return OneOf(members)

    def _unsupported(self, annotation: Any, why: str = "", remedy: str = f"supported are {_SUPPORTED}") -> Exception:
        name = annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
        return UnsupportedAnnotation(
            f"{self._where}: a field cannot be of type {name}{f' ({why})' if why else ''}", remedy=remedy
        )


def _has_default(described: "dataclasses.Field[Any]") -> bool:
    return described.default is not dataclasses.MISSING or described.default_factory is not dataclasses.MISSING


def _form(node: Node) -> str:
    """What a value of this node is in JSON."""
    match node:
        case Primitive(python=python):
            return _FORMS.get(python, _STRING)
        case Choice():
            return _FORMS[node.stored]
        case ListOf():
            return "array"
    return "object"


def _told_apart(one: Node, other: Node) -> bool:
    """Whether two records have a Literal field each, of one name and without a value in common."""
    if not isinstance(one, Record) or not isinstance(other, Record):
        return False
    mine, theirs = dict(tags(one)), dict(tags(other))
    return any(not mine[name] & theirs[name] for name in mine.keys() & theirs.keys())


def _name(node: Node) -> str:
    match node:
        case Primitive() | Choice() | Record() | Ref():
            return node.name
        case ListOf():
            return "list"
    return "dict"
