"""Live state when a collector starts: what waits in its spool, and then what the store lists.

In this order. A batch leaves the spool only after the store lists it (``landing``), and landing goes on meanwhile: read
the other way round, one that lands in between would be in neither. What is accepted from now on is told to live state
by whoever accepts it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from holdfast.base.aio import blocking
from holdfast.base.errors import HoldfastError, Invalid
from holdfast.base.telemetry import logger
from holdfast.ingest.follow import Follower
from holdfast.ingest.frame import decode
from holdfast.ingest.landing import SpoolCollector
from holdfast.ingest.spool import Spooled
from holdfast.ingest.submit import submission_of

AGAIN_S = 1.0

_log = logger("ingest")


@dataclass
class Rebuild:
    follower: Follower
    spooling: SpoolCollector | None = None

    async def run(self) -> int:
        """How many batches were brought in, once all were, however long that takes."""
        waiting = 0 if self.spooling is None else await _insist(self._from_spool)
        return waiting + await _insist(self.follower.rebuild)

    async def _from_spool(self) -> int:
        """What was accepted on this disk and has not landed; what is being sent again just now too."""
        count = 0
        if self.spooling is not None:
            async for spooled in self.spooling.spool.pending():
                if spooled.accepted_at_unix_ns >= self.follower.live.horizon_ns():
                    count += await self._bring(self.spooling, spooled)
        return count

    async def _bring(self, spooling: SpoolCollector, spooled: Spooled) -> bool:
        waiting = await spooling.spool.waiting(spooled.identity)
        if waiting is None:
            return False  # it has landed meanwhile, and the store lists it
        try:
            batch = await blocking(decode, waiting.body, self.follower.limits)
        except Invalid as error:
            self.follower.failed(str(spooled.identity), error)
            return False
        manifest = spooling.manifest(submission_of(waiting.body, batch), spooled.accepted_at_unix_ns)
        return self.follower.live.add(manifest, batch)


async def _insist(part: Callable[[], Awaitable[int]]) -> int:
    while True:
        try:
            return await part()
        except HoldfastError as error:
            _log.warning("live state is not rebuilt yet: %s", error)
            await asyncio.sleep(AGAIN_S)
