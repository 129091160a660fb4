"""Entries: the lines of a journal, and their one JSON form.

An entry is one of seven types, and says in which session it was written, at which offset, and when. Everything else is
in ``fields``: what we know, and what we do not, which is kept as it is. A line of ours is canonical JSON; a line of
those of other programs may have any order of keys, a time with or without a fraction, more fields or fewer.

Errors: ``Invalid`` for an entry that cannot be written; ``Corrupt`` for a line that is none, naming the object, the
line and the offset that the line ought to have.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn

from holdfast.base import codec
from holdfast.base.clock import parse_iso
from holdfast.base.errors import Corrupt, Invalid

START = "start"
STEP = "step"
SUSPEND = "suspend"
RESUME = "resume"
COMPLETE = "complete"
ERROR = "error"
CANCEL = "cancel"

TYPES = frozenset((START, STEP, SUSPEND, RESUME, COMPLETE, ERROR, CANCEL))

_RESERVED = frozenset(("type", "session", "offset", "timestamp"))
_SCALARS = frozenset((str, int, float, bool, type(None)))
"""What JSON gives back as it was, if it takes it."""


@dataclass(slots=True)
class Draft:
    """An entry before it has a session and an offset. Not frozen, because that is slower, but never modified."""

    type: str
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Entry:
    """One line of a journal. ``timestamp`` is kept as it was written. Never modified, like ``Draft``."""

    type: str
    session: int
    offset: int
    timestamp: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def timestamp_ns(self) -> int:
        return parse_iso(self.timestamp)


def format_line(entry: Entry) -> bytes:
    """Canonical JSON and a newline."""
    if entry.type not in TYPES:
        raise Invalid(f"{entry.type!r} is not a type of entry", remedy=f"use one of {', '.join(sorted(TYPES))}")
    if not _RESERVED.isdisjoint(entry.fields):
        clash = _RESERVED & entry.fields.keys()
        raise Invalid(f"a {entry.type} entry cannot have a field of its own called {', '.join(sorted(clash))}")
    document = {
        **entry.fields,
        "type": entry.type,
        "session": entry.session,
        "offset": entry.offset,
        "timestamp": entry.timestamp,
    }
    return codec.encode(document) + b"\n"


def as_read(entry: Entry, line: bytes) -> Entry:
    """The entry as it is parsed from its line; JSON does not give back every value as it was."""
    if _SCALARS.issuperset(map(type, entry.fields.values())):
        return entry
    try:
        return parse_line(line, key="an entry", number=1, first=entry.offset)
    except Corrupt as error:
        raise Invalid(f"what was written could not be read again: {error}") from error


def parse_line(line: bytes, *, key: str, number: int, first: int = 0) -> Entry:
    """The entry in a line. ``number`` counts the object's lines from 1; its first entry has the offset ``first``."""
    try:
        document = _DECODER.decode(line.decode())
        return _entry(document)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{key}: line {number} (offset {first + number - 1}): {_explained(error)}") from error


def _entry(document: object) -> Entry:
    if not isinstance(document, dict):
        raise _NoEntry(f"a JSON object was expected, found {type(document).__name__}")
    take = document.pop
    kind, session = take("type", None), take("session", None)
    offset, timestamp = take("offset", None), take("timestamp", None)
    if not isinstance(kind, str) or kind not in TYPES:
        raise _NoEntry(f"{kind!r} is not a type of entry")
    if not _is_count(session):
        raise _NoEntry(f"session {session!r} is not a number")
    if not _is_count(offset):
        raise _NoEntry(f"offset {offset!r} is not a number")
    if not _is_time(timestamp):
        raise _NoEntry(f"timestamp {timestamp!r} is not a time")
    return Entry(kind, session, offset, timestamp, document)


class _NoEntry(ValueError):
    """JSON, but not an entry."""


def _explained(error: Exception) -> str:
    return str(error) if isinstance(error, _NoEntry) else f"not JSON ({error})"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_time(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        datetime.fromisoformat(value)
    except ValueError:
        return False
    return True


def _no_number(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number)
