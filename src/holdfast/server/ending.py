"""How long the end of a collector may take, whatever its store does.

Requests under way have ``drain_ms``. What is owed after that (references, the mark, what a spool still holds) has the
time that is left, and a moment in any case. A store that does not answer keeps nobody waiting then: all of it is made
up for later, as after a crash.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from holdfast.base.clock import Clock
from holdfast.base.telemetry import logger

LEAST_S = 2.0
"""For each part, when the time was used up by requests."""

_log = logger("server")


@dataclass
class Ending:
    clock: Clock
    drain_ms: int
    _begun_ns: int | None = None

    def begin(self) -> None:
        """The time runs from now on."""
        self._begun_ns = self.clock.monotonic_ns()

    def left_s(self) -> float:
        passed_ns = 0 if self._begun_ns is None else self.clock.monotonic_ns() - self._begun_ns
        return max(LEAST_S, self.drain_ms / 1_000 - passed_ns / 1_000_000_000)

    def of(self, what: str, part: AbstractAsyncContextManager[Any]) -> "Part":
        return Part(self, what, part)


@dataclass
class Part:
    """A part of a collector, whose end takes no longer than there is time."""

    ending: Ending
    what: str
    inner: AbstractAsyncContextManager[Any]

    async def __aenter__(self) -> None:
        await self.inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(self.ending.left_s()):
                await self.inner.__aexit__(kind, error, trace)
        except TimeoutError:
            _log.warning("%s: not finished in time, and left to be made up for", self.what)
