"""Names of types and fields: which are allowed, and which are reserved.

SQL engines ignore the case of column names, so names that differ only in case are the same name.
"""

import keyword
from collections.abc import Iterable

from holdfast.ontology.types.errors import InvalidType

RETRACTED = "_retracted"
UNTIL = "_until"
"""In snapshots only: see ``lifespans``."""
ENTITY_KEYS = ("entity_key",)
RELATION_KEYS = ("left_key", "right_key", "instance_key")

SYSTEM_COLUMNS = frozenset(
    {
        "commit_id",
        "entity_type",
        "relation_type",
        *ENTITY_KEYS,
        *RELATION_KEYS,
        "schema_version_id",
        "fields_json",
        RETRACTED,
        UNTIL,
    }
)


def key_columns(kind: str) -> tuple[str, ...]:
    return ENTITY_KEYS if kind == "entity" else RELATION_KEYS


RESERVED_IN_RELATIONS = frozenset({"left", "right"})
"""Besides system columns."""


def check_type_name(name: str) -> str:
    """The name, if it can be used in keys, paths and SQL."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise InvalidType(
            f"{name!r} cannot be the name of a type", remedy="use ASCII letters, digits and underscores, as in Customer"
        )
    return name


def check_field_names(type_name: str, names: Iterable[str], *, reserved: frozenset[str] = SYSTEM_COLUMNS) -> None:
    seen: dict[str, str] = {}
    for name in names:
        lowered = name.lower()
        if lowered in reserved:
            raise InvalidType(
                f"{type_name}.{name}: this is the name of a system column",
                remedy="give the field another name",
            )
        if name.startswith("_"):
            raise InvalidType(
                f"{type_name}.{name}: names with a leading underscore are reserved",
                remedy="give the field another name",
            )
        if lowered in seen:
            raise InvalidType(
                f"{type_name}.{name} and {type_name}.{seen[lowered]} differ only in case, which SQL ignores",
                remedy="give one of them another name",
            )
        seen[lowered] = name
