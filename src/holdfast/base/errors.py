"""Errors are named for what the caller should do next.

    HoldfastError
    ├── Invalid        fix the call
    ├── NotFound       the thing named is not there
    ├── Denied         fix credentials or permissions
    ├── Incompatible   upgrade, or convert the data
    ├── Conflict       re-read and try again
    ├── Fenced         stop: a newer owner has taken over
    ├── Unavailable    the same call later
    │   └── Contended      the store saw two writers at once (409): says nothing about the object
    ├── Ambiguous      outcome unknown: resolve by reading, never by guessing
    ├── Refused        a safety rule forbids it: read the reason before you override it
    └── Corrupt        stop and tell the operator

A message is one line that says what happened and to which object; ``remedy`` says what to do next, and is also a note
of the exception, so that a traceback shows it. The table below maps errors to HTTP statuses and exit codes.
"""

from typing import ClassVar


class HoldfastError(Exception):
    """Base class of every error that Holdfast raises deliberately."""

    kind: ClassVar[str] = "error"
    default_remedy: ClassVar[str | None] = None

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.remedy = remedy if remedy is not None else self.default_remedy
        if self.remedy:
            self.add_note(f"hint: {self.remedy}")

    @property
    def exit_code(self) -> int:
        return TABLE[self.kind].exit_code

    @property
    def http_status(self) -> int:
        return TABLE[self.kind].http_status


class Invalid(HoldfastError):
    kind = "invalid"


class NotFound(HoldfastError):
    kind = "not_found"


class Denied(HoldfastError):
    kind = "denied"


class Incompatible(HoldfastError):
    kind = "incompatible"


class Conflict(HoldfastError):
    kind = "conflict"
    default_remedy = "read the current state and try again"


class Fenced(HoldfastError):
    kind = "fenced"
    default_remedy = "stop: a newer owner has taken over"


class Unavailable(HoldfastError):
    """The store did not serve the request.

    ``maybe_applied`` is True if a write may nevertheless have taken effect (a lost response, a timeout, a 500): the
    writer must read before it decides.
    """

    kind = "unavailable"
    default_remedy = "try the same call later"

    def __init__(self, message: str, *, maybe_applied: bool = False, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.maybe_applied = maybe_applied


class Contended(Unavailable):
    """409 from a conditional write: it may be retried, and does not prove that the object exists."""


class Ambiguous(HoldfastError):
    kind = "ambiguous"
    default_remedy = "the outcome is unknown: read the object to learn it before you act again"


class Refused(HoldfastError):
    kind = "refused"


class Corrupt(HoldfastError):
    kind = "corrupt"
    default_remedy = "stop and inspect the named object; nothing was overwritten"


class Mapping:
    """One row of the table: an error kind's exit code and HTTP status."""

    __slots__ = ("exit_code", "http_status", "meaning")

    def __init__(self, exit_code: int, http_status: int, meaning: str) -> None:
        self.exit_code = exit_code
        self.http_status = http_status
        self.meaning = meaning


TABLE: dict[str, Mapping] = {
    "error": Mapping(1, 500, "an error without a kind of its own, or a check found a violation"),
    "invalid": Mapping(2, 400, "the call is wrong: fix it"),
    "incompatible": Mapping(3, 409, "a format or schema does not fit this version: upgrade or convert"),
    "not_found": Mapping(4, 404, "the thing named does not exist"),
    "unavailable": Mapping(5, 503, "the store could not be reached or is overloaded: the same call later"),
    "denied": Mapping(6, 403, "credentials or permissions are missing"),
    "refused": Mapping(7, 409, "a safety rule forbids it"),
    "conflict": Mapping(8, 409, "another writer changed it first: read and try again"),
    "fenced": Mapping(9, 409, "a newer owner has taken over: stop"),
    "ambiguous": Mapping(10, 504, "the outcome is unknown: read before acting again"),
    "corrupt": Mapping(11, 500, "stored bytes are damaged: stop and tell the operator"),
}


def check(condition: bool, message: str) -> None:
    """Raise ``Corrupt`` if an invariant does not hold. Unlike ``assert``, it also runs under ``python -O``."""
    if not condition:
        raise Corrupt(message)
