"""What a class statement declares, collected and checked when the class is made.

``declare(cls)`` gives its ``TypeInfo``, or raises a subclass of ``InvalidType`` that names the field and what to write
instead.
"""

import inspect
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime
from types import FrameType
from typing import Any, ClassVar, ForwardRef, TypeVar, get_args, get_origin, get_type_hints
from uuid import UUID

from holdfast.ontology.types import names
from holdfast.ontology.types.annotations import analyse
from holdfast.ontology.types.errors import (
    InvalidType,
    InvalidValue,
    MissingKey,
    NotAnEntity,
    TooManyKeys,
    UnfitKey,
    UnsupportedAnnotation,
)
from holdfast.ontology.types.fields import MISSING, End, Field
from holdfast.ontology.types.refs import Kind, TypeId
from holdfast.ontology.types.typeinfo import NOT_EMPTY, TypeInfo
from holdfast.ontology.types.typespec import Choice, Node, Primitive, without_null

KEY_TYPES = (str, int, UUID, date, datetime)


def collect(python: type, frame: FrameType | None) -> dict[str, Field[Any]]:
    """The fields of a class, its bases' first. Those of the class itself get their descriptors here."""
    python.__own_fields__ = _own_fields(python, frame)  # type: ignore[attr-defined]  # for the classes derived from it
    found: dict[str, Field[Any]] = {}
    for base in reversed(python.__mro__):
        found.update(vars(base).get("__own_fields__", {}))
    return found


def _own_fields(python: type, frame: FrameType | None) -> dict[str, Field[Any]]:
    own: dict[str, Field[Any]] = {}
    for name, hint in _hints(python, frame).items():
        if get_origin(hint) is ClassVar or hint is ClassVar:
            continue
        if hint is End:
            end = End()
            end.name = name
            setattr(python, name, end)
            continue
        if get_origin(hint) is not Field:
            raise UnsupportedAnnotation(
                f"{python.__name__}.{name}: fields are annotated as Field[...], this one is not",
                remedy=f"write {name}: Field[{getattr(hint, '__name__', hint)}], or ClassVar[...] if it is not a field",
            )
        given = vars(python).get(name, MISSING)
        each = given if isinstance(given, Field) else Field() if given is MISSING else Field(default=given)
        each.name = name
        each.annotation = get_args(hint)[0]
        own[name] = each
        setattr(python, name, each)
    for name, value in vars(python).items():
        if isinstance(value, Field) and name not in own:
            raise UnsupportedAnnotation(
                f"{python.__name__}.{name}: a field without an annotation",
                remedy=f"write {name}: Field[str] = Field(...)",
            )
    return own


def _hints(python: type, frame: FrameType | None) -> dict[str, Any]:
    """The annotations of this class alone. Names are looked up where the class statement stands, then in its module."""
    own = inspect.get_annotations(python)
    if not any(isinstance(hint, str | ForwardRef) or "ForwardRef(" in repr(hint) for hint in own.values()):
        return own
    module = vars(sys.modules[python.__module__]) if python.__module__ in sys.modules else {}
    local = {**(frame.f_locals if frame is not None else {}), python.__name__: python}
    # A class of its own: get_type_hints would look into the bases as well.
    holder = type(python.__name__, (), {"__annotations__": own, "__module__": python.__module__})
    try:
        return get_type_hints(holder, globalns=dict(module), localns=local, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise UnsupportedAnnotation(
            f"{python.__name__}: an annotation cannot be resolved: {error}",
            remedy="define or import what it names before the class statement",
        ) from error


def declare(
    python: type, kind: Kind, name: str, fields: Mapping[str, Field[Any]], ends: tuple[Any, Any] | None = None
) -> TypeInfo:
    """What is known of a concrete type, once it has passed every check."""
    names.check_type_name(name)
    reserved = names.SYSTEM_COLUMNS | names.ENDS if kind == "relation" else names.SYSTEM_COLUMNS
    names.check_field_names(name, fields, reserved=reserved)
    _check_keys(kind, name, fields)
    nodes = {each: analyse(fields[each].annotation, f"{name}.{each}") for each in fields}
    for each in fields.values():
        if each.is_key:
            nodes[each.name] = _key_node(name, each, nodes[each.name])
    made = TypeInfo(TypeId(kind, name), dict(fields), nodes, _declared_ends(name, ends) if ends else None, python)
    _check_defaults(made)
    return made


def _check_keys(kind: Kind, name: str, fields: Mapping[str, Field[Any]]) -> None:
    primary = [each for each in fields if fields[each].primary_key]
    instance = [each for each in fields if fields[each].instance_key]
    if kind == "entity" and instance:
        raise InvalidType(f"{name}.{instance[0]}: entities have a primary_key", remedy="use Field(primary_key=True)")
    if kind == "relation" and primary:
        raise InvalidType(
            f"{name}.{primary[0]}: a relation is identified by its ends, and by an instance_key if need be",
            remedy="use Field(instance_key=True), or no key",
        )
    keys = primary if kind == "entity" else instance
    if len(keys) > 1:
        raise TooManyKeys(
            f"{name} has {len(keys)} {'primary' if kind == 'entity' else 'instance'} keys: {', '.join(keys)}",
            remedy="mark one field; to identify by several values, join them into one",
        )
    if kind == "entity" and not keys:
        raise MissingKey(
            f"{name} has no primary key",
            remedy="write id: Field[str] = Field(primary_key=True), or abstract=True for a base of other entities",
        )


def _key_node(name: str, each: Field[Any], node: Node) -> Node:
    """The node, if it can be a key's; a text must not be empty, which stands for "no instance key"."""
    plain, optional = without_null(node)
    fits = (isinstance(plain, Primitive) and plain.python in KEY_TYPES) or isinstance(plain, Choice)
    if optional or not fits:
        raise UnfitKey(
            f"{name}.{each.name}: a key must be a str, int, UUID, date, datetime or enum, and never None",
            remedy="use a str if in doubt",
        )
    if each.default is not MISSING:
        raise UnfitKey(
            f"{name}.{each.name}: a key with a default would be the same for every object",
            remedy="leave the default out, or use default_factory",
        )
    return replace(node, metadata=(*node.metadata, NOT_EMPTY)) if node == Primitive(str) else node


def _check_defaults(made: TypeInfo) -> None:
    validator = made.validator  # also checks that pydantic takes all annotations
    for name, each in made.fields.items():
        if each.default is MISSING:
            continue
        if each.default_factory is not None:
            raise InvalidType(f"{made.name}.{name} has both a default and a default_factory", remedy="keep one of them")
        try:
            each.default = validator.one(name, each.default)
        except InvalidValue as error:
            raise InvalidType(f"the default does not fit: {error}") from error


def _declared_ends(name: str, ends: tuple[Any, Any]) -> tuple[TypeInfo, TypeInfo]:
    found = [vars(end).get("__type_info__") if isinstance(end, type) else None for end in ends]
    for end, declared in zip(ends, found, strict=True):
        if not isinstance(declared, TypeInfo) or declared.kind != "entity":
            shown = end.__name__ if isinstance(end, type | TypeVar) else end
            raise NotAnEntity(
                f"{name}: {shown} is not an entity type, so it cannot be an end of a relation",
                remedy=f"write class {name}(Relation[Left, Right]) with two entity classes",
            )
    left, right = found
    return left, right  # type: ignore[return-value]  # checked in the loop
