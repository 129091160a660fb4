"""``Field`` and what it is on a class: an expression.

A field has two faces. On an instance it is the value; on the class it is a ``FieldExpr``, from which queries are built.
Type checkers see a descriptor, and take the parameters of the constructor from it. At run time it is one without
``__set__``: the value lies in the instance's own dictionary, where Python finds it first and without a call, and
assignments are validated by the base class of all types.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from enum import Enum
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ForwardRef, Generic, Literal, TypeVar, cast, overload
from uuid import UUID

from holdfast.base.errors import Invalid
from holdfast.ontology.types.errors import InvalidQuery, unknown
from holdfast.ontology.types.expressions.ast import FieldPath
from holdfast.ontology.types.expressions.fitting import node_at
from holdfast.ontology.types.expressions.terms import RowTerm
from holdfast.ontology.types.typespec import Node

if TYPE_CHECKING:
    from holdfast.ontology.types.model import Entity, Relation
    from holdfast.ontology.types.typeinfo import TypeInfo

    L = TypeVar("L", bound=Entity)
    R = TypeVar("R", bound=Entity)

T = TypeVar("T")


class Missing(Enum):
    """There is no default."""

    MISSING = "no default"


MISSING = Missing.MISSING


def info_of(owner: type) -> "TypeInfo":
    """What is known of the class that a field was taken from; ``InvalidQuery`` if it is no concrete type."""
    found: TypeInfo | None = getattr(owner, "__type_info__", None)
    if found is None:
        raise InvalidQuery(
            f"{owner.__name__} is not an entity or relation type, so there are no rows of it",
            remedy="use the field of a type that derives from it",
        )
    return found


@dataclass(frozen=True, eq=False)
class FieldExpr(RowTerm[T]):
    """A field of a type, or a path into one, as a term of a query. Comparing it gives a ``Condition``.

    ``end`` says whose field it is: the type's own, or that of the entity at an end of a relation (``left``, ``right``).
    """

    owner: type
    name: str
    steps: tuple[str, ...] = ()
    end: Literal["own", "left", "right"] = "own"

    def path(self, path: str) -> "FieldExpr[Any]":
        """What lies at ``path`` inside the field: names of nested fields or keys, with dots in between."""
        steps = path.split(".")
        if not all(steps):
            raise Invalid(f"{self}: {path!r} is not a path", remedy='write names with dots in between, as in "a.b"')
        made: FieldExpr[Any] = FieldExpr(self.owner, self.name, (*self.steps, *steps), self.end)
        node_at(made._declared, made.steps, f"{made.owner.__name__}.{made.name}")
        return made

    def __str__(self) -> str:
        end = () if self.end == "own" else (self.end,)
        return ".".join((self.owner.__name__, *end, self.name, *self.steps))

    @property
    def _root(self) -> type:
        return self.owner

    @property
    def _path(self) -> FieldPath:
        return FieldPath(self.end, self.name, self.steps)

    @property
    def _node(self) -> Node:
        return node_at(self._declared, self.steps, f"{self.owner.__name__}.{self.name}")

    @property
    def _declared(self) -> Node:
        return info_of(self.owner).node_of(self.end, self.name)


class Field(Generic[T]):
    """One field of an entity or a relation.

    ``tier: Field[str]`` must be given, ``tier: Field[str] = Field(default="Std")`` may be left out. ``index=True`` is a
    note in the schema that the field is often searched. Exactly one field of an entity is its ``primary_key``; one
    field of a relation may be its ``instance_key``, which tells several relations between the same two ends apart.
    """

    name: str = ""
    annotation: Any = None

    if not TYPE_CHECKING:

        def __class_getitem__(cls, annotation: Any) -> GenericAlias:
            """Each annotation as it is written: ``Generic`` gives ``Field[Optional[str]]`` again for ``str | None``."""
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

    The constructor takes the key, or the entity itself. (Which entity is checked at run time: a type that depends on
    the relation's parameters could not be read from the class.)
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
    """The class at the left end, as far as its fields go: ``left(Subscription).tier == "Gold"``."""
    return cast("type[L]", _Side(relation, "left"))


def right(relation: "type[Relation[Any, R]]") -> "type[R]":
    """The class at the right end, as far as its fields go."""
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
