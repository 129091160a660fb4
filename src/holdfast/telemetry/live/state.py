"""Live state: recently accepted batches of a collector, in memory, limited by bytes and by age.

It is a cache: nothing durable depends on it. A batch is held as its decoded columns; queries search them. When memory
is short the oldest batches are removed first.

A batch that **waits** in a spool and is not in the store yet stays beyond the window until it has landed, because it is
visible nowhere else. It counts against the same limit of bytes.

``missing`` tells whether a batch of the window was left out for lack of memory, ``lacks_waiting`` whether a waiting
batch was.

Each (agent, boot, sequence number) counts once, even if ranges overlap: of two batches that share numbers the one with
the lower range wins, record by record, in whatever order they came.
"""

import asyncio
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

import numpy as np

from holdfast.base.clock import Clock
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Batch, Samples
from holdfast.telemetry.identity import BatchIdentity

PER_BATCH = 8_192
"""Upper estimate of the bytes of a batch's Python and array objects, beside columns and texts."""
PER_TEXT = 60
AHEAD_NS = 60 * 1_000_000_000
"""How far the clock of another collector may be ahead of ours; its batches may stay this much longer."""
_SERIES = 5 * 8
"""Bytes of a row in the table of series."""


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """One batch in live state."""

    identity: BatchIdentity
    accepted_at_ns: int
    """From its manifest, but at most ``AHEAD_NS`` in the future: the clock of its collector may be ahead."""
    collector_id: str
    batch: Batch
    size: int

    @property
    def source(self) -> tuple[str, str]:
        return self.identity.agent_id, self.identity.boot_id

    def seqs(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        batch = self.batch
        return np.concatenate([batch.samples.seq, batch.histograms.samples.seq, batch.logs.seq, batch.alerts.seq])


@dataclass(eq=False)
class Subscription:
    """New batches, one by one. A slow subscriber loses the oldest ones and learns how many.

    Pending batches are limited in number and in bytes, because they stay in memory when live state drops them."""

    most: int = 256
    most_bytes: int = 16 << 20
    missed: int = 0
    ended: bool = False
    _waiting: deque[Kept] = field(default_factory=deque)
    _bytes: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def offer(self, kept: Kept) -> None:
        self._waiting.append(kept)
        self._bytes += kept.size
        while len(self._waiting) > self.most or (self._bytes > self.most_bytes and len(self._waiting) > 1):
            self._bytes -= self._waiting.popleft().size
            self.missed += 1
        self._news.set()

    def end(self) -> None:
        self.ended = True
        self._news.set()

    async def next(self, timeout_s: float) -> tuple[Kept | None, int]:
        """The oldest pending batch and how many were lost before it; None if there is none within the timeout."""
        if not self._waiting and not self.ended:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._news.wait()
            except TimeoutError:
                return None, 0
        found = self._waiting.popleft() if self._waiting else None
        if found is not None:
            self._bytes -= found.size
        if not self._waiting and not self.ended:
            self._news.clear()
        missed, self.missed = self.missed, 0
        return found, missed


class Live:
    def __init__(self, clock: Clock, *, max_bytes: int, window_ns: int) -> None:
        self.max_bytes = max_bytes
        self.window_ns = window_ns
        self.size = 0
        self.evicted = 0
        """Number of batches that were removed or left out for lack of memory while they were within the window."""
        self._clock = clock
        self._kept: dict[str, Kept] = {}
        self._by_age: list[tuple[int, str]] = []
        """A heap by time of acceptance, which is not the order of arrival. Times are converted to the monotonic clock,
        so that changes of a wall clock never keep a batch that is in the store longer than the window."""
        self._waiting: set[str] = set()
        """Batches in memory that are not in the store yet."""
        self._overdue: list[tuple[int, str]] = []
        """A heap of the waiting batches that are older than the window; they are not in ``_by_age``."""
        self._lost_waiting_ns: int | None = None
        """When a waiting batch was last left out or removed, on the monotonic clock."""
        self._lacks_since_ns: int | None = None
        """When the latest batch that is missing for lack of memory was accepted, on the monotonic clock."""
        self._subscriptions: set[Subscription] = set()
        self._ended = False

    def __len__(self) -> int:
        return len(self._kept)

    def knows(self, manifest_id: str) -> bool:
        return manifest_id in self._kept

    def horizon_ns(self) -> int:
        """Batches accepted before this time are too old."""
        return self._clock.wall_ns() - self.window_ns

    @property
    def missing(self) -> bool:
        """Whether a batch of the window is missing for lack of memory."""
        return self._lacks_since_ns is not None and self._lacks_since_ns >= self._clock.monotonic_ns() - self.window_ns

    @property
    def lacks_waiting(self) -> bool:
        """Whether a batch that is not in the store yet is missing for lack of memory."""
        return self._lost_waiting_ns is not None

    def lacks(self, accepted_at_ns: int) -> None:
        """Record that a batch accepted at this time is missing for lack of memory."""
        age_ns = max(-AHEAD_NS, self._clock.wall_ns() - accepted_at_ns)
        self._lost(self._clock.monotonic_ns() - age_ns)

    def add(self, manifest: AcceptedManifest, batch: Batch, *, waits: bool = False) -> bool:
        """Keep an accepted batch. False if it is already here, or too old or too large. A batch that ``waits`` is not
        in the store until ``landed`` is called for it."""
        manifest_id = manifest.identity.manifest_id
        size, now, accepted_at = size_of(batch), self._clock.wall_ns(), manifest.accepted_at_unix_ns
        if manifest_id in self._kept:
            if waits:
                self._waiting.add(manifest_id)
            return False
        if now - accepted_at > self.window_ns and not waits:
            return False
        if size > self.max_bytes:
            self.lacks(accepted_at)
            if waits:
                self.left_out_waiting()
            return False
        kept = Kept(manifest.identity, min(accepted_at, now + AHEAD_NS), manifest.collector_id, batch, size)
        self._kept[manifest_id] = kept
        heappush(self._by_age, (self._clock.monotonic_ns() - (now - kept.accepted_at_ns), manifest_id))
        self.size += size
        if waits:
            self._waiting.add(manifest_id)
        self._tidy()
        if manifest_id not in self._kept:
            return False  # removed at once: it is the oldest, and memory is full
        for subscription in self._subscriptions:
            subscription.offer(kept)
        return True

    def landed(self, manifest_ids: Collection[str]) -> None:
        """These batches are in the store now: they no longer stay beyond the window."""
        self._waiting.difference_update(manifest_ids)
        if self._overdue:
            for _, manifest_id in self._overdue:
                if manifest_id not in self._waiting:
                    self._drop(manifest_id)
            self._overdue = [each for each in self._overdue if each[1] in self._waiting]
            heapify(self._overdue)

    def all_landed(self, began_ns: int) -> None:
        """Everything that waited at this time of the monotonic clock is in the store."""
        if self._lost_waiting_ns is not None and self._lost_waiting_ns < began_ns:
            self._lost_waiting_ns = None

    def left_out_waiting(self) -> None:
        """Record that a waiting batch is missing for lack of memory."""
        self._lost_waiting_ns = self._clock.monotonic_ns()

    def kept(self) -> list[Kept]:
        """All batches that are within the window or wait."""
        self._tidy()
        horizon = self.horizon_ns()
        return [
            kept
            for manifest_id, kept in self._kept.items()
            if kept.accepted_at_ns >= horizon or manifest_id in self._waiting
        ]

    def subscribe(self, most: int = 256) -> Subscription:
        subscription = Subscription(most)
        subscription.ended = self._ended
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def end(self) -> None:
        """End all subscriptions, and those made later."""
        self._ended = True
        for subscription in self._subscriptions:
            subscription.end()

    def _tidy(self) -> None:
        horizon = self._clock.monotonic_ns() - self.window_ns
        while self._by_age and self._by_age[0][0] < horizon:
            since_ns, manifest_id = heappop(self._by_age)
            if manifest_id in self._waiting:
                heappush(self._overdue, (since_ns, manifest_id))
            else:
                self._drop(manifest_id)
        while self.size > self.max_bytes:
            since_ns, manifest_id = heappop(self._overdue or self._by_age)
            if manifest_id in self._waiting:
                self.left_out_waiting()
            self._drop(manifest_id)
            if since_ns >= horizon:
                self._lost(since_ns)

    def _drop(self, manifest_id: str) -> None:
        self.size -= self._kept.pop(manifest_id).size
        self._waiting.discard(manifest_id)

    def _lost(self, since_ns: int) -> None:
        self.evicted += 1
        self._lacks_since_ns = since_ns if self._lacks_since_ns is None else max(since_ns, self._lacks_since_ns)


def size_of(batch: Batch) -> int:
    """Estimated bytes in memory: the columns exactly, and more than the objects around them take."""
    histograms, logs, alerts = batch.histograms, batch.logs, batch.alerts
    size = PER_BATCH + batch.text_bytes + PER_TEXT * len(batch.texts) + 16 * len(batch.label_sets.names)
    size += _samples_size(batch.samples)
    if len(histograms):
        size += _samples_size(histograms.samples) + 8 * len(histograms)
        size += sum(table.nbytes for table in histograms.counts)
    if len(logs):
        size += 4 * 8 * len(logs) + int(logs.message.nbytes)
    if len(alerts):
        size += 7 * 8 * len(alerts) + int(alerts.message.nbytes)
    return size


def _samples_size(samples: Samples) -> int:
    columns = 3 if samples.exact is None else 4
    return columns * 8 * len(samples) + _SERIES * len(samples.series)


def counted_once(
    kept: list[Kept],
) -> Iterator[tuple[Kept, "np.ndarray[tuple[int], np.dtype[np.int64]] | None"]]:
    """Each batch, with those of its sequence numbers that an earlier batch has already; None if there are none."""
    cluster: list[Kept] = []
    reach = -1
    for each in sorted(kept, key=lambda one: one.identity):
        if cluster and (each.source != cluster[0].source or each.identity.seq_start > reach):
            yield from _once(cluster)
            cluster, reach = [], -1
        cluster.append(each)
        reach = max(reach, each.identity.seq_end)
    yield from _once(cluster)


def _once(cluster: list[Kept]) -> Iterator[tuple[Kept, "np.ndarray[tuple[int], np.dtype[np.int64]] | None"]]:
    """``counted_once`` for batches whose ranges overlap, in order. Comparing pairs would take quadratic time."""
    if len(cluster) < 2:
        yield from ((each, None) for each in cluster)
        return
    seqs = [each.seqs() for each in cluster]
    everything = np.concatenate(seqs)
    again = np.ones(len(everything), np.bool_)
    again[np.unique(everything, return_index=True)[1]] = False  # the first of equal numbers
    end = 0
    for each, own in zip(cluster, seqs, strict=True):
        begin, end = end, end + len(own)
        taken = own[again[begin:end]]
        yield each, taken if len(taken) else None
