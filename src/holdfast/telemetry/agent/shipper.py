"""Send the batches of a queue: read them, post them, and carry out the decisions of ``sender``.

A batch leaves the queue when it and all batches before it are settled. Parking writes the parked copy first; if the
disk is full, the batch stays in the queue and parking is retried. Parked batches are sent again every
``parked_retry_ms``. Stopping the shipper loses nothing: batches in flight are sent again later and are accepted once.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.base.errors import Corrupt, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.telemetry.agent.queue import Parked, Position, Queue, Queued, parked_names, read_parked, write_parked
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
FULL_DISK_MS = 5_000
"""How long to wait before parking is retried on a full disk."""


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
class _Place:
    """A batch that was read from the queue; kept until it and all batches before it are settled."""

    after: Position
    next_seq: int
    settled: bool = False


@dataclass(slots=True)
class Shipped:
    batches: int = 0
    duplicates: int = 0
    parked: int = 0
    failures: int = 0


@dataclass(slots=True)
class _InMemory:
    """The batches that were read from the queue and are not settled."""

    reading: Position
    loaded: dict[Batch, Queued] = field(default_factory=dict)
    places: deque[_Place] = field(default_factory=deque)
    by_batch: dict[Batch, _Place] = field(default_factory=dict)
    unparked: list[Park] = field(default_factory=list)


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
        self._memory = _InMemory(queue.cursor)
        self._events: deque[Event] = deque()
        self._changed = asyncio.Event()
        self._sends: set[asyncio.Task[None]] = set()
        self._offering: asyncio.Task[int] | None = None
        self._broken: BaseException | None = None

    @property
    def idle(self) -> bool:
        """Whether every batch of the queue is settled."""
        return self._queue.waiting_records == 0 and self._state.idle and not self._memory.unparked

    @property
    def stuck(self) -> bool:
        """Whether every collector has failed since its last good answer."""
        return all(route.failures for route in self._state.routes)

    def notify(self) -> None:
        """Call this after a batch was queued."""
        self._changed.set()

    async def run(self) -> None:
        """Send, until cancelled."""
        try:
            await self._work()
        finally:
            left: list[asyncio.Task[Any]] = [*self._sends, *([self._offering] if self._offering else [])]
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    async def _work(self) -> None:
        offer_at = self._now_ms()
        while True:
            self._changed.clear()
            if self._broken is not None:
                raise self._broken
            if self._now_ms() >= offer_at:
                if self._offering is not None:
                    await self._offering
                self._offering = asyncio.create_task(self._offer_parked(), name="parked batches")
                offer_at = self._now_ms() + self._options.parked_retry_ms
            await self._fill()
            if not self._events:
                self._events.append(Tick())
            while self._events:
                await self._step(self._events.popleft())
            await self._park_again()
            if self._state.room and await self._peek():
                continue
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
        for name in await parked_names(self._queue.folder):
            try:
                parked = await read_parked(self._queue.folder, name)
            except Corrupt:
                continue  # damaged: `parked list` shows it
            if parked is None:
                continue
            answer = await self._transport.post(self._state.current, parked.identity, parked.frame)
            if isinstance(answer, Taken) or (isinstance(answer, Conflict) and answer.resolved):
                size = await self._queue.folder.size(name) or 0
                await self._queue.folder.remove(name)
                self._queue.parked_bytes -= size
                resolved = isinstance(answer, Conflict)
                self._on_effect(Release(parked.identity.seq_start, resolved=resolved), parked.identity)
                gone += 1
            elif not isinstance(answer, Conflict | Rejected):
                break  # no collector is available; sending from the queue finds out why
        return gone

    async def _fill(self) -> None:
        while self._state.room > sum(isinstance(event, Offered) for event in self._events):
            queued = await self._peek()
            if queued is None:
                return
            batch = queued.identity.seq_start
            place = _Place(queued.after, queued.identity.seq_end + 1)
            self._memory.reading = queued.after
            self._memory.loaded[batch] = queued
            self._memory.by_batch[batch] = place
            self._memory.places.append(place)
            self._events.append(Offered(batch))

    async def _peek(self) -> Queued | None:
        return await self._queue.read(self._memory.reading)

    async def _step(self, event: Event) -> None:
        self._state, effects = step(self._state, event, self._now_ms())
        for effect in effects:
            match effect:
                case Send(batch, route):
                    self._send(self._memory.loaded[batch], route)
                case Release(batch):
                    self.shipped.batches += 1
                    self.shipped.duplicates += effect.duplicate
                    await self._settle(batch, effect)
                case Park():
                    await self._park(effect)
                case Report():
                    self.shipped.failures += not effect.good
                    self._on_effect(effect, None)

    def _send(self, queued: Queued, route: int) -> None:
        task = asyncio.create_task(self._post(queued, route), name=f"batch {queued.identity}")
        self._sends.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: "asyncio.Task[None]") -> None:
        """A transport that raises has a bug, and its batch would never be settled: ``run`` raises the same error."""
        self._sends.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error
            self._changed.set()

    async def _post(self, queued: Queued, route: int) -> None:
        answer = await self._transport.post(route, queued.identity, queued.frame)
        self._events.append(Answered(queued.identity.seq_start, route, answer, self._ambient.rng.random()))
        self._changed.set()

    async def _park(self, effect: Park) -> None:
        queued = self._memory.loaded[effect.batch]
        parked = Parked(
            queued.identity,
            queued.frame,
            effect.reason,
            effect.detail,
            str(effect.route),
            self._ambient.clock.wall_ns(),
        )
        try:
            before = await self._queue.folder.size(parked.name) or 0
            self._queue.parked_bytes += await write_parked(self._queue.folder, parked) - before
        except Unavailable:
            await self._queue.use_reserve()  # no later batch leaves the queue before this one is parked
            self._memory.unparked.append(effect)
            return
        self.shipped.parked += 1
        await self._settle(effect.batch, effect)

    async def _park_again(self) -> None:
        waiting, self._memory.unparked = self._memory.unparked, []
        for effect in waiting:
            await self._park(effect)

    async def _settle(self, batch: Batch, effect: Release | Park) -> None:
        queued = self._memory.loaded.pop(batch)
        self._memory.by_batch.pop(batch).settled = True
        places = self._memory.places
        done: _Place | None = None
        while places and places[0].settled:
            done = places.popleft()
        self._on_effect(effect, queued.identity)
        if done is not None:
            await self._queue.advance(done.after, done.next_seq)

    async def _wait(self, offer_at: int) -> None:
        now = self._now_ms()
        wakes = [offer_at]
        if self._memory.unparked:
            wakes.append(now + FULL_DISK_MS)
        due = wakes_at_ms(self._state, now)
        if due is not None:
            wakes.append(due)
        if self._events:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(max(1, min(wakes) - now) / 1000):
                await self._changed.wait()

    def _now_ms(self) -> int:
        return self._ambient.clock.monotonic_ns() // 1_000_000
