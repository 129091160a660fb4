"""Limits per token, and of the memory of all requests together. Pure except for the clock.

Before its body is read a request is checked against the rate of its token (a token bucket), the number of requests of
that token in progress, and the memory for all requests. Nothing here waits: a request beyond a limit is refused with a
time to try again, so no queue builds up.
"""

from dataclasses import dataclass
from typing import Self

from holdfast.base.clock import Clock
from holdfast.base.config import IngestSection
from holdfast.server.errors import Fault

_SECOND = 1_000_000_000


@dataclass(slots=True)
class _Use:
    tokens: float
    filled_ns: int
    under_way: int = 0


class Limits:
    """One per collector; a principal is a token's id."""

    def __init__(
        self, clock: Clock, *, requests_per_s: float, burst: int, concurrency: int, in_flight_bytes: int
    ) -> None:
        self._clock = clock
        self._rate = requests_per_s
        self._burst = float(burst)
        self._concurrency = concurrency
        self._room = in_flight_bytes
        self._uses: dict[str, _Use] = {}
        self.in_flight_bytes = 0

    @classmethod
    def of(cls, section: IngestSection, clock: Clock) -> Self:
        return cls(
            clock,
            requests_per_s=section.requests_per_s,
            burst=section.burst,
            concurrency=section.concurrency,
            in_flight_bytes=section.in_flight_bytes,
        )

    @property
    def under_way(self) -> int:
        return sum(use.under_way for use in self._uses.values())

    def request(self, principal: str) -> "_UnderWay":
        """Count one request of ``principal`` until the block ends, or raise a ``Fault`` that says when to try again."""
        use = self._filled(principal)
        if use.under_way >= self._concurrency:
            raise Fault(
                "concurrency_limited",
                f"token {principal}: {use.under_way} requests are in progress, which is the limit",
                remedy="send fewer at the same time, or use more tokens",
            )
        if use.tokens < 1:
            raise Fault(
                "rate_limited",
                f"token {principal}: more than {self._rate:g} requests per second",
                remedy="send larger batches less often",
                retry_after_s=(1 - use.tokens) / self._rate,
            )
        use.tokens -= 1
        return _UnderWay(use)

    def memory(self, size: int, *, held: int = 0) -> "_Held":
        """Reserve ``size`` bytes until the block ends. ``held`` is what this request has reserved already."""
        if held + size > self._room:
            raise Fault(
                "too_large",
                f"the request needs {held + size} bytes of memory, and the limit is {self._room}",
                remedy="send smaller batches, or raise in_flight_bytes",
            )
        if self.in_flight_bytes + size > self._room:
            raise Fault(
                "overloaded",
                f"requests hold {self.in_flight_bytes} bytes, and {size} more exceed the limit of {self._room}",
                remedy="send the same again later, or to another collector",
            )
        return _Held(self, size)

    def forget(self, principals: set[str]) -> None:
        """Drop the counts of all others, whose tokens were revoked."""
        self._uses = {name: use for name, use in self._uses.items() if name in principals or use.under_way}

    def _filled(self, principal: str) -> _Use:
        now = self._clock.monotonic_ns()
        use = self._uses.get(principal)
        if use is None:
            use = self._uses[principal] = _Use(self._burst, now)
        use.tokens = min(self._burst, use.tokens + (now - use.filled_ns) / _SECOND * self._rate)
        use.filled_ns = now
        return use


class _UnderWay:
    """Counts one request during a block. Cheaper than a generator-based context manager."""

    __slots__ = ("_use",)

    def __init__(self, use: _Use) -> None:
        self._use = use

    def __enter__(self) -> None:
        self._use.under_way += 1

    def __exit__(self, *_: object) -> None:
        self._use.under_way -= 1


class _Held:
    """Reserves bytes during a block."""

    __slots__ = ("_limits", "_size")

    def __init__(self, limits: Limits, size: int) -> None:
        self._limits = limits
        self._size = size

    def __enter__(self) -> None:
        self._limits.in_flight_bytes += self._size

    def __exit__(self, *_: object) -> None:
        self._limits.in_flight_bytes -= self._size
