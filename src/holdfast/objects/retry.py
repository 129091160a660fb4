"""The only retry layer: the SDK's own retries are off.

It repeats what is safe to repeat without looking: reads, listings (resumed after the last item seen), deletes,
unconditional writes, and conditional writes that certainly had no effect. A conditional write that may have landed, or
that met a 409, goes up to ``settle``, which looks before it tries again.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.base.errors import Contended, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.layer import Layer
from holdfast.objects.store import (
    OVERWRITE,
    Lost,
    Meta,
    Mode,
    NotModified,
    Object,
    Overwrite,
    Page,
    Part,
    Pieces,
    Store,
    Version,
    Written,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long to try. Delays double from ``base_ms`` up to ``max_ms``, each drawn from zero up."""

    attempts: int = 6
    base_ms: int = 50
    max_ms: int = 5_000
    deadline_ms: int = 60_000

    def start(self, ambient: Ambient) -> "Budget":
        return Budget(self, ambient)


class Budget:
    """One operation's allowance of attempts and time."""

    def __init__(self, policy: RetryPolicy, ambient: Ambient, started_ns: int | None = None) -> None:
        self._policy = policy
        self._ambient = ambient
        self._started_ns = started_ns if started_ns is not None else ambient.clock.monotonic_ns()
        self.spent = 0

    async def another(self) -> bool:
        """Wait before the next attempt; False when the allowance is used up."""
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


class Retrying(Layer):
    def __init__(self, inner: Store, policy: RetryPolicy, ambient: Ambient) -> None:
        super().__init__(inner)
        self._policy = policy
        self._ambient = ambient

    async def get(self, key: str) -> Object:
        return await self._repeat(lambda: self.inner.get(key))

    async def get_unless(self, key: str, version: Version) -> Object | NotModified:
        return await self._repeat(lambda: self.inner.get_unless(key, version))

    async def head(self, key: str) -> Meta:
        return await self._repeat(lambda: self.inner.head(key))

    async def range(self, key: str, start: int, end: int) -> Part:
        return await self._repeat(lambda: self.inner.range(key, start, end))

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        started_ns = self._ambient.clock.monotonic_ns()
        budget: Budget | None = None
        while True:
            try:
                return await self.inner.put(key, body, mode)
            except Unavailable as trouble:
                certain = not (trouble.maybe_applied or isinstance(trouble, Contended))
                if not (certain or isinstance(mode, Overwrite)):
                    raise
                budget = budget if budget is not None else Budget(self._policy, self._ambient, started_ns)
                if not await budget.another():
                    raise

    async def put_stream(self, key: str, pieces: Pieces) -> Written:
        return await self._repeat(lambda: self.inner.put_stream(key, pieces))

    async def delete(self, key: str) -> None:
        await self._repeat(lambda: self.inner.delete(key))

    async def delete_many(self, keys: Iterable[str]) -> None:
        wanted = list(keys)
        await self._repeat(lambda: self.inner.delete_many(wanted))

    async def list(self, prefix: str = "", *, after: str | None = None, delimiter: bool = False) -> AsyncIterator[Page]:
        budget = self._budget()
        last = after
        while True:
            try:
                async for page in self.inner.list(prefix, after=last, delimiter=delimiter):
                    yield page
                    # A page without items is no progress: a store that fails after one would be asked for ever.
                    if (reached := _last_item(page, last)) != last:
                        last, budget = reached, self._budget()
                return
            except Unavailable:
                if not await budget.another():
                    raise

    def _budget(self) -> Budget:
        return self._policy.start(self._ambient)

    async def _repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        budget = self._budget()
        while True:
            try:
                return await call()
            except Unavailable:
                if not await budget.another():
                    raise


def _last_item(page: Page, before: str | None) -> str | None:
    """Where a listing stands after ``page``: its greatest key or folder."""
    items = [entry.key for entry in page.entries[-1:]] + [*page.folders[-1:]]
    return max(items, default=before)
