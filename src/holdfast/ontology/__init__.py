"""Typed entities and relations in commits over a bucket: one head, many writers."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.ontology.types.errors import (
    InvalidQuery,
    InvalidType,
    InvalidValue,
    SchemaDrift,
    TypeDropped,
    UnreadableRow,
)
from holdfast.ontology.types.expressions.terms import Condition, FieldExpr, Figure, Ordering, count, count_where
from holdfast.ontology.types.fields import Field, left, right
from holdfast.ontology.types.model import Entity, Mixin, Relation
from holdfast.ontology.types.upgrade import upgrader

if TYPE_CHECKING:
    from holdfast.ontology.bulk.decide import Policy as Policy
    from holdfast.ontology.bulk.transfer import export_file as export_file
    from holdfast.ontology.bulk.transfer import import_file as import_file
    from holdfast.ontology.chain.history import Tags as Tags
    from holdfast.ontology.maintain import drop as drop
    from holdfast.ontology.maintain import erase as erase
    from holdfast.ontology.maintain import revert as revert
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
    "Mixin",
    "Ordering",
    "Policy",
    "Relation",
    "SchemaDrift",
    "Tags",
    "TypeDropped",
    "UnreadableRow",
    "count",
    "count_where",
    "drop",
    "erase",
    "export_file",
    "import_file",
    "left",
    "meta",
    "revert",
    "right",
    "upgrader",
]


_LATER = {
    "Policy": "bulk.decide",
    "Tags": "chain.history",
    "drop": "maintain",
    "erase": "maintain",
    "export_file": "bulk.transfer",
    "import_file": "bulk.transfer",
    "meta": "query.results",
    "revert": "maintain",
}


def __getattr__(name: str) -> Any:
    """Results read stored rows: a program that only declares types does without what that takes."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = f"{__name__}.{_LATER[name]}"
    return import_module(f"{home}.{name}") if home.endswith("maintain") else getattr(import_module(home), name)
