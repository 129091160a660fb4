"""Live state: the batches that a collector accepted recently, in memory, limited by age (``window_ns``) and by bytes.

It is a cache: nothing durable depends on it. Batches are held as decoded columns, which ``select`` searches. When
memory is short the oldest batches are dropped first, and ``missing`` says that a batch of the window is not here. If
this machine's clock is set back, what is here stays longer by as much, within the same memory.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush

from holdfast.base.clock import Clock
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.batches import memory_of
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.identity import BatchIdentity


@dataclass(frozen=True, slots=True, eq=False)
class LiveBatch:
    identity: BatchIdentity
    accepted_at_ns: int
    """From the manifest, but not in the future: the clock of another collector may be ahead."""
    collector_id: str
    batch: Batch
    size: int


@dataclass(eq=False)
class Subscription:
    """New batches, one by one. A slow subscriber loses the oldest ones and learns how many: pending batches are limited
    in bytes, because they stay in memory when live state drops them.
    """

    max_bytes: int = 16 << 20
    missed: int = 0
    ended: bool = False
    _pending: deque[LiveBatch] = field(default_factory=deque)
    _bytes: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, batch: LiveBatch) -> None:
        self._pending.append(batch)
        self._bytes += batch.size
        while self._bytes > self.max_bytes and len(self._pending) > 1:
            self._bytes -= self._pending.popleft().size
            self.missed += 1
        self._changed.set()

    def end(self) -> None:
        self.ended = True
        self._changed.set()

    async def next(self, timeout_s: float) -> tuple[LiveBatch | None, int]:
        """The oldest pending batch and how many were lost before it; None if there is none within the timeout."""
        if not self._pending and not self.ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            except TimeoutError:
                return None, 0
        found = self._pending.popleft() if self._pending else None
        if found is not None:
            self._bytes -= found.size
        if not self._pending and not self.ended:
            self._changed.clear()
        missed, self.missed = self.missed, 0
        return found, missed


class Live:
    def __init__(self, clock: Clock, *, max_bytes: int, window_ns: int) -> None:
        self.max_bytes = max_bytes
        self.window_ns = window_ns
        self.size = 0
        """Bytes of all batches."""
        self.evicted = 0
        """Number of batches that were dropped or left out for lack of memory while they were within the window."""
        self._clock = clock
        self._batches: dict[str, LiveBatch] = {}
        self._by_age: list[tuple[int, str]] = []
        """A heap by time of acceptance, which is not the order of arrival."""
        self._missing_ns = 0
        """When the latest batch that is missing for lack of memory was accepted."""
        self._subscriptions: set[Subscription] = set()
        self._ended = False

    def __len__(self) -> int:
        return len(self._batches)

    def __contains__(self, manifest_id: str) -> bool:
        return manifest_id in self._batches

    def horizon_ns(self) -> int:
        """Batches accepted before this time are too old."""
        return self._clock.wall_ns() - self.window_ns

    @property
    def missing(self) -> bool:
        """Whether a batch of the window is missing for lack of memory."""
        return self._missing_ns >= self.horizon_ns()

    def leave_out(self, accepted_at_ns: int) -> None:
        """Record that a batch accepted at this time is missing for lack of memory."""
        self.evicted += 1
        self._missing_ns = max(self._missing_ns, min(accepted_at_ns, self._clock.wall_ns()))

    def add(self, manifest: AcceptedManifest, batch: Batch) -> bool:
        """Add an accepted batch. False if it is here already, too old, or too large for the memory."""
        manifest_id, accepted_at_ns = manifest.identity.manifest_id, manifest.accepted_at_unix_ns
        if manifest_id in self or accepted_at_ns < self.horizon_ns():
            return False
        size = memory_of(batch)
        if size > self.max_bytes:
            self.leave_out(accepted_at_ns)
            return False
        accepted_at_ns = min(accepted_at_ns, self._clock.wall_ns())
        added = LiveBatch(manifest.identity, accepted_at_ns, manifest.collector_id, batch, size)
        self._batches[manifest_id] = added
        heappush(self._by_age, (accepted_at_ns, manifest_id))
        self.size += size
        self._drop()
        if manifest_id not in self:
            return False  # dropped at once: it is the oldest, and memory is full
        for subscription in self._subscriptions:
            subscription.offer(added)
        return True

    def batches(self) -> list[LiveBatch]:
        """All batches of the window."""
        self._drop()
        return list(self._batches.values())

    def subscribe(self) -> Subscription:
        subscription = Subscription(ended=self._ended)
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def end(self) -> None:
        """End all subscriptions, and those made later."""
        self._ended = True
        for subscription in self._subscriptions:
            subscription.end()

    def _drop(self) -> None:
        """Drop what is too old, and the oldest batches if all together are too large."""
        horizon_ns = self.horizon_ns()
        while self._by_age and (self._by_age[0][0] < horizon_ns or self.size > self.max_bytes):
            accepted_at_ns, manifest_id = heappop(self._by_age)
            self.size -= self._batches.pop(manifest_id).size
            if accepted_at_ns >= horizon_ns:
                self.leave_out(accepted_at_ns)
