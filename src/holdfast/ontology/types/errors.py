"""Errors of the ontology.

Invalid
├── InvalidType             a class cannot be a type
├── InvalidValue            an object, a row or a column does not fit its type
└── InvalidQuery            a query names an unknown field, or compares values of different types
Conflict
├── BulkOutdated            the type was committed to since a bulk of rows was decided
├── SnapshotGone            a snapshot was superseded and removed: resolve the files again
├── SchemaPending           another program has migrated a type and not written the schema yet: try again
└── Overtaken               payload was destroyed while it was read: read again at the current head
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


class InvalidValue(Invalid):
    """A value does not fit its type. ``field`` and ``row`` are set if they are known."""

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
    """The chain has rows of a schema version that another program has not written yet."""


class SchemaDrift(Incompatible):
    """The class differs from the schema in the store. ``drift`` lists the differences."""

    def __init__(self, drift: "Drift") -> None:
        super().__init__(str(drift), remedy=drift.remedy)
        self.drift = drift


class TypeDropped(Incompatible):
    """Another session dropped a type while this session was open. Nothing was written; the intents stay queued."""

    default_remedy = "discard() the intents; a new session begins the type anew, without its old rows"


class UnreadableRow(Incompatible):
    """A row in the store does not fit the class that reads it."""

    default_remedy = "use the class that the row was written with, or migrate the type"


class BulkOutdated(Conflict):
    """The type was committed to since a bulk of rows was decided."""

    default_remedy = "decide again, on the current rows"


class SnapshotGone(Conflict):
    """A snapshot that an index names was removed. Resolve the files again at the same commit: the rows are the same."""


class Overtaken(Conflict):
    """A file has lost payload by a commit that is later than the head of the read."""

    default_remedy = (
        "read again; if it stays so, the head is older than the files, as after a restored backup: holdfast onto verify"
    )


class InvalidQuery(Invalid):
    """A query names an unknown field, or compares values of different types. Raised when it is built."""


def unknown(what: str, name: str, known: Iterable[str]) -> InvalidQuery:
    """``name`` is not a field of ``what``. Suggests a known name."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}" if names else None
    return InvalidQuery(f"{what} has no field {name}", remedy=remedy)
