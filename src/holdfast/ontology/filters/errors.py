"""A query that cannot be: an unknown field, a value that does not fit one, a text that is not a predicate."""

import difflib
from collections.abc import Iterable

from holdfast.base.errors import Invalid


class InvalidQuery(Invalid):
    """A query names something that is not there, or compares what cannot be compared. Found when it is built."""


def unknown(what: str, name: str, known: Iterable[str]) -> InvalidQuery:
    """There is no ``name`` in ``what``; did they mean one of these?"""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}" if names else None
    return InvalidQuery(f"{what} has no field {name}", remedy=remedy)
