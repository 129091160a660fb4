"""Whether batches can be accepted now: for ``/readyz``, which load balancers request.

A store may answer reads and refuse writes: its disk is full, or its permissions were changed. So the result of the last
write counts. With ``s3_manifest`` that is the newest batch; if that failed, an object of the same size is written (a
store that is nearly full still accepts small ones). With a spool a small file is written, or one as large as the newest
batch if that failed. There is at most one such request or write every two seconds.

A write to a disk that hangs cannot be cancelled: it continues in the background, no second one is started, and after
one second the answer is that the disk does not respond.
"""

import asyncio
import hashlib

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError
from holdfast.objects.store import OVERWRITE, Store
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.spool import Spool

EVERY_NS = 2_000_000_000
STORE_S = 2.0
DISK_S = 1.0
PROBE_BYTES = 1 << 20
_CANCELS = 8


class Readiness:
    def __init__(
        self, store: Store, clock: Clock, spool: Spool | None, collector_id: str, *, disk_s: float = DISK_S
    ) -> None:
        """With a spool the store is not tried. ``disk_s`` is the time limit of a write to the spool's disk."""
        self._store = store
        self._clock = clock
        self._spool = spool
        self._probe_key = layout.probe_key(collector_id)
        self._refused_bytes: int | None = None
        self._disk_s = disk_s
        self._tried_ns: int | None = None
        self._trying: asyncio.Task[None] | None = None
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Why no batch can be accepted; None if there is no known reason."""
        now = self._clock.monotonic_ns()
        trying = self._trying
        if trying is None and (self._tried_ns is None or now - self._tried_ns >= EVERY_NS):
            self._tried_ns = now
            trying = self._trying = asyncio.create_task(self._try(), name="readiness")
        if trying is not None and not await self._ended(trying, now):
            return "the disk of the spool does not respond"
        return self._problem

    def accepted(self) -> None:
        """The store has accepted a batch."""
        self._problem = self._refused_bytes = None

    def refused(self, problem: str, size: int) -> None:
        """The store has not accepted a batch of this size. A spool keeps this itself."""
        if self._spool is None:
            self._problem, self._refused_bytes = problem, min(size, PROBE_BYTES)
            self._tried_ns = self._clock.monotonic_ns()

    async def close(self) -> None:
        """Cancel the attempt: a disk may never respond."""
        for _ in range(_CANCELS):
            if self._trying is None:
                return
            self._trying.cancel()  # after the first cancellation a write still waits for its end
            await asyncio.sleep(0)

    async def _ended(self, trying: "asyncio.Task[None]", now: int) -> bool:
        """Whether the attempt has ended. A request to a store has a timeout itself; a disk gets ``disk_s``."""
        late = self._tried_ns is not None and now - self._tried_ns >= self._disk_s * 1_000_000_000
        await asyncio.wait([trying], timeout=None if self._spool is None else 0 if late else self._disk_s)
        if trying.done():
            trying.result()
        return trying.done()

    async def _try(self) -> None:
        try:
            if self._spool is None:
                async with asyncio.timeout(STORE_S):
                    await self._try_store()
            else:
                await self._spool.try_to_write()
            self._problem = None
        except TimeoutError:
            self._problem = f"no answer within {STORE_S:g} s"
        except HoldfastError as error:
            self._problem = str(error)
        finally:
            self._trying = None

    async def _try_store(self) -> None:
        size = self._refused_bytes
        if size is None:
            await self._store.head(layout.AUTHORITY)
            return
        await self._store.put(self._probe_key, hashlib.shake_256(b"probe").digest(size), OVERWRITE)
        self._refused_bytes = None
