"""``Field``: a value on an instance, an expression of the query language on the class.

Type checkers see a descriptor, and derive the parameters of the constructor from it. At run time it is a descriptor
without ``__set__``: the value is in the instance's own dictionary, where Python finds it first and without a call. The
base class of all types validates assignments.
"""

from collections.abc import Callable
from datetime import date
from enum import Enum
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ForwardRef, Generic, Literal, TypeVar, cast, overload
from uuid import UUID

from holdfast.ontology.types.errors import InvalidQuery, unknown
from holdfast.ontology.types.expressions.terms import FieldExpr, info_of

if TYPE_CHECKING:
    from holdfast.ontology.types.model import Entity, Relation

    L = TypeVar("L", bound=Entity)
    R = TypeVar("R", bound=Entity)

T = TypeVar("T")


class Missing(Enum):
    """There is no default."""

    MISSING = "no default"


MISSING = Missing.MISSING


class Field(Generic[T]):
    """One field of an entity or a relation.

    ``tier: Field[str]`` is required, ``tier: Field[str] = Field(default="Std")`` is optional. ``index=True`` notes in
    the schema that the field is often searched. Exactly one field of an entity is its ``primary_key``; one field of a
    relation may be its ``instance_key``, which distinguishes relations between the same two ends.
    """

    name: str = ""
    annotation: Any = None

    if not TYPE_CHECKING:

        def __class_getitem__(cls, annotation: Any) -> GenericAlias:
            """Keeps the annotation as it is written: ``Generic`` caches ``Field[Optional[str]]`` for ``str | None``."""
            given = annotation if isinstance(annotation, tuple) else (annotation,)  # get_type_hints gives a tuple
            return GenericAlias(cls, tuple(ForwardRef(each) if isinstance(each, str) else each for each in given))

    @overload
    def __init__(self, *, primary_key: bool = False, instance_key: bool = False, index: bool = False) -> None: ...

    @overload
    def __init__(self, *, default: T, index: bool = False) -> None: ...

    @overload
    def __init__(
        self,
        *,
        default_factory: Callable[[], T],
        primary_key: bool = False,
        instance_key: bool = False,
        index: bool = False,
    ) -> None: ...

    def __init__(
        self,
        *,
        default: T | Missing = MISSING,
        default_factory: Callable[[], T] | None = None,
        primary_key: bool = False,
        instance_key: bool = False,
        index: bool = False,
    ) -> None:
        self.default = default
        self.default_factory = default_factory
        self.primary_key = primary_key
        self.instance_key = instance_key
        self.index = index

    @property
    def is_key(self) -> bool:
        return self.primary_key or self.instance_key

    @property
    def has_default(self) -> bool:
        return self.default is not MISSING or self.default_factory is not None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> FieldExpr[T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object, owner: type) -> FieldExpr[T] | T:
        if instance is None:
            return FieldExpr(owner, self.name)
        raise AttributeError(f"{owner.__name__} object has no {self.name}: it was not made by its class")

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: T) -> None: ...


class End:
    """One end of a relation: a key on an instance, an expression on the class.

    The constructor takes the key or the entity. Only the run time checks that it is the right entity: the type of a
    class attribute cannot depend on the parameters of the relation.
    """

    name: str = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> FieldExpr[str]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> str: ...

    def __get__(self, instance: object, owner: type) -> FieldExpr[str] | str:
        if instance is None:
            return FieldExpr(owner, self.name)
        raise AttributeError(f"{owner.__name__} object has no {self.name}: it was not made by its class")

    if TYPE_CHECKING:

        def __set__(self, instance: object, value: "str | int | UUID | date | Enum | Entity") -> None: ...


# --- fields at the ends of a relation ---


def left(relation: "type[Relation[L, Any]]") -> "type[L]":
    """The fields of the entity at the left end: ``left(Subscription).tier == "Gold"``."""
    return cast("type[L]", _Side(relation, "left"))


def right(relation: "type[Relation[Any, R]]") -> "type[R]":
    """The fields of the entity at the right end."""
    return cast("type[R]", _Side(relation, "right"))


class _Side:
    def __init__(self, relation: type, end: Literal["left", "right"]) -> None:
        if not isinstance(relation, type):
            raise InvalidQuery(f"{relation!r} is not a relation type", remedy=f"write {end}(Subscription)")
        self._relation, self._end = relation, end
        self._info = info_of(relation).at_end(end)

    def __getattr__(self, name: str) -> FieldExpr[Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._info.nodes:
            raise unknown(self._info.name, name, self._info.nodes)
        return FieldExpr(self._relation, name, (), self._end)
