"""Times that a caller may give in several ways. Pure."""

from datetime import UTC, datetime

from holdfast.base.clock import parse_moment, parse_span
from holdfast.base.errors import Invalid

Moment = int | str | datetime
"""Nanoseconds since 1970; text such as ``2h`` for so long ago, or ISO 8601; or a ``datetime``, UTC without a zone."""

_EARLIEST, _LATEST = -(2**62), 2**62


def moment_ns(moment: Moment, now_ns: int) -> int:
    if isinstance(moment, datetime):
        zoned = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        found = round(zoned.timestamp() * 1_000_000) * 1_000
    elif isinstance(moment, str):
        found = parse_moment(moment, now_ns)
    else:
        found = int(moment)
    if not _EARLIEST < found < _LATEST:
        raise Invalid(f"{moment!r} is no time that samples can have", remedy="give nanoseconds since 1970, or 2h")
    return found


def span_ns(span: int | str) -> int:
    """Nanoseconds, or text such as ``5m``."""
    return parse_span(span) if isinstance(span, str) else int(span)
