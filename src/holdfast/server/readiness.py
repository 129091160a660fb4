"""Whether batches can be accepted here now: for ``/readyz``, and for load balancers that ask it.

A store may answer every read and take no write: its disk is full, or somebody changed its permissions. So what was
written last counts. In ``s3_manifest`` that is the newest batch, or the mark, which is written every few seconds
whether batches come or not (``ingest.marks``): it costs nothing. A spool is tried with a small write, as large as the
last batch if it did not take that. However often somebody asks, there is one small request or write every other second.

A write to a disk that hangs cannot be taken back, and may end at any time: it goes on by itself, no other is begun
beside it, and who asks is told after a second that the disk does not answer.
"""

import asyncio

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError
from holdfast.ingest import layout
from holdfast.ingest.marks import Marks
from holdfast.ingest.spool import Spool
from holdfast.objects.store import Store

EVERY_NS = 2_000_000_000
STORE_S = 2.0
DISK_S = 1.0
_CANCELS = 8


class Readiness:
    def __init__(
        self, store: Store, clock: Clock, spool: Spool | None, marks: Marks | None, *, disk_s: float = DISK_S
    ) -> None:
        """A spool has no marks, and needs no store. ``disk_s``: how long its disk has to answer."""
        self._store = store
        self._clock = clock
        self._spool = spool
        self._marks = marks
        self._disk_s = disk_s
        self._tried_ns: int | None = None
        self._trying: asyncio.Task[None] | None = None
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Why no batch can be accepted; None if there is no reason to think so."""
        now = self._clock.monotonic_ns()
        trying = self._trying
        if trying is None and (self._tried_ns is None or now - self._tried_ns >= EVERY_NS):
            self._tried_ns = now
            trying = self._trying = asyncio.create_task(self._try(), name="readiness")
        if trying is not None and not await self._ended(trying, now):
            return "the disk of the spool does not answer"
        if self._problem is None and self._marks is not None:
            return self._marks.problem
        return self._problem

    async def close(self) -> None:
        """Give up what is being tried: a disk may never answer."""
        for _ in range(_CANCELS):
            if self._trying is None:
                return
            self._trying.cancel()  # a write waits for its end when it is cancelled, but for once
            await asyncio.sleep(0)

    async def _ended(self, trying: "asyncio.Task[None]", now: int) -> bool:
        """A request to a store ends by itself. Whoever asks late need not wait for a disk that others waited for."""
        late = self._tried_ns is not None and now - self._tried_ns >= self._disk_s * 1_000_000_000
        await asyncio.wait([trying], timeout=None if self._spool is None else 0 if late else self._disk_s)
        if trying.done():
            trying.result()
        return trying.done()

    async def _try(self) -> None:
        try:
            if self._spool is None:
                async with asyncio.timeout(STORE_S):
                    await self._store.head(layout.AUTHORITY)
            else:
                await self._spool.try_to_write()
            self._problem = None
        except TimeoutError:
            self._problem = f"no answer within {STORE_S:g} s"
        except HoldfastError as error:
            self._problem = str(error)
        finally:
            self._trying = None
