"""Brings accepted batches into live state: when a collector starts, and for a query collector all the time.

``Follower`` finds the batches of all collectors by their references by time (``telemetry.discover``). A reference is
written before its batch is acknowledged, so after a poll live state has everything of the window that was acknowledged
before the poll began. Followers only read, so any number of collectors may follow. A poll costs one LIST per thousand
references of the latest hours; a batch costs three GETs.

``Rebuild`` fills live state at the start of a collector: from its spool and then from the store. A batch leaves the
spool only after it can be found in the store, and batches leave it meanwhile: in the other order, one of these could be
missed in both.

Errors: ``Unavailable`` ends a poll, and the next one repeats it. Bytes that are missing or wrong are counted in
``problems``, logged, and not requested again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Spool, Spooled
from holdfast.telemetry.batches import BYTES_PER_BATCH, BatchReader, memory_of
from holdfast.telemetry.discover import ListedReference, Position, Rule, resolve_all, scan
from holdfast.telemetry.frame import Batch, Limits, decode
from holdfast.telemetry.live.state import Live

READS = 8
"""Batches that are read at a time: acceptance has priority on the connections."""
SKEW_NS = 600 * 1_000_000_000
"""How far the clocks of collectors and of the store may differ."""
RETRY_S = 1.0

T = TypeVar("T")
_Found = list[tuple[AcceptedManifest, Batch]]
_log = logger("ingest.follow")


@dataclass
class Follower:
    store: Store
    live: Live
    clock: Clock
    limits: Limits
    followed_ns: int | None = None
    """When the last complete poll began: everything that was acknowledged before is here."""
    reader: BatchReader = field(init=False)
    _position: Position | None = None

    def __post_init__(self) -> None:
        self.reader = BatchReader(self.store, self.limits)

    @property
    def problems(self) -> int:
        """Number of batches that could not be read."""
        return len(self.reader.unreadable)

    async def poll(self) -> int:
        """Bring in the batches that are new since the last poll; the first one brings in those of the window. Returns
        how many were added.
        """
        began = self.clock.wall_ns()
        start, rule = self._position, Rule(late_ns=self.live.window_ns, lookback_ns=SKEW_NS)
        if start is None:
            oldest_ns = max(0, self.live.horizon_ns())
            start = Position(regular_ns=oldest_ns, deep_ns=oldest_ns)
        found = await scan(self.store, self.clock, rule, start, deep=rule.deep(start))
        count, waiting = await self._bring_in(found.new)
        self._position, self.followed_ns = found.end.without(each.id for each in waiting), began
        return count

    async def run(self, interval_s: float, *, on_error: Callable[[HoldfastError], None] | None = None) -> None:
        """Poll until cancelled. A slow store is polled less often."""
        while True:
            began = self.clock.monotonic_ns()
            try:
                await self.poll()
            except HoldfastError as error:
                if on_error is not None:
                    on_error(error)
                _log.warning("the next attempt to follow is in %g s: %s", interval_s, error)
            took = (self.clock.monotonic_ns() - began) / 1_000_000_000
            await asyncio.sleep(max(interval_s, 2 * took))

    async def _bring_in(self, references: Sequence[ListedReference]) -> tuple[int, list[ListedReference]]:
        """Read the newest first, as many as fit into memory, and add the oldest first. Returns how many were added, and
        the references that lead to no batch yet.
        """
        oldest_ns = self.live.horizon_ns() - SKEW_NS
        pending = sorted(
            (each for each in references if each.modified_ns >= oldest_ns), key=lambda each: each.modified_ns
        )
        found: _Found = []
        waiting: list[ListedReference] = []
        # The decoded size counts: a frame of a hundred bytes may have a million records.
        room = self.live.max_bytes
        while pending and room > 0:
            pending, group = pending[:-READS], pending[-READS:]
            resolved = await resolve_all(self.store, group, limit=READS)
            waiting += resolved.waiting
            for key, error in resolved.unreadable:
                self.reader.failed(key, key, error)
            wanted = [manifest for _, manifest in resolved.batches if self._wants(manifest)]
            for manifest, batch in zip(wanted, await map_bounded(wanted, self._load, limit=READS), strict=True):
                if batch is not None:
                    found.append((manifest, batch))
                    room -= memory_of(batch)
        for each in pending:
            if each.modified_ns >= self.live.horizon_ns():
                self.live.leave_out(each.modified_ns)
        found.sort(key=lambda each: each[0].accepted_at_unix_ns)
        return sum(self.live.add(manifest, batch) for manifest, batch in found), waiting

    def _wants(self, manifest: AcceptedManifest) -> bool:
        """Whether the batch is in the window and not in live state yet."""
        return manifest.accepted_at_unix_ns >= self.live.horizon_ns() and manifest.identity.manifest_id not in self.live

    async def _load(self, manifest: AcceptedManifest) -> Batch | None:
        return await self.reader.load(manifest.identity, manifest.raw_blob_key, manifest.frame_sha256)


@dataclass
class Rebuild:
    follower: Follower
    spool: Spool | None = None

    async def run(self) -> int:
        """Fill live state, however long that takes; returns how many batches were added."""
        count = 0 if self.spool is None else await _until_done(partial(self._from_spool, self.spool))
        return count + await _until_done(self.follower.poll)

    async def _from_spool(self, spool: Spool) -> int:
        """The batches of the window that have not landed. The newest are read first, as many as fit into memory, and
        the oldest are added first.
        """
        live, room = self.follower.live, self.follower.live.max_bytes
        most = room // BYTES_PER_BATCH + 1
        newest = await spool.newest(most, since_ns=live.horizon_ns())
        found: _Found = []
        for spooled in newest:
            if room < 0:
                live.leave_out(spooled.manifest.accepted_at_unix_ns)
                break
            if (batch := await self._read(spool, spooled)) is not None:
                found.append((spooled.manifest, batch))
                room -= memory_of(batch)
        if len(newest) == most:  # there may be more
            live.leave_out(newest[-1].manifest.accepted_at_unix_ns)
        return sum(live.add(manifest, batch) for manifest, batch in reversed(found))

    async def _read(self, spool: Spool, spooled: Spooled) -> Batch | None:
        frame = await spool.frame(spooled)
        if frame is None:
            return None  # it has landed meanwhile, and can be found in the store
        try:
            return await blocking(decode, frame, self.follower.limits)
        except Invalid as error:
            identity = spooled.manifest.identity
            self.follower.reader.failed(identity.manifest_id, str(identity), error)
            return None


async def _until_done(part: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await part()
        except HoldfastError as error:
            _log.warning("live state is not rebuilt yet: %s", error)
            await asyncio.sleep(RETRY_S)
