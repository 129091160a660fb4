"""Errors of the ontology: a class that cannot be a type, a value that does not fit, a schema that has moved on.

Invalid
├── InvalidType             the class statement is wrong
│   ├── MissingKey              an entity without a primary key
│   ├── TooManyKeys             two primary keys, or two instance keys
│   ├── UnfitKey                a key that is optional, constant, or of a type that has no key form
│   ├── ReservedName            a field or type name that the store uses itself
│   ├── UnsupportedAnnotation   an annotation whose values could not be read back from JSON
│   └── NotAnEntity             a relation whose ends are not two entities
└── InvalidValue            an object, a row or a column does not fit its type
Conflict
├── SnapshotGone            a snapshot was superseded and removed: resolve again
├── SchemaPending           another program has migrated a type and not written the schema yet: try again
└── Overtaken               payload was destroyed while it was read: read again at the head of now
Incompatible
├── SchemaDrift             the class differs from the schema in the store
├── TypeDropped             the type was dropped while the session was open
└── UnreadableRow           a stored row does not fit the class that reads it
"""

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from holdfast.base.errors import Conflict, Incompatible, Invalid

if TYPE_CHECKING:
    from holdfast.ontology.types.schema import Drift


class InvalidType(Invalid):
    """A class cannot be made a type."""


class MissingKey(InvalidType):
    """An entity has no primary key."""


class TooManyKeys(InvalidType):
    """A type has more keys than one."""


class UnfitKey(InvalidType):
    """A key that is optional, constant, or of an unsupported type."""


class ReservedName(InvalidType):
    """A name that the store uses itself, or that differs from another one only in case."""


class UnsupportedAnnotation(InvalidType):
    """An annotation whose values cannot be written down and read back as they were."""


class NotAnEntity(InvalidType):
    """A relation must name two entity types as its ends."""


class InvalidValue(Invalid):
    """A value does not fit its type. ``field`` and ``row`` say where, as far as that is known."""

    def __init__(
        self,
        message: str,
        *,
        type_name: str,
        field: str | None = None,
        row: int | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.type_name = type_name
        self.field = field
        self.row = row


class SchemaPending(Conflict):
    """The chain has rows of a version whose schema another program still has to write."""


class SchemaDrift(Incompatible):
    """The class in the code and the schema in the store are not the same; ``drift`` lists the differences."""

    def __init__(self, drift: "Drift") -> None:
        super().__init__(str(drift), remedy=drift.remedy)
        self.drift = drift


class TypeDropped(Incompatible):
    """Another session dropped a type while this one was open. Nothing was written; the intents stay queued."""

    default_remedy = "discard() the intents; a new session begins the type anew, without its old rows"


class UnreadableRow(Incompatible):
    """A row in the store does not fit the class that should hold it."""

    default_remedy = "use the class that the row was written with, or migrate the type"


class BulkOutdated(Conflict):
    """A commit to the type since a bulk of rows was decided makes the decision invalid."""

    default_remedy = "decide again on what is there now"


class SnapshotGone(Conflict):
    """A snapshot that an index named is not there; the files of its commits are. Resolve again, at the same commit."""


class Overtaken(Conflict):
    """A file has lost payload by the order of a commit that is later than the head of the read."""

    default_remedy = (
        "read again; if it stays so, the head is older than the files, as after a restored backup: holdfast onto verify"
    )


class InvalidQuery(Invalid):
    """A query names an unknown field, or compares values of different kinds. Raised when it is built."""


def unknown(what: str, name: str, known: Iterable[str]) -> InvalidQuery:
    """``name`` is not a field of ``what``; with a suggestion among the known names."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}" if names else None
    return InvalidQuery(f"{what} has no field {name}", remedy=remedy)
