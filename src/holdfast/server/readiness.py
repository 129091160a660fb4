"""Whether batches can be accepted here now: for ``/readyz``, and for load balancers that ask it.

A store may answer every read and take no write: its disk is full, or somebody changed its permissions. So what was
written last counts. In ``s3_manifest`` that is the newest batch, or the mark, which is written every few seconds
whether batches come or not (``ingest.marks``): it costs nothing. A spool is tried with a small write, as large as the
last batch if it did not take that. However often somebody asks, there is one small request or write every other second.
"""

import asyncio

from holdfast.base.clock import Clock
from holdfast.base.errors import HoldfastError
from holdfast.ingest import layout
from holdfast.ingest.marks import Marks
from holdfast.ingest.spool import Spool
from holdfast.objects.store import Store

EVERY_NS = 2_000_000_000
TIMEOUT_S = 2.0


class Readiness:
    def __init__(self, store: Store, clock: Clock, spool: Spool | None, marks: Marks | None) -> None:
        """A spool has no marks, and needs no store."""
        self._store = store
        self._clock = clock
        self._spool = spool
        self._marks = marks
        self._tried_ns: int | None = None
        self._problem: str | None = None

    async def problem(self) -> str | None:
        """Why no batch can be accepted; None if there is no reason to think so."""
        now = self._clock.monotonic_ns()
        if self._tried_ns is None or now - self._tried_ns >= EVERY_NS:
            self._tried_ns = now
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await self._try()
                self._problem = None
            except TimeoutError:
                self._problem = f"no answer within {TIMEOUT_S:g} s"
            except HoldfastError as error:
                self._problem = str(error)
        if self._problem is None and self._marks is not None:
            return self._marks.problem
        return self._problem

    async def _try(self) -> None:
        if self._spool is None:
            await self._store.head(layout.AUTHORITY)
        else:
            await self._spool.try_to_write()
