"""Keys: how the value of a key field becomes the text by which the store identifies an object."""

from enum import Enum
from typing import Any

from holdfast.ontology.declaration import Declaration
from holdfast.ontology.errors import InvalidValue
from holdfast.ontology.typespec import Primitive

UNKEYED = ""
"""The instance key of a relation that has none."""
ENDS = ("left_key", "right_key")


def key_text(value: Any) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def end_key(end: Declaration, value: Any, where: str) -> str:
    """The key of one end of a relation, from the key itself or from the entity."""
    name = end.key_field or ""
    if isinstance(value, end.python):
        return key_text(value.__dict__[name])
    if type(value) is str and value and end.nodes[name] == Primitive(str):
        return value
    try:
        return key_text(end.validator.one(name, value))
    except InvalidValue as error:
        raise InvalidValue(
            f"{where} must be a {end.name} or its key: {error}",
            type_name=where.partition(".")[0],
            field=where.partition(".")[2],
        ) from error
