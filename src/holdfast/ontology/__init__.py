"""Typed entities and relations in commits over a bucket: one head, many writers."""

from holdfast.ontology.errors import (
    InvalidType,
    InvalidValue,
    MissingKey,
    NotAnEntity,
    ReservedName,
    SchemaDrift,
    TooManyKeys,
    UnfitKey,
    UnreadableRow,
    UnsupportedAnnotation,
)
from holdfast.ontology.fields import Field, FieldExpr
from holdfast.ontology.model import Entity, Mixin, Relation

__all__ = [
    "Entity",
    "Field",
    "FieldExpr",
    "InvalidType",
    "InvalidValue",
    "MissingKey",
    "Mixin",
    "NotAnEntity",
    "Relation",
    "ReservedName",
    "SchemaDrift",
    "TooManyKeys",
    "UnfitKey",
    "UnreadableRow",
    "UnsupportedAnnotation",
]
