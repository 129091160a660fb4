"""Time as a port. The only module that may ask the machine what time it is.

Wall time is for people and for liveness (leases, ages); it never decides safety. Sleeping goes through ``asyncio``,
whose loop the simulator replaces.
"""

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROS = 1_000_000


class Clock(Protocol):
    def wall_ns(self) -> int:
        """Nanoseconds since 1970, as this process believes them."""
        ...

    def monotonic_ns(self) -> int:
        """Nanoseconds that never run backwards within a process."""
        ...


class SystemClock:
    wall_ns = staticmethod(time.time_ns)
    monotonic_ns = staticmethod(time.monotonic_ns)


def iso(wall_ns: int) -> str:
    """UTC with microseconds and ``+00:00``, the form that every stored timestamp has."""
    seconds, micros = divmod(wall_ns // 1000, _MICROS)
    return f"{_second(seconds)}.{micros:06d}+00:00"


@lru_cache(maxsize=64)
def _second(since_1970: int) -> str:
    """Most times of a busy process are of the same few seconds."""
    return (_EPOCH + timedelta(seconds=since_1970)).replace(tzinfo=None).isoformat(timespec="seconds")


def parse_iso(text: str) -> int:
    """Nanoseconds since 1970; accepts a ``Z`` suffix and a missing fraction. A time without a zone is UTC."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000
