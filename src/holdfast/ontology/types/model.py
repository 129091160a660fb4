"""``Entity`` and ``Relation``: what users derive their types from.

    class Customer(Entity):
        id: Field[str] = Field(primary_key=True)
        name: Field[str]
        tier: Field[str | None] = Field(default=None)

    class Subscription(Relation[Customer, Product]):
        seats: Field[int] = Field(default=1)

Objects are validated when they are made and when a field is assigned. They are compared by their fields, and since
they can change they have no hash. The bases have no public names of their own, so that a field may have any name.
"""

import difflib
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, dataclass_transform, get_args, get_origin

from holdfast.ontology.types.declaration import collect, declare
from holdfast.ontology.types.errors import InvalidType, InvalidValue, NotAnEntity
from holdfast.ontology.types.fields import End, Field
from holdfast.ontology.types.refs import Kind
from holdfast.ontology.types.typeinfo import ENDS, TypeInfo, end_key, type_info


@dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
class Mixin:
    """Fields for several types: derive from it, and name it among the bases of an entity or a relation."""

    __kind__: ClassVar[Kind | None] = None
    __type_info__: ClassVar[TypeInfo | None] = None

    def __init_subclass__(cls, *, name: str | None = None, abstract: bool = False, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.__type_info__ = None
        fields = collect(cls, sys._getframe(1))
        kinds = {kind for kind in (vars(base).get("__kind__") for base in cls.__mro__) if kind is not None}
        if len(kinds) > 1:
            raise InvalidType(f"{cls.__name__} cannot be an entity and a relation at once")
        if kinds and not abstract:
            kind: Kind = kinds.pop()
            ends = _ends(cls) if kind == "relation" else None
            cls.__type_info__ = declare(cls, kind, name or cls.__name__, fields, ends)

    if not TYPE_CHECKING:  # checkers derive the constructor from the fields, and know which names can be assigned

        def __init__(self, **values: Any) -> None:
            info = type_info(type(self))
            keys = _taken_ends(info, values) if info.ends is not None else {}
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
    """A directed relation between two entities, which need not exist (yet).

    ``left_key`` and ``right_key`` are the keys of its ends; the constructor also takes the entities themselves. Without
    an instance key there is at most one relation of a type between the same two ends.
    """

    __kind__: ClassVar[Kind | None] = "relation"

    left_key: End
    right_key: End


def derived_class(info: TypeInfo) -> type[Mixin]:
    """A class for a type of which only the schema in the store is known: it checks rows as the user's own would."""

    class Made(Mixin, abstract=True):
        """A type that the store knows."""

    Made.__name__ = Made.__qualname__ = info.name
    Made.__type_info__ = replace(info, python=Made)
    return Made


def _taken_ends(info: TypeInfo, values: dict[str, Any]) -> dict[str, str]:
    """The keys of both ends, taken out of the values."""
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
    """The two classes of ``Relation[...]``, also where a generic base stands in between."""
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
    raise NotAnEntity(
        f"{python.__name__} does not say what it relates",
        remedy=f"write class {python.__name__}(Relation[Left, Right]) with two entity classes",
    )


def _suggestion(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else f"its fields are {', '.join(known)}"
