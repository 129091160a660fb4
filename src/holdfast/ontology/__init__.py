"""Typed entities and relations in commits over a bucket: one head, many writers."""

from typing import TYPE_CHECKING, Any

from holdfast.ontology.filters.sides import left, right
from holdfast.ontology.types.errors import (
    InvalidQuery,
    InvalidType,
    InvalidValue,
    MissingKey,
    NotAnEntity,
    ReservedName,
    SchemaDrift,
    TooManyKeys,
    TypeDropped,
    UnfitKey,
    UnreadableRow,
    UnsupportedAnnotation,
)
from holdfast.ontology.types.expressions.terms import Condition, Figure, Ordering, count, count_where
from holdfast.ontology.types.fields import Field, FieldExpr
from holdfast.ontology.types.model import Entity, Mixin, Relation
from holdfast.ontology.types.upgrade import upgrader

if TYPE_CHECKING:
    from holdfast.ontology.query.results import meta as meta

__all__ = [
    "Condition",
    "Entity",
    "Field",
    "FieldExpr",
    "Figure",
    "InvalidQuery",
    "InvalidType",
    "InvalidValue",
    "MissingKey",
    "Mixin",
    "NotAnEntity",
    "Ordering",
    "Relation",
    "ReservedName",
    "SchemaDrift",
    "TooManyKeys",
    "TypeDropped",
    "UnfitKey",
    "UnreadableRow",
    "UnsupportedAnnotation",
    "count",
    "count_where",
    "left",
    "meta",
    "right",
    "upgrader",
]


def __getattr__(name: str) -> Any:
    """Results read stored rows: a program that only declares types does without what that takes."""
    if name == "meta":
        from holdfast.ontology.query.results import meta  # noqa: PLC0415  # see above

        return meta
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
