"""Time is injected as a ``Clock``; only this module reads the machine's clock. Also: times as text.

Wall time is for people and for liveness (leases, ages); it never decides safety. Code sleeps through ``asyncio``, whose
event loop the simulator replaces.
"""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from holdfast.base.errors import Invalid

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = 1_000_000_000
_LONGEST_NS = 100 * 366 * 86_400 * _SECOND
_UNITS = {"s": _SECOND, "m": 60 * _SECOND, "h": 3600 * _SECOND, "d": 86_400 * _SECOND, "w": 7 * 86_400 * _SECOND}
_SPAN = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since 1970, according to this machine."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never decrease within a process."""
        ...


class SystemClock:
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


def iso(wall_ns: int) -> str:
    """UTC with microseconds and ``+00:00``, the form of every stored timestamp."""
    return (_EPOCH + timedelta(microseconds=wall_ns // 1000)).isoformat(timespec="microseconds")


def parse_iso(text: str) -> int:
    """Nanoseconds since 1970; accepts a ``Z`` suffix and a missing fraction. A time without a zone is UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000


def parse_span(text: str) -> int:
    """Nanoseconds in ``90s``, ``30m``, ``2h``, ``7d``, ``2w`` or a sum such as ``1d12h``."""
    if not _SPAN.fullmatch(text):
        raise Invalid(f"{text!r} is not a span of time", remedy="write it like 90s, 30m, 2h, 7d or 1d12h")
    parts = [float(number) * _UNITS[unit] for number, unit in _PART.findall(text)]
    if sum(parts) > _LONGEST_NS:
        raise Invalid(f"{text[:40]!r} is longer than 100 years", remedy="give a shorter span of time")
    return sum(map(int, parts))


def parse_moment(text: str, now_ns: int) -> int:
    """Nanoseconds since 1970: a span before now (``2h``), or an ISO 8601 date or time (UTC unless it names a zone)."""
    if _SPAN.fullmatch(text):
        return now_ns - parse_span(text)
    try:
        return parse_iso(text)
    except ValueError:
        raise Invalid(
            f"{text!r} is not a time", remedy="write 2h or 7d for that long ago, or 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
