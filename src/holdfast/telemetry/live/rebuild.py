"""Live state when a collector starts: batches that wait in its spool, and then those that the store lists.

In this order. A batch leaves the spool only after the store lists it (``landing``), and landing goes on meanwhile: read
the other way round, one that lands in between would be in neither. What is accepted from now on is added to live state
by the collector that accepts it.

Without a spool everything that any collector acknowledged before has its reference in the store, so one look finds it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeVar

from holdfast.base.aio import blocking
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.telemetry import logger
from holdfast.telemetry.accept.accept import submission_of
from holdfast.telemetry.accept.landing import SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Spool, Spooled
from holdfast.telemetry.frame import Batch, decode
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.state import PER_BATCH, size_of

AGAIN_S = 1.0

T = TypeVar("T")
_log = logger("ingest")


@dataclass
class Rebuild:
    follower: Follower
    spooling: SpoolCollector | None = None

    async def run(self) -> int:
        """Bring in all batches, however long that takes; returns how many."""
        count = 0 if self.spooling is None else await _insist(self._from_spool)
        return count + await _insist(self.follower.poll)

    async def _from_spool(self) -> int:
        """What was accepted on this disk and has not landed, however long ago; what is being sent again just now too.
        The newest is read first, as much as fits, and the oldest is added first."""
        live, room = self.follower.live, self.follower.live.max_bytes
        if self.spooling is None:
            return 0
        settled = self.spooling.settled
        newest, more = await self._newest(self.spooling.spool)
        fetched: list[tuple[AcceptedManifest, Batch]] = []
        oldest_ns = 0
        while newest and room >= 0:
            oldest_ns = newest[-1].accepted_at_unix_ns
            found = await self._read(self.spooling, newest.pop())
            if found is not None:
                fetched.append(found)
                room -= size_of(found[1])
        if newest or more:
            live.left_out_waiting()
            live.lacks(oldest_ns)
        count = 0
        for manifest, batch in reversed(fetched):
            count += live.add(manifest, batch, waits=True)
            if settled != self.spooling.settled and await self.spooling.spool.waiting(manifest.identity) is None:
                live.landed([manifest.identity.manifest_id])  # after it was read
        return count

    async def _newest(self, spool: Spool) -> tuple[list[Spooled], bool]:
        """No more than live state may hold, the newest last; whether there are others."""
        most = self.follower.live.max_bytes // PER_BATCH + 1
        newest: list[tuple[int, int, Spooled]] = []
        number = 0
        async for spooled in spool.pending():
            number += 1
            heappush(newest, (spooled.accepted_at_unix_ns, number, spooled))
            if len(newest) > most:
                heappop(newest)
        return [spooled for _, _, spooled in sorted(newest)], number > most

    async def _read(self, spooling: SpoolCollector, spooled: Spooled) -> tuple[AcceptedManifest, Batch] | None:
        waiting = await spooling.spool.waiting(spooled.identity)
        if waiting is None:
            return None  # it has landed meanwhile, and the store lists it
        try:
            batch = await blocking(decode, waiting.body, self.follower.limits)
        except Invalid as error:
            self.follower.failed(str(spooled.identity), error)
            return None
        return spooling.manifest(submission_of(waiting.body, batch), spooled.accepted_at_unix_ns), batch


async def _insist(part: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await part()
        except HoldfastError as error:
            _log.warning("live state is not rebuilt yet: %s", error)
            await asyncio.sleep(AGAIN_S)
