"""``Entity`` and ``Relation``, the base classes of users' types, and the checks of a class statement.

    class Customer(Entity):
        id: Field[str] = Field(primary_key=True)
        name: Field[str]
        tier: Field[str | None] = Field(default=None)

    class Subscription(Relation[Customer, Product]):
        seats: Field[int] = Field(default=1)

Objects are validated when they are made and when a field is assigned. They are compared by their fields, and have no
hash because they can change. The base classes have no public names, so a field may have any name.

A class statement that cannot be a type raises a subclass of ``InvalidType``, which names the field and what to write
instead.
"""

import difflib
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime
from types import FrameType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    ForwardRef,
    Generic,
    TypeVar,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)
from uuid import UUID

from holdfast.ontology.types import names
from holdfast.ontology.types.errors import (
    InvalidType,
    InvalidValue,
)
from holdfast.ontology.types.fields import MISSING, End, Field
from holdfast.ontology.types.refs import Kind, TypeId
from holdfast.ontology.types.typeinfo import ENDS, NOT_EMPTY, TypeInfo, end_key, type_info
from holdfast.ontology.types.typespec import Choice, Node, Primitive, analyse, without_null

_KEY_TYPES = (str, int, UUID, date, datetime)


# --- class statements ---


def _collect(python: type, frame: FrameType | None) -> dict[str, Field[Any]]:
    """The fields of a class, those of its bases first. Sets the descriptors of its own fields."""
    python.__own_fields__ = _own_fields(python, frame)  # type: ignore[attr-defined]  # for derived classes
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
            raise InvalidType(
                f"{python.__name__}.{name}: fields are annotated as Field[...], this one is not",
                remedy=f"write {name}: Field[{getattr(hint, '__name__', hint)}], or ClassVar[...] if it is not a field",
            )
        value = vars(python).get(name, MISSING)
        each = value if isinstance(value, Field) else Field() if value is MISSING else Field(default=value)
        each.name = name
        each.annotation = get_args(hint)[0]
        own[name] = each
        setattr(python, name, each)
    for name, value in vars(python).items():
        if isinstance(value, Field) and name not in own:
            raise InvalidType(
                f"{python.__name__}.{name}: a field without an annotation",
                remedy=f"write {name}: Field[str] = Field(...)",
            )
    return own


def _hints(python: type, frame: FrameType | None) -> dict[str, Any]:
    """The annotations of this class, without its bases. Names are resolved where the class statement is."""
    own = inspect.get_annotations(python)
    if not any(isinstance(hint, str | ForwardRef) or "ForwardRef(" in repr(hint) for hint in own.values()):
        return own
    module = vars(sys.modules[python.__module__]) if python.__module__ in sys.modules else {}
    local = {**(frame.f_locals if frame is not None else {}), python.__name__: python}
    # Another class, because get_type_hints would also evaluate the bases.
    holder = type(python.__name__, (), {"__annotations__": own, "__module__": python.__module__})
    try:
        return get_type_hints(holder, globalns=dict(module), localns=local, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
        raise InvalidType(
            f"{python.__name__}: an annotation cannot be resolved: {error}",
            remedy="define or import what it names before the class statement",
        ) from error


def _declare(
    python: type, kind: Kind, name: str, fields: Mapping[str, Field[Any]], ends: tuple[Any, Any] | None = None
) -> TypeInfo:
    """The type of a class, after all checks."""
    names.check_type_name(name)
    reserved = names.SYSTEM_COLUMNS | names.RESERVED_IN_RELATIONS if kind == "relation" else names.SYSTEM_COLUMNS
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
        raise InvalidType(
            f"{name} has {len(keys)} {'primary' if kind == 'entity' else 'instance'} keys: {', '.join(keys)}",
            remedy="mark one field; to identify by several values, join them into one",
        )
    if kind == "entity" and not keys:
        raise InvalidType(
            f"{name} has no primary key",
            remedy="write id: Field[str] = Field(primary_key=True), or abstract=True for a base of other entities",
        )


def _key_node(name: str, each: Field[Any], node: Node) -> Node:
    """The node of a key. A text must not be empty, because the empty text means "no instance key"."""
    plain, optional = without_null(node)
    fits = (isinstance(plain, Primitive) and plain.python in _KEY_TYPES) or isinstance(plain, Choice)
    if optional or not fits:
        raise InvalidType(
            f"{name}.{each.name}: a key must be a str, int, UUID, date, datetime or enum, and never None",
            remedy="use a str if in doubt",
        )
    if each.default is not MISSING:
        raise InvalidType(
            f"{name}.{each.name}: a key with a default would be the same for every object",
            remedy="leave the default out, or use default_factory",
        )
    return replace(node, metadata=(*node.metadata, NOT_EMPTY)) if node == Primitive(str) else node


def _check_defaults(made: TypeInfo) -> None:
    validator = made.validator  # this checks all annotations, too
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
            raise InvalidType(
                f"{name}: {shown} is not an entity type, so it cannot be an end of a relation",
                remedy=f"write class {name}(Relation[Left, Right]) with two entity classes",
            )
    left, right = found
    return left, right  # type: ignore[return-value]  # checked in the loop


# --- the bases ---


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class Mixin:
    """A base class with fields for several entities and relations."""

    __kind__: ClassVar[Kind | None] = None
    __type_info__: ClassVar[TypeInfo | None] = None

    def __init_subclass__(cls, *, name: str | None = None, abstract: bool = False, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.__type_info__ = None
        fields = _collect(cls, sys._getframe(1))
        kinds = {kind for kind in (vars(base).get("__kind__") for base in cls.__mro__) if kind is not None}
        if len(kinds) > 1:
            raise InvalidType(f"{cls.__name__} cannot be an entity and a relation at once")
        if kinds and not abstract:
            kind: Kind = kinds.pop()
            ends = _ends(cls) if kind == "relation" else None
            cls.__type_info__ = _declare(cls, kind, name or cls.__name__, fields, ends)

    if not TYPE_CHECKING:  # type checkers derive the constructor and assignable names from the fields

        def __init__(self, **values: Any) -> None:
            info = type_info(type(self))
            keys = _pop_ends(info, values) if info.ends is not None else {}
            self.__dict__.update(keys)
            self.__dict__.update(info.validator.all(info.completed(values)))

        def __setattr__(self, name: str, value: Any) -> None:
            info = type_info(type(self))
            if name in info.fields:
                self.__dict__[name] = info.validator.one(name, value)
            elif name in ENDS and info.ends is not None:
                self.__dict__[name] = end_key(info.ends[ENDS.index(name)], value, f"{info.name}.{name}")
            else:
                raise InvalidValue(
                    f"{info.name} has no field {name}",
                    type_name=info.name,
                    field=name,
                    remedy=_suggestion(name, info.fields),
                )

    __hash__ = None  # type: ignore[assignment]  # objects can change

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.__dict__.items())})"


