"""Retries: attempts with exponential backoff, full jitter and a deadline."""

import asyncio
from dataclasses import dataclass

from holdfast.base.ids import Ambient


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """The n-th delay is drawn between zero and ``base_ms * 2**(n-1)``, which is at most ``max_ms``."""

    attempts: int = 6
    base_ms: int = 50
    max_ms: int = 5_000
    deadline_ms: int = 60_000

    def start(self, ambient: Ambient, started_ns: int | None = None) -> "Budget":
        """``started_ns`` is when the first attempt began; now by default."""
        return Budget(self, ambient, started_ns if started_ns is not None else ambient.clock.monotonic_ns())


class Budget:
    """The remaining attempts and time of one operation. Made by ``RetryPolicy.start``."""

    def __init__(self, policy: RetryPolicy, ambient: Ambient, started_ns: int) -> None:
        self._policy = policy
        self._ambient = ambient
        self._started_ns = started_ns
        self.spent = 0

    async def another(self) -> bool:
        """Wait before the next attempt; False, at once, when the attempts or the time are used up."""
        self.spent += 1
        if self.spent >= self._policy.attempts:
            return False
        ceiling = min(self._policy.max_ms, self._policy.base_ms * 2 ** (self.spent - 1))
        delay_ms = self._ambient.rng.uniform(0, ceiling)
        elapsed_ms = (self._ambient.clock.monotonic_ns() - self._started_ns) / 1e6
        if elapsed_ms + delay_ms > self._policy.deadline_ms:
            return False
        await asyncio.sleep(delay_ms / 1000)
        return True
