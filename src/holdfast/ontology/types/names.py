"""Names that users may give, and those that the store keeps for itself.

Columns of a file are found without regard to case by SQL engines, so names that differ only in case are the same name.
"""

import keyword
from collections.abc import Iterable

from holdfast.ontology.types.errors import ReservedName

RETRACTED = "_retracted"
UNTIL = "_until"
"""Of snapshots alone: see ``lifespans``."""
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


ENDS = frozenset({"left", "right"})
"""Of a relation, and so not for its fields."""


def check_type_name(name: str) -> str:
    """The name, if it can be a part of keys, of paths and of SQL."""
    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise ReservedName(
            f"{name!r} cannot be the name of a type", remedy="use ASCII letters, digits and underscores, as in Customer"
        )
    return name


def check_field_names(type_name: str, names: Iterable[str], *, reserved: frozenset[str] = SYSTEM_COLUMNS) -> None:
    seen: dict[str, str] = {}
    for name in names:
        lowered = name.lower()
        if lowered in reserved:
            raise ReservedName(
                f"{type_name}.{name}: the store has a column of this name itself", remedy="give the field another name"
            )
        if name.startswith("_"):
            raise ReservedName(
                f"{type_name}.{name}: names with a leading underscore belong to the store",
                remedy="give the field a name without it",
            )
        if lowered in seen:
            raise ReservedName(
                f"{type_name}.{name} and {type_name}.{seen[lowered]} differ only in case, which SQL does not see",
                remedy="give one of them another name",
            )
        seen[lowered] = name