class Entity(Mixin, abstract=True):
    """A thing with an identity: exactly one field is its primary key."""

    __kind__: ClassVar[Kind | None] = "entity"


L = TypeVar("L", bound=Entity)
R = TypeVar("R", bound=Entity)


class Relation(Mixin, Generic[L, R], abstract=True):
    """A directed relation between two entities, which need not exist.

    ``left_key`` and ``right_key`` are the keys of its ends; the constructor also takes the entities. Without an
    instance key there is at most one relation of a type between the same two ends.
    """

    __kind__: ClassVar[Kind | None] = "relation"

    left_key: End
    right_key: End


def derived_class(info: TypeInfo) -> type[Mixin]:
    """A class for a type of which only the schema in the store is known, to validate rows."""

    class Made(Mixin, abstract=True):
        """A type from a schema in the store."""

    Made.__name__ = Made.__qualname__ = info.name
    Made.__type_info__ = replace(info, python=Made)
    return Made


def _pop_ends(info: TypeInfo, values: dict[str, Any]) -> dict[str, str]:
    """Removes the ends from the values, and returns their keys."""
    if missing := [name for name in ENDS if name not in values]:
        raise InvalidValue(
            f"{info.name}.{missing[0]} is missing",
            type_name=info.name,
            field=missing[0],
            remedy="give the key of the entity, or the entity",
        )
    return {
        name: end_key(end, values.pop(name), f"{info.name}.{name}")
        for name, end in zip(ENDS, info.ends or (), strict=True)
    }


def _ends(python: type) -> tuple[Any, Any]:
    """The two classes of ``Relation[...]``, also through a generic base."""
    for base in getattr(python, "__orig_bases__", ()):
        origin = get_origin(base)
        if origin is Relation:
            left, right = get_args(base)
            return left, right
        if isinstance(origin, type) and issubclass(origin, Relation):
            given = dict(zip(origin.__parameters__, get_args(base), strict=True))  # type: ignore[attr-defined]  # generic
            left, right = _ends(origin)
            return given.get(left, left), given.get(right, right)
    for parent in python.__bases__:
        if issubclass(parent, Relation) and parent is not Relation:
            return _ends(parent)
    raise InvalidType(
        f"{python.__name__} does not declare its ends",
        remedy=f"write class {python.__name__}(Relation[Left, Right]) with two entity classes",
    )


def _suggestion(name: str, fields: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, fields, n=1)
    return f"did you mean {close[0]}?" if close else f"its fields are {', '.join(fields)}"
