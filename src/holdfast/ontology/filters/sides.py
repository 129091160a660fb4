"""``left(Subscription).tier``: fields of the entities at the ends of a relation, in a query about the relation."""

from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from holdfast.ontology.types.errors import InvalidQuery, unknown
from holdfast.ontology.types.fields import FieldExpr, info_of

if TYPE_CHECKING:
    from holdfast.ontology.types.model import Entity, Relation

    L = TypeVar("L", bound=Entity)
    R = TypeVar("R", bound=Entity)


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
