"""The reconciler's progress, as collectors report it. Read only.

``meta/pipeline/reconcile.json`` holds ``through_unix_ns``: everything that was accepted up to that time has its derived
state. There is no such object before a reconciler has run, and no time in it (it is 0) before one has looked by time: a
full scan alone says nothing of references.
"""

import asyncio

from holdfast.base import codec
from holdfast.base.clock import Clock
from holdfast.base.errors import Corrupt, HoldfastError, NotFound
from holdfast.base.telemetry import logger
from holdfast.objects.store import NotModified, Object, Store, Version
from holdfast.telemetry.accept import layout

EVERY_S = 10.0
NEVER = "no reconciler has run"
NOT_YET = "the first scan of the reconciler has not ended"
_SECOND = 1_000_000_000
_log = logger("ingest")


class Reconciled:
    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._through_ns: int | None = None
        self._version: Version | None = None
        self.problem: str | None = NEVER
        """Why there is no lag to report; None if there is one."""

    def lag_s(self) -> float | None:
        """The age of the reconciled position; None if it is not known."""
        through = self._through_ns
        return None if through is None else max(0, self._clock.wall_ns() - through) / _SECOND

    async def refresh(self) -> None:
        """One GET, with a condition once the object was seen."""
        found = await self._changed()
        if found is None:
            self._through_ns, self._version, self.problem = None, None, NEVER
        elif not isinstance(found, NotModified):
            through = codec.decode(found.body, key=layout.RECONCILED).get("through_unix_ns")
            if not isinstance(through, int) or isinstance(through, bool):
                raise Corrupt(f"{layout.RECONCILED}: through_unix_ns is {through!r:.40}, which is no time")
            self._through_ns, self._version = through or None, found.version
        if found is not None:  # "not modified" is an answer too
            self.problem = NOT_YET if self._through_ns is None else None

    async def _changed(self) -> Object | NotModified | None:
        """None if there is none."""
        if self._version is None:
            return await self._store.find(layout.RECONCILED)
        try:
            return await self._store.get_unless(layout.RECONCILED, self._version)
        except NotFound:
            return None

    async def look(self) -> None:
        """Read the progress; while the store does not answer, the value read last stays."""
        try:
            await self.refresh()
        except HoldfastError as error:
            self.problem = str(error)
            _log.warning("the reconciler's progress could not be read: %s", error)

    async def run(self) -> None:
        """Read it at intervals, until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.look()
