"""Typed entities and relations in commits over a bucket: one head, many writers."""

from holdfast.ontology.errors import (
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
from holdfast.ontology.fields import Field, FieldExpr
from holdfast.ontology.filters.errors import InvalidQuery
from holdfast.ontology.filters.exprs import Condition, Figure, Ordering, count, count_where
from holdfast.ontology.filters.sides import left, right
from holdfast.ontology.model import Entity, Mixin, Relation
from holdfast.ontology.upgrade import upgrader

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
    "right",
    "upgrader",
]
