"""The errors that Holdfast raises, each named for what the caller should do next. See ``docs/reference/errors.md``."""

from holdfast.base.errors import (
    Ambiguous,
    Conflict,
    Contended,
    Corrupt,
    Denied,
    Fenced,
    HoldfastError,
    Incompatible,
    Invalid,
    NotFound,
    Refused,
    Unavailable,
)

__all__ = [
    "Ambiguous",
    "Conflict",
    "Contended",
    "Corrupt",
    "Denied",
    "Fenced",
    "HoldfastError",
    "Incompatible",
    "Invalid",
    "NotFound",
    "Refused",
    "Unavailable",
]
