"""Whose field a path names: that of the type itself, or that of an entity at an end of a relation."""

from typing import Any, Protocol

from holdfast.ontology.filters.ast import End
from holdfast.ontology.types.errors import InvalidQuery, unknown
from holdfast.ontology.types.typespec import Node, Primitive

KEYS = ("left_key", "right_key")
"""Of a relation: the keys of its ends, which are text."""


class Declared(Protocol):
    """What is needed of a ``Declaration``, which is built from fields and so cannot be imported here."""

    @property
    def name(self) -> str: ...
    @property
    def nodes(self) -> Any: ...
    @property
    def ends(self) -> Any: ...


def declared_end(declared: Declared | None, end: End, name: str) -> Declared:
    """The declaration of the type at an end; ``name`` is that of the class, for the message."""
    if declared is None:
        raise InvalidQuery(
            f"{name} is not an entity or relation type, so there are no rows of it",
            remedy="use the field of a type that derives from it",
        )
    if end == "own":
        return declared
    if declared.ends is None:
        raise InvalidQuery(f"{declared.name} is not a relation: it has no {end} end")
    found: Declared = declared.ends[0 if end == "left" else 1]
    return found


def declared_node(declared: Declared | None, end: End, field: str, name: str) -> Node:
    """The declared type of a field; ``InvalidQuery`` with a suggestion if there is none of this name."""
    whose = declared_end(declared, end, name)
    if field in KEYS and whose.ends is not None:
        return Primitive(str)
    if field not in whose.nodes:
        raise unknown(whose.name, field, [*whose.nodes, *(KEYS if whose.ends is not None else ())])
    node: Node = whose.nodes[field]
    return node
