"""Clocks of simulated processes: each reads the world's one true time with an error of its own.

Only readings are wrong. Sleeping goes by true time, as the drift of a real clock does not matter over one sleep.
"""

from collections.abc import Callable

NS = 1_000_000_000
BEGINNING_NS = 1_700_000_000 * NS
"""What the wall clock of the world shows at the start."""


class SimClock:
    def __init__(self, now: Callable[[], float], *, skew_ms: float = 0, drift_ppm: float = 0) -> None:
        self._now = now
        self._skew_ns = int(skew_ms * 1_000_000)
        self._rate = NS * (1 + drift_ppm / 1_000_000)

    def wall_ns(self) -> int:
        return BEGINNING_NS + self._skew_ns + int(self._now() * self._rate)

    def monotonic_ns(self) -> int:
        return int(self._now() * self._rate)

    def jump(self, by_ms: float) -> None:
        """The wall clock is corrected, forwards or backwards."""
        self._skew_ns += int(by_ms * 1_000_000)
