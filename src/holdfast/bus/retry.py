"""When a failed event is tried again, and when it is given up. Pure.

The delay after attempt n is ``base_ms * 2^n`` up to ``max_ms``, plus a jitter of 0 to ``jitter_ms`` that the caller
draws. After ``attempts`` failures the event is dead.
"""

from dataclasses import dataclass

from holdfast.base.errors import Invalid


@dataclass(frozen=True, slots=True)
class Retry:
    attempts: int = 10
    base_ms: int = 250
    max_ms: int = 30_000
    jitter_ms: int = 100

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.base_ms, self.max_ms, self.jitter_ms) < 0:
            raise Invalid(f"{self}: at least one attempt, and no negative times")

    def is_last(self, attempts: int) -> bool:
        """Whether this many failures are all that is allowed."""
        return attempts >= self.attempts

    def delay_ns(self, attempts: int, jitter: float) -> int:
        """How long to wait after so many failures; ``jitter`` is drawn from 0 to 1."""
        backoff_ms = min(self.base_ms * 2 ** min(attempts, 60), self.max_ms)
        return int((backoff_ms + jitter * self.jitter_ms) * 1_000_000)
