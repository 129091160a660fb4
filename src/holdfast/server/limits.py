"""Limits per token, and of the memory of all requests together. Pure except for the clock.

Before its body is read a request is checked against the rate of its token (a token bucket), the number of requests of
that token in progress, and the memory for all requests. A request beyond a limit does not wait in a queue, but is
refused with a time to try again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.base.clock import Clock
from holdfast.base.config import IngestSection
from holdfast.server.errors import Fault

SAVED_S = 2.0
"""A token that was not used may send the requests of so many seconds at once."""
_SECOND = 1_000_000_000


@dataclass(slots=True)
class _Use:
    tokens: float
    filled_ns: int
    under_way: int = 0


class Limits:
    """A principal is the id of a token."""

    def __init__(self, section: IngestSection, clock: Clock) -> None:
        self._clock = clock
        self._rate = section.requests_per_s
        self._most_tokens = max(1.0, SAVED_S * section.requests_per_s)
        self._concurrency = section.concurrency
        self._memory_bytes = section.in_flight_bytes
        self._uses: dict[str, _Use] = {}
        self.in_flight_bytes = 0

    @property
    def under_way(self) -> int:
        return sum(use.under_way for use in self._uses.values())

    @contextmanager
    def request(self, principal: str) -> Iterator[None]:
        """Count one request of ``principal``. Beyond a limit: ``Fault`` with a time to try again."""
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
        use.under_way += 1
        try:
            yield
        finally:
            use.under_way -= 1

    @contextmanager
    def memory(self, size: int, *, reserved: int = 0) -> Iterator[None]:
        """Reserve ``size`` bytes. ``reserved`` are those that this request has reserved before."""
        if reserved + size > self._memory_bytes:
            raise Fault(
                "too_large",
                f"the request needs {reserved + size} bytes of memory, and the limit is {self._memory_bytes}",
                remedy="send smaller batches, or raise in_flight_bytes",
            )
        if self.in_flight_bytes + size > self._memory_bytes:
            raise Fault(
                "overloaded",
                f"requests use {self.in_flight_bytes} bytes, and {size} more exceed the limit of {self._memory_bytes}",
                remedy="send the same again later, or to another collector",
            )
        self.in_flight_bytes += size
        try:
            yield
        finally:
            self.in_flight_bytes -= size

    def forget(self, principals: set[str]) -> None:
        """Drop the counts of all other principals, whose tokens were revoked."""
        self._uses = {name: use for name, use in self._uses.items() if name in principals or use.under_way}

    def _filled(self, principal: str) -> _Use:
        now = self._clock.monotonic_ns()
        use = self._uses.get(principal)
        if use is None:
            use = self._uses[principal] = _Use(self._most_tokens, now)
        use.tokens = min(self._most_tokens, use.tokens + (now - use.filled_ns) / _SECOND * self._rate)
        use.filled_ns = now
        return use
