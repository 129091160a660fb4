"""The sealer of a session: it writes the tail of a journal into a segment while the journal's own PUT is under way.

Beside a PUT that follows on a long tail the tail is sealed; the next PUT replaces it by a reference. So nobody waits
for a segment, and none is referred to before it is written. What is sealed is recorded already, and stays as it is
whatever becomes of the PUT. A run whose sessions have no step is sealed before one of its PUTs. Sealing only saves
bytes: if it fails, the tail stays long, and it is tried again later.
"""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from holdfast.base.errors import HoldfastError
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import OVERWRITE, Store
from holdfast.runs import layout
from holdfast.runs.entry import STEP, Entry
from holdfast.runs.history import History
from holdfast.runs.segments import Ref, SegmentPolicy, make_ref, plan_seal

Sent = TypeVar("Sent")

_log = logger("runs")


class Sealer:
    def __init__(self, store: Store, ambient: Ambient, policy: SegmentPolicy) -> None:
        self._store = store
        self._ambient = ambient
        self._policy = policy
        self._sealed: tuple[Ref, ...] | None = None
        """References for the next PUT, to what was sealed beside one before."""
        self._seal_from = 0
        """The length of tail from which sealing is tried again after it failed."""

    def refs(self, history: History) -> tuple[Ref, ...]:
        """The references that the next PUT is to have."""
        return self._sealed if self._sealed is not None else history.refs

    def forget(self) -> None:
        """What was sealed is referred to now, or belongs to a history that is not ours any more."""
        self._sealed = None

    def is_due(self, history: History, last: Entry) -> bool:
        """A step is followed by something, which will refer to the segment; what ends or suspends a run may not be."""
        return self._is_long(history, self._policy.lines) and last.type == STEP

    def is_overdue(self, history: History) -> bool:
        """Whether the tail is twice as long as it should be: no step gave occasion to seal it beside."""
        return self._is_long(history, 2 * self._policy.lines)

    def _is_long(self, history: History, lines: int) -> bool:
        """Whether the tail has so many lines, and is worth sealing. Asked at every PUT: they are counted first."""
        refs = history.refs
        length = len(history.lines) - (refs[-1].end if refs else 0)
        return (
            length >= lines and length >= self._seal_from and self._sealed is None and self._policy.is_due(history.tail)
        )

    async def catch_up(self, history: History) -> None:
        """Seal before a PUT."""
        self._sealed = await self.seal(history)

    async def beside(self, history: History, sending: Awaitable[Sent]) -> Sent:
        """What a PUT gives, with the tail sealed meanwhile."""
        sealing = asyncio.ensure_future(self.seal(history))
        try:
            return await sending
        except asyncio.CancelledError:
            sealing.cancel()
            raise
        finally:
            await asyncio.wait({sealing})
            self._sealed = None if sealing.cancelled() else sealing.result()

    async def seal(self, history: History) -> tuple[Ref, ...] | None:
        """Seal the tail. The references for the next PUT; None if it failed."""
        tail = history.tail
        seal = plan_seal(self._policy, history.refs, len(history.lines), sum(map(len, tail)))
        body = b"".join(history.lines[seal.first : seal.end])
        attempt = self._ambient.ids.write_id()
        try:
            await self._store.put(layout.segment_key(history.run_id, seal.level, seal.first, attempt), body, OVERWRITE)
        except HoldfastError as error:
            _log.warning("run %s: %d lines stay in its journal for now: %s", history.run_id, len(tail), error)
            self._seal_from = len(tail) + self._policy.lines
            return None
        self._seal_from = 0
        return (*seal.kept, make_ref(seal, body, attempt))
