"""What one token may ask for, and what all requests together may hold. Pure but for the clock.

A request passes three gates before its body is read: the rate of its token (a bucket that fills with time), how many
requests of the token are under way, and the memory for all of them. Nothing here waits: who does not fit is told when
to come again, so a queue never builds up inside.
"""

from dataclasses import dataclass
from typing import Self

from holdfast.base.clock import Clock
from holdfast.base.config import IngestSection
from holdfast.server.faults import Fault

_SECOND = 1_000_000_000


@dataclass(slots=True)
class _Use:
    tokens: float
    filled_ns: int
    under_way: int = 0


class Limits:
    """One for a collector; a principal is a token's id."""

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
        """Room for one request of ``principal``, or a ``Fault`` that says when to try again."""
        use = self._filled(principal)
        if use.under_way >= self._concurrency:
            raise Fault(
                "concurrency_limited",
                f"token {principal}: {use.under_way} requests are under way, the most that are allowed",
                remedy="send fewer at a time, or use more tokens",
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
        """Room for ``size`` bytes until the block ends. ``held`` is what this request has reserved before."""
        if held + size > self._room:
            raise Fault(
                "too_large",
                f"the request needs {held + size} bytes of memory, and {self._room} are all there is",
                remedy="send smaller batches, or raise in_flight_bytes",
            )
        if self.in_flight_bytes + size > self._room:
            raise Fault(
                "overloaded",
                f"{self.in_flight_bytes} bytes of requests are under way, and {size} more do not fit",
                remedy="send it again later, or to another collector",
            )
        return _Held(self, size)

    def forget(self, principals: set[str]) -> None:
        """Drop what is known of all others: their tokens are gone."""
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
    """One request more, from the beginning of a block to its end. (Generators would do, at several times the cost.)"""

    __slots__ = ("_use",)

    def __init__(self, use: _Use) -> None:
        self._use = use

    def __enter__(self) -> None:
        self._use.under_way += 1

    def __exit__(self, *_: object) -> None:
        self._use.under_way -= 1


class _Held:
    """So many bytes, from the beginning of a block to its end."""

    __slots__ = ("_limits", "_size")

    def __init__(self, limits: Limits, size: int) -> None:
        self._limits = limits
        self._size = size

    def __enter__(self) -> None:
        self._limits.in_flight_bytes += self._size

    def __exit__(self, *_: object) -> None:
        self._limits.in_flight_bytes -= self._size
