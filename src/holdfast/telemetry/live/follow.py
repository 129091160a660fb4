"""Batches of all collectors, brought into live state: when a collector starts, and for a query collector all the time.

New batches are found by their references by time (``telemetry.discover``), which exist before a batch is acknowledged:
after a look that began at some moment, live state has everything in its window that was acknowledged before. Reads
alone, so any number of collectors may do it. A look costs one LIST per thousand references of the latest hours; a batch
costs three GETs.

Errors: ``Unavailable`` ends a look, and the next one repeats it. Bytes that are missing or are not what their manifest
says are counted in ``problems``, logged, and not requested again.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from holdfast.base.aio import blocking, stream_bounded
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept.expired import find_expired
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.discover import Position, Rule, Seen, look, resolved
from holdfast.telemetry.frame import Batch, Limits, decode
from holdfast.telemetry.live.state import Live, size_of

AT_ONCE = 8
"""Reads in progress: acceptance has priority on the connections."""
GROUP = 32
"""References that are followed at a time: what does not fit into live state is not read."""
DECODERS = 2
"""Frames that are unpacked at a time."""
SKEW_NS = 600 * 1_000_000_000
"""How far the clocks of collectors and of the store may differ."""

_log = logger("ingest.follow")


@dataclass
class Follower:
    store: Store
    live: Live
    clock: Clock
    limits: Limits
    problems: int = 0
    followed_ns: int | None = None
    """When the last complete look began: what was acknowledged before is here."""
    _position: Position | None = None
    _decoders: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DECODERS))

    async def poll(self) -> int:
        """Bring in what is new since the last look, or at first what the window holds; how many batches."""
        began = self.clock.wall_ns()
        start, rule = self._position, Rule(late_ns=self.live.window_ns, lookback_ns=SKEW_NS)
        if start is None:
            oldest_ns = max(0, self.live.horizon_ns())
            start = Position(regular_ns=oldest_ns, deep_ns=oldest_ns)
        found = await look(self.store, self.clock, rule, start, deep=rule.deep(start))
        count, waiting = await self._bring(found.fresh)
        self._position, self.followed_ns = found.end.without(each.id for each in waiting), began
        return count

    async def run(self, interval_s: float, *, on_error: Callable[[HoldfastError], None] | None = None) -> None:
        """Follow until cancelled. A store that takes long is asked less often."""
        while True:
            began = self.clock.monotonic_ns()
            try:
                await self.poll()
            except HoldfastError as error:
                if on_error is not None:
                    on_error(error)
                _log.warning("following goes on in %g s: %s", interval_s, error)
            took = (self.clock.monotonic_ns() - began) / 1_000_000_000
            await asyncio.sleep(max(interval_s, 2 * took))

    async def _bring(self, fresh: Sequence[Seen]) -> tuple[int, list[Seen]]:
        """Fetch the newest first, as much as fits, and add the oldest first. How many were added, and the references
        that led to no batch yet."""
        oldest_ns = self.live.horizon_ns() - SKEW_NS
        found = sorted((each for each in fresh if each.modified_ns >= oldest_ns), key=lambda each: each.modified_ns)
        fetched: list[tuple[AcceptedManifest, Batch]] = []
        waiting: list[Seen] = []
        # By what batches take once they are unpacked: a frame of a hundred bytes may be a million records.
        room = self.live.max_bytes
        while found and room > 0:
            found, group = found[:-GROUP], found[-GROUP:][::-1]
            batches, missing, unreadable = await resolved(self.store, group, limit=AT_ONCE)
            waiting += missing
            for key, error in unreadable:
                self.failed(key, error)
            wanted = [manifest for _, manifest in batches if not self._skips(manifest)]
            looked = 0
            async with aclosing(stream_bounded(wanted, self._fetch, limit=AT_ONCE)) as results:
                async for result in results:
                    looked += 1
                    if result is not None:
                        fetched.append(result)
                        room -= size_of(result[1])
                    if room <= 0:
                        break
            for manifest in wanted[looked:]:
                self.live.lacks(manifest.accepted_at_unix_ns)
        for each in found:
            if each.modified_ns >= self.live.horizon_ns():
                self.live.lacks(each.modified_ns)
        fetched.sort(key=lambda each: each[0].accepted_at_unix_ns)
        return sum(self.live.add(manifest, batch) for manifest, batch in fetched), waiting

    async def _fetch(self, manifest: AcceptedManifest) -> tuple[AcceptedManifest, Batch] | None:
        try:
            body = await self._body(manifest)
            if body is None:
                return None
            async with self._decoders:
                return manifest, await blocking(self._decode, manifest, body)
        except (NotFound, Invalid, Corrupt, Incompatible) as error:
            self.failed(manifest.key, error)
            return None

    def _skips(self, manifest: AcceptedManifest) -> bool:
        """Whether the batch is too old, or in live state already."""
        return manifest.accepted_at_unix_ns < self.live.horizon_ns() or self.live.knows(manifest.identity.manifest_id)

    def failed(self, key: str, error: HoldfastError) -> None:
        """Count and log a batch that cannot be shown."""
        self.problems += 1
        _log.error("%s: not in live state: %s", key, error)

    async def _body(self, manifest: AcceptedManifest) -> bytes | None:
        """None if the bytes have expired, which is not a problem."""
        try:
            return (await self.store.get(manifest.raw_blob_key)).body
        except NotFound:
            if await find_expired(self.store, manifest.identity) is None:
                raise
            _log.info("%s: not in live state: its bytes were expired", manifest.key)
            return None

    def _decode(self, manifest: AcceptedManifest, body: bytes) -> Batch:
        if hashlib.sha256(body).hexdigest() != manifest.frame_sha256:
            raise Corrupt(f"{manifest.raw_blob_key}: its bytes do not have the hash that {manifest.key} names")
        return decode(body, self.limits)
