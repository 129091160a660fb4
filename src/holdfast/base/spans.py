"""Times as people write them: ``2h`` and ``7d``, or ISO 8601. Pure."""

import re

from holdfast.base.clock import parse_iso
from holdfast.base.errors import Invalid

_SECOND = 1_000_000_000
_UNITS = {"s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND, "d": 86_400 * _SECOND, "w": 7 * 86_400 * _SECOND}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


def parse_span(text: str) -> int:
    """Nanoseconds in ``90s``, ``30m``, ``2h``, ``7d``, ``2w`` or several of them, such as ``1d12h``."""
    if not _SPAN.fullmatch(text):
        raise Invalid(f"{text!r} is not a span of time", remedy="write it like 90s, 30m, 2h, 7d or 1d12h")
    try:
        return sum(int(float(number) * _UNITS[unit]) for number, unit in _PART.findall(text))
    except OverflowError:
        raise Invalid(f"{text[:40]!r} is too long a span of time", remedy="write it like 90s, 30m, 2h or 7d") from None


def parse_moment(text: str, now_ns: int) -> int:
    """A moment: so long ago (``2h``), or a date or time (UTC unless it names a zone)."""
    if _SPAN.fullmatch(text):
        return now_ns - parse_span(text)
    try:
        return parse_iso(text)
    except (ValueError, OverflowError):
        raise Invalid(
            f"{text!r} is not a time", remedy="write 2h or 7d for so long ago, or 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
