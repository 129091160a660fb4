"""Send the batches of a queue: read them, post them, and carry out the decisions of ``sender``.

If the disk is full, a settled batch stays in the queue, and removing or parking it is retried. Parked batches are sent
again every ``parked_retry_ms``. Stopping the shipper loses nothing: batches in flight are sent again later and are
accepted once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from holdfast.base.errors import HoldfastError, NotFound, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.telemetry.agent.queue import DAMAGED, Queue, Queued
from holdfast.telemetry.agent.sender import (
    Answer,
    Answered,
    Backoff,
    Batch,
    Conflict,
    Effect,
    Event,
    Offered,
    Park,
    Rejected,
    Release,
    Report,
    Route,
    Send,
    State,
    Taken,
    Tick,
    step,
    wakes_at_ms,
)
from holdfast.telemetry.identity import BatchIdentity

_log = logger("agent")
RETRY_DISK_MS = 5_000
"""How long to wait after an error of the disk."""


class Transport(Protocol):
    async def post(self, route: int, identity: BatchIdentity, frame: bytes) -> Answer:
        """Returns ``NoAnswer`` for errors of the network; raises nothing for them."""
        ...


OnEffect = Callable[[Effect, BatchIdentity | None], None]
"""Called after every effect except ``Send``."""


@dataclass(frozen=True, slots=True)
class ShipperOptions:
    collectors: int = 1
    window: int = 4
    backoff: Backoff = Backoff()  # noqa: RUF009  # frozen
    parked_retry_ms: int = 300_000


@dataclass(slots=True)
class Shipped:
    batches: int = 0
    duplicates: int = 0
    parked: int = 0
    failures: int = 0


class Shipper:
    """One per queue."""

    def __init__(
        self,
        queue: Queue,
        transport: Transport,
        ambient: Ambient,
        options: ShipperOptions,
        on_effect: OnEffect = lambda effect, identity: None,
    ) -> None:
        self.shipped = Shipped()
        self._queue = queue
        self._transport = transport
        self._ambient = ambient
        self._options = options
        self._on_effect = on_effect
        first = ambient.rng.randrange(options.collectors)  # so that a fleet spreads over its collectors
        routes = (Route(),) * options.collectors
        self._state = State(routes, options.window, options.backoff, current=first)
        self._read_to = -1
        """The first number of the batch that was read last."""
        self._more = False
        """Whether there were more batches to read than there was room for."""
        self._loaded: dict[Batch, Queued] = {}
        """The batches that are not settled."""
        self._unrecorded: list[tuple[Release | Park, BatchIdentity]] = []
        """Settled batches that could not be removed or parked, because of an error of the disk."""
        self._disk_failed = False
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._tasks = asyncio.TaskGroup()
        """One for each request."""

    @property
    def idle(self) -> bool:
        """Whether every batch of the queue is settled."""
        return self._queue.waiting_records == 0 and self._state.idle

    @property
    def stuck(self) -> bool:
        """Whether every collector has failed since its last good answer."""
        return all(route.failures for route in self._state.routes)

    def notify(self) -> None:
        """Call this after a batch was queued."""
        self._changed.set()

    async def run(self) -> None:
        """Send, until cancelled. A transport that raises has a bug, and its batch would never be settled: this raises
        the same error."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._work()
        except BaseExceptionGroup as found:
            raise found.exceptions[0] from found

    async def _work(self) -> None:
        offer_at = self._now_ms()
        offering: asyncio.Task[int] | None = None
        while True:
            self._changed.clear()
            if self._now_ms() >= offer_at:
                if offering is not None:
                    await offering
                offering = self._tasks.create_task(self._offer_parked(), name="parked batches")
                offer_at = self._now_ms() + self._options.parked_retry_ms
            await self._fill()
            if not self._events:
                self._events.append(Tick())
            while self._events:
                await self._step(self._events.popleft())
            unrecorded, self._unrecorded = self._unrecorded, []
            for effect, identity in unrecorded:
                await self._settle(effect, identity)
            if not (self._more and self._state.room):
                await self._wait(offer_at)

    async def drain(self, patience_ms: int) -> bool:
        """Wait until every batch is settled. False if that takes longer than ``patience_ms`` or every collector
        fails."""
        until = self._now_ms() + patience_ms
        while not self.idle and self._now_ms() < until:
            if self.stuck and not self._state.in_flight:
                return False
            await asyncio.sleep(0.02)
        return self.idle

    async def _offer_parked(self) -> int:
        try:
            return await self.offer_parked()
        except HoldfastError as error:
            _log.warning("parked batches were not offered: %s", error)
            return 0

    async def offer_parked(self) -> int:
        """Send every parked batch once; returns how many of them are settled now."""
        gone = 0
        for parked in await self._queue.parked.all():
            if parked.reason == DAMAGED:
                continue
            try:
                frame = await self._queue.parked.frame(parked)
            except NotFound:  # an operator dropped it
                continue
            answer = await self._transport.post(self._state.current, parked.identity, frame)
            if isinstance(answer, Taken) or (isinstance(answer, Conflict) and answer.resolved):
                await self._queue.parked.remove(parked)
                resolved = isinstance(answer, Conflict)
                self._on_effect(Release(parked.identity.seq_start, resolved=resolved), parked.identity)
                gone += 1
            elif not isinstance(answer, Conflict | Rejected):
                break  # no collector is available; sending from the queue finds out why
        return gone

    async def _fill(self) -> None:
        """Read as many batches as there is room for."""
        self._more = self._disk_failed = False
        try:
            while self._state.room > sum(isinstance(event, Offered) for event in self._events):
                queued = await self._queue.read(self._read_to)
                if queued is None:
                    return
                self._read_to = batch = queued.identity.seq_start
                self._loaded[batch] = queued
                self._events.append(Offered(batch))
        except Unavailable as error:
            _log.warning("no batch can be read: %s", error)
            self._disk_failed = True
            return
        self._more = True

    async def _step(self, event: Event) -> None:
        self._state, effects = step(self._state, event, self._now_ms())
        for effect in effects:
            match effect:
                case Send(batch, route):
                    queued = self._loaded[batch]
                    self._tasks.create_task(self._post(queued, route), name=f"batch {queued.identity}")
                case Release(batch) | Park(batch):
                    await self._settle(effect, self._loaded.pop(batch).identity)
                case Report():
                    self.shipped.failures += not effect.good
                    self._on_effect(effect, None)

    async def _post(self, queued: Queued, route: int) -> None:
        answer = await self._transport.post(route, queued.identity, queued.frame)
        self._events.append(Answered(queued.identity.seq_start, route, answer, self._ambient.rng.random()))
        self._changed.set()

    async def _settle(self, effect: Release | Park, identity: BatchIdentity) -> None:
        try:
            if isinstance(effect, Park):
                await self._queue.park(identity, effect.reason, effect.detail)
            else:
                await self._queue.remove(identity)
        except Unavailable as error:
            _log.warning("batch %s is settled, but stays in the queue: %s", identity, error)
            self._unrecorded.append((effect, identity))
            return
        if isinstance(effect, Park):
            self.shipped.parked += 1
        else:
            self.shipped.batches += 1
            self.shipped.duplicates += effect.duplicate
        self._on_effect(effect, identity)

    async def _wait(self, offer_at: int) -> None:
        """Wait for an event, or until something is due."""
        if self._events:
            return
        now = self._now_ms()
        wakes = [offer_at]
        if self._unrecorded or self._disk_failed:
            wakes.append(now + RETRY_DISK_MS)
        due = wakes_at_ms(self._state, now)
        if due is not None:
            wakes.append(due)
        with suppress(TimeoutError):
            async with asyncio.timeout(max(1, min(wakes) - now) / 1000):
                await self._changed.wait()

    def _now_ms(self) -> int:
        return self._ambient.clock.monotonic_ns() // 1_000_000
