"""The runner: gives events to handlers until it is stopped, or until there is nothing left to do.

It polls, sweeps when a sweep is due, claims what its handlers have room for, and writes what it has learned to the
digest at most once per poll. Stopping is graceful: nothing new is claimed, handlers have a grace period, and events
whose handlers have not finished are handed back; that does not count as a failure. Cancelling skips the grace period.

How often it polls: every ``poll_ms`` while it works and has a free place, every second ``poll_ms`` while it has none or
nothing to do, and after ``CALM_S`` without any event every ``CALM_POLLS`` of them; then it also sends fewer heartbeats
and sweeps less often. What this process publishes ends the wait.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import telemetry
from holdfast.base.config import BusSection
from holdfast.base.errors import Corrupt, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.claim import Claim, Retry
from holdfast.bus.errors import BadHandler
from holdfast.bus.handler import Context, Handler
from holdfast.bus.publish import Boundary, Publisher, listening
from holdfast.bus.schedule import Schedule, Ticker
from holdfast.bus.sessions import Session, prune
from holdfast.bus.worker.claims import Busy, Claims, Hold, Over
from holdfast.bus.worker.delivery import Delivery, Ended
from holdfast.bus.worker.feed import Feed
from holdfast.bus.worker.sweep import Sweep
from holdfast.objects.store import Store

log = telemetry.logger("bus")

_MS = 1_000_000
SUSPECT = 2
"""After so many lost leases in a row an event is handled alone: if it ends the worker, no other try is lost with it."""
IDLE_POLLS, CALM_POLLS = 2, 8
"""``poll_ms`` between two polls of a worker that has nothing to do, or no place for it, and of one that has had nothing
for ``CALM_S``."""
CALM_S = 60
CALM_SWEEPS = 10
"""Sweep periods between two sweeps of a worker that has had nothing to do for ``CALM_S``."""
WOKEN_POLLS = 10
"""Polls per ``poll_ms`` at most, for events that this process publishes."""
LINGER_S = 0.1
"""How long a free place of a handler waits at most, so that several are filled at once."""
_UNREADABLE_NS = 3_600 * 1_000 * _MS
"""How long an event is left alone whose claim cannot be read."""
_YIELD_NS = 50 * _MS
"""How long an event is left alone that another worker has claimed first."""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings that all parts of a namespace share."""

    lease_ms: int = 30_000
    retry: Retry = Retry()  # noqa: RUF009  # frozen
    heartbeat_ms: int = 5_000
    session_ttl_ms: int = 60_000
    retention_days: float = 7.0
    max_chain_depth: int = 20
    poll_ms: int = 1_000
    claim_limit: int = 100
    max_lost_leases: int = 50
    """Claims in a row that end without an answer, after which an event is dead: it may be what ends workers."""

    @classmethod
    def of(cls, section: BusSection) -> "Options":
        retry = Retry(
            section.event_max_attempts,
            section.event_backoff_base_ms,
            section.event_backoff_max_ms,
            section.event_jitter_ms,
        )
        return cls(
            lease_ms=section.event_lease_ms,
            retry=retry,
            heartbeat_ms=section.session_heartbeat_ms,
            session_ttl_ms=section.session_ttl_ms,
            retention_days=section.event_retention_days,
            max_chain_depth=section.event_max_chain_depth,
            poll_ms=section.event_poll_ms,
            claim_limit=section.event_claim_limit,
        )


@dataclass(slots=True)
class Worked:
    """What a runner has done so far."""

    handled: int = 0
    failed: int = 0
    dead: int = 0
    lost: int = 0
    """Events that another worker took over while this one was handling them."""
    handed_back: int = 0
    fired: int = 0
    """Ticks of schedules that this runner published."""
    in_flight: int = 0
    waiting: int = 0
    """Open events that no handler of this runner is handling, as of the last poll or the end; per handler that takes
    them."""


@dataclass
class Runner:
    store: Store
    namespace: str
    ambient: Ambient
    handlers: Sequence[Handler]
    options: Options
    schedules: Sequence[Schedule] = ()
    metadata: dict[str, object] = field(default_factory=dict)
    context: Callable[[Context], Context] = lambda ctx: ctx
    """What the platform makes of a context before a handler gets it."""
    mend: Callable[[], Awaitable[object]] | None = None
    """Publishes events of commits and runs whose writers crashed before they could. Called at the start, by every
    sweep, and before a worker says that it is idle."""
    session_id: str = ""

    def __post_init__(self) -> None:
        self._check_handlers()
        self.session_id = self.session_id or layout.spelled_id(self.ambient.ids.unique())
        store, namespace, ambient, options = self.store, self.namespace, self.ambient, self.options
        depth = options.max_chain_depth
        self.worked = Worked()
        self.boundary = Boundary(store, namespace, ambient)
        self.publisher = Publisher(store, namespace, ambient, boundary=self.boundary, max_chain_depth=depth)
        types = {each.id: each.types for each in self.handlers}
        ordered = {each.id for each in self.handlers if each.ordered}
        self.feed = Feed(store, namespace, ambient, types, self.session_id, ordered=ordered)
        self.claims = Claims(
            store, namespace, self.session_id, ambient, lease_ms=options.lease_ms, max_chain_depth=depth
        )
        self.sweep = Sweep(store, self.feed, self.claims, ambient, every_ms=options.lease_ms)
        metadata = {**self.metadata, "handlers": sorted(types)}
        self.session = Session(store, namespace, self.session_id, ambient, metadata)
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._suspects: list[tuple[Handler, str]] = []
        self._alone: tuple[str, str] | None = None
        self._polled_ns: int | None = None
        self._active_ns = ambient.clock.monotonic_ns()
        """When there last was something to do."""
        self._poll_now = False
        self._is_full = False
        """The last claims have taken all places of all handlers."""
        self._progress = False
        """Since the last poll began, events were read or claimed."""
        self._woken = False
        """This process has published since the last poll."""
        self._alarm: asyncio.Future[None] | None = None
        """Ends the wait between two polls."""
        self._stopping: asyncio.Future[Any] | None = None
        self._claim_s = 0.0
        """How long the last batch of claims took."""

    def _check_handlers(self) -> None:
        for one in self.handlers:
            given: object = one
            if not isinstance(given, Handler):
                raise BadHandler(f"{given!r} is not a handler", remedy="decorate the function with @on(SomeEvent)")
        ids = [handler.id for handler in self.handlers]
        if len(set(ids)) < len(ids):
            raise BadHandler(f"two handlers have the id {max(ids, key=ids.count)}", remedy="give each its own id")
        if durable := [handler.id for handler in self.handlers if handler.durable]:
            raise BadHandler(f"{durable[0]} is durable, which needs the platform", remedy="run it with hf.run(...)")

    async def run(
        self, *, until_idle: bool = False, stop: asyncio.Event | None = None, grace_ms: int | None = None
    ) -> Worked:
        """Work until ``stop`` is set or this task is cancelled; with ``until_idle``, until nothing falls due soon.

        ``grace_ms`` is how long handlers may continue after ``stop``; a lease if not given.
        """
        stop = stop if stop is not None else asyncio.Event()
        with listening(self.store, self.namespace, self._wake):
            await self.session.register()
            await self._mend()
            helpers = [asyncio.ensure_future(self._beat())]
            if self.schedules:
                ticker = Ticker(self.store, self.publisher, self.ambient, self.schedules)
                if until_idle:
                    self.worked.fired = await ticker.fire_due()
                else:
                    helpers.append(asyncio.ensure_future(self._tick(ticker)))
            stopping = self._stopping = asyncio.ensure_future(stop.wait())
            try:
                while not stop.is_set():
                    if await self._round(until_idle):
                        break
                    await self._pause(stopping)
                if self._running:
                    wait_s = (self.options.lease_ms if grace_ms is None else grace_ms) / 1000
                    await asyncio.wait(self._running.values(), timeout=wait_s)
            finally:
                await self._close([*helpers, stopping])
        return self.worked

    @property
    def silent_s(self) -> float | None:
        """Seconds since the store last answered a poll; None if it never has."""
        if self.feed.answered_ns is None:
            return None
        return (self.ambient.clock.monotonic_ns() - self.feed.answered_ns) / 1e9

    @property
    def is_healthy(self) -> bool:
        """Whether it has polled within a lease, or within two of its longest waits if that is longer."""
        allowed_s = max(self.options.lease_ms, 2 * CALM_POLLS * self.options.poll_ms) / 1000
        return self.silent_s is not None and self.silent_s <= allowed_s

    async def step(self) -> int:
        """Poll once and start what is due; how many events were started. For callers with a loop of their own."""
        await self._poll()
        return await self._claim()

    async def drain_flight(self) -> None:
        """Wait for everything in flight."""
        while self._running:
            await asyncio.wait(self._running.values())

    # The loop

    async def _round(self, until_idle: bool) -> bool:
        """One pass of the loop; True if nothing is left to do."""
        try:
            if self._rest_ms() <= 0:
                await self._poll()
            if self._stopping is not None and self._stopping.done():
                return False
            if self.sweep.is_due(periods=CALM_SWEEPS if self._is_calm() else 1):
                await self._sweep()
            started = await self._claim()
            if self.feed.more and self._progress and not self._running and not self.feed.has_due():
                self._poll_now = True  # all that was known is done, and there is more
            if started or not until_idle or not self._is_idle():
                return False
            return await self._is_drained()
        except Unavailable as error:
            if until_idle:
                raise
            log.warning("the store cannot be reached (%s); again later", error)
            return False

    def _rest_ms(self) -> float:
        """How long to wait until the next poll."""
        if self._polled_ns is None or self._poll_now:
            return 0
        now_ns, poll_ms = self.ambient.clock.monotonic_ns(), self.options.poll_ms
        since_ms = (now_ns - self._polled_ns) / _MS
        is_busy = bool(self._running) or self.feed.has_due()
        if is_busy:
            self._active_ns = now_ns
            return poll_ms * (IDLE_POLLS if self._is_full else 1) - since_ms
        if self._woken:
            return poll_ms / WOKEN_POLLS - since_ms
        return poll_ms * (CALM_POLLS if self._is_calm() else IDLE_POLLS) - since_ms

    def _is_calm(self) -> bool:
        return self.ambient.clock.monotonic_ns() - self._active_ns >= CALM_S * 1_000 * _MS

    async def _pause(self, stopping: "asyncio.Future[Any]") -> None:
        """Until a handler has ended, an event falls due, this process publishes, or it is time to poll."""
        rest_ms = self._rest_ms()
        now_ns = self.ambient.clock.wall_ns()
        dues = [self.feed.next_due_ns(handler.id) for handler in self.handlers]
        ahead_ms = [(due - now_ns) / _MS for due in dues if due is not None and due > now_ns]
        wait_ms = max(min([rest_ms, *ahead_ms]), 0 if self._poll_now else 1)
        self._alarm = asyncio.get_running_loop().create_future()
        waits: list[asyncio.Future[Any]] = [*self._running.values(), stopping, self._alarm]
        ended, _ = await asyncio.wait(waits, timeout=wait_ms / 1000, return_when=asyncio.FIRST_COMPLETED)
        self._poll_now = self._poll_now or (not ended and wait_ms >= rest_ms)
        if ended and self._running:
            # Claims are made in batches, with one GET of the boundary each: let a few more handlers end.
            await asyncio.sleep(min(self._claim_s / 2, LINGER_S))

    def _wake(self) -> None:
        """This process has published an event."""
        self._woken = True
        self._active_ns = self.ambient.clock.monotonic_ns()
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    async def _poll(self) -> None:
        self._poll_now = self._woken = self._progress = False
        if self.feed.unwritten:
            await self.feed.flush()
        if await unless_stopped(self.feed.poll(), self._stopping):
            self._progress = True
            self._active_ns = self.ambient.clock.monotonic_ns()
        self._polled_ns = self.ambient.clock.monotonic_ns()
        self.worked.waiting = max(0, self.feed.count - len(self._running))

    async def _mend(self) -> None:
        if self.mend is not None:
            try:
                await self.mend()
            except HoldfastError as error:
                log.warning("some events of commits or runs are not published yet (%s); again later", error)

    async def _sweep(self) -> None:
        """Sweep, unless another worker has done so. A failure is only a delay."""
        try:
            await self.feed.sync()
            if not self.sweep.is_due():
                return
            await self._mend()
            alive: list[str] | None = None
            with suppress(HoldfastError):  # the next sweep removes sessions of dead workers
                ttl_ms = self.options.session_ttl_ms
                alive = await prune(self.store, self.namespace, self.ambient, session_ttl_ms=ttl_ms)
            if await self.sweep.run(alive=alive):
                self._active_ns = self.ambient.clock.monotonic_ns()
            await self.feed.flush()
        except HoldfastError as error:
            self.sweep.put_off()
            log.warning("the sweep failed (%s); again later", error)

    async def _is_drained(self) -> bool:
        """Whether there is nothing left to do, after a look at everything."""
        await self._mend()
        await self.feed.sync()
        return await self.sweep.run(whole=True) == 0 and self._is_idle()

    def _is_idle(self) -> bool:
        soon_ns = self.ambient.clock.wall_ns() + max(self.options.lease_ms, self.options.retry.max_ms) * _MS
        dues = [self.feed.next_due_ns(handler.id) for handler in self.handlers]
        self.worked.waiting = max(0, self.feed.count - len(self._running))
        if self._running or self.feed.more or self.feed.is_waiting_for_owners:
            return False
        return not any(due is not None and due <= soon_ns for due in dues)

    # Claiming

    async def _claim(self) -> int:
        """Claim what there is room for, handlers with the highest priority first; how many events were started."""
        started = 0
        if self._alone in self._running or (self._suspects and self._running):
            return 0
        if self._suspects:
            handler, name = self._suspects.pop(0)
            return await self._claim_for(handler, [name])
        for handler in sorted(self.handlers, key=lambda each: -each.priority):
            names = self._wanted(handler, min(self._room(handler), self.options.claim_limit))
            if names:
                started += await self._claim_for(handler, names)
        self._is_full = all(self._room(handler) <= 0 for handler in self.handlers)
        self.worked.in_flight = len(self._running)
        return started

    def _room(self, handler: Handler) -> int:
        return handler.concurrency - sum(handler_id == handler.id for handler_id, _ in self._running)

    def _wanted(self, handler: Handler, count: int) -> list[str]:
        due = self.feed.due(handler.id, self.ambient.clock.wall_ns()) if count > 0 else iter(())
        names = (name for name in due if (handler.id, name) not in self._running)
        return [name for name, _ in zip(names, range(count), strict=False)]

    async def _claim_for(self, handler: Handler, names: list[str]) -> int:
        self._progress = True
        began_ns = self.ambient.clock.monotonic_ns()
        outcomes = await asyncio.gather(*(self.claims.take(name, handler.id) for name in names), return_exceptions=True)
        spent = await self._spent([outcome for outcome in outcomes if isinstance(outcome, Hold)])
        self.feed.claimed(lost=any(isinstance(outcome, Busy | Over) for outcome in outcomes))
        self._claim_s = (self.ambient.clock.monotonic_ns() - began_ns) / 1e9
        started = 0
        for name, outcome in zip(names, outcomes, strict=True):
            match outcome:
                case Hold() if outcome.unproven and name < spent:
                    self.feed.settle(handler.id, name)
                case Hold() if outcome.claim.lost_leases >= SUSPECT and (len(names) > 1 or self._running):
                    await self._set_aside(handler, name, outcome)
                case Hold():
                    self._start(handler, name, outcome)
                    started += 1
                case Busy(due_ns):
                    self.feed.defer(handler.id, name, max(due_ns, self.ambient.clock.wall_ns() + _YIELD_NS))
                case Over(claim):
                    await self._finish(handler, name, claim)
                case HoldfastError():
                    self._again_later(handler, name, outcome)
                case BaseException():
                    raise outcome
        return started

    async def _spent(self, holds: list[Hold]) -> str:
        """Names before this one may have been cleaned up: their claims can be created again. Only the boundary, read
        after the create, shows it. If it cannot be read, the claims are handed back."""
        if not any(hold.unproven for hold in holds):
            return ""
        try:
            return layout.time_name(await self.boundary.read())
        except HoldfastError:
            released = (self.claims.release(hold, untried=True) for hold in holds)
            await asyncio.gather(*released, return_exceptions=True)
            raise

    async def _set_aside(self, handler: Handler, name: str, hold: Hold) -> None:
        """Hand back an event that may be killing workers, to claim it again when nothing else is in flight."""
        try:
            await self.claims.release(hold, untried=True)
        except HoldfastError as error:
            self._again_later(handler, name, error)
        else:
            self._suspects.append((handler, name))

    async def _finish(self, handler: Handler, name: str, claim: Claim) -> None:
        """Another worker has settled the event, and may have died before it wrote the effects."""
        try:
            envelope = await self.feed.envelope(name) if claim.dead_ns is not None else None
            await self.claims.effects(claim, envelope)
        except HoldfastError as error:
            self._again_later(handler, name, error)
        else:
            self.feed.settle(handler.id, name)

    def _again_later(self, handler: Handler, name: str, error: HoldfastError) -> None:
        log.warning("event %s: %s; again later", name, error)
        # An unreadable claim needs an operator: until then it should neither cost requests nor delay other events.
        rest_ns = _UNREADABLE_NS if isinstance(error, Corrupt) else self.options.poll_ms * _MS
        self.feed.defer(handler.id, name, self.ambient.clock.wall_ns() + rest_ns)

    def _start(self, handler: Handler, name: str, hold: Hold) -> None:
        delivery = Delivery(self, handler, name, hold)
        if hold.claim.lost_leases >= SUSPECT:
            self._alone = (handler.id, name)
        task = asyncio.ensure_future(self._deliver(delivery))
        self._running[handler.id, name] = task
        self.feed.defer(handler.id, name, hold.claim.lease_ns)  # so that other workers do not try

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            match await delivery.run():
                case Ended.HANDLED:
                    self.worked.handled += 1
                case Ended.FAILED:
                    self.worked.failed += 1
                case Ended.DEAD:
                    self.worked.failed += 1
                    self.worked.dead += 1
                case Ended.LOST:
                    self.worked.lost += 1
                case Ended.HANDED_BACK:
                    self.worked.handed_back += 1
        finally:
            self._running.pop((delivery.handler.id, delivery.name), None)

    async def _beat(self) -> None:
        beat_ms, calm_ms, rested_ms = self.options.heartbeat_ms, self.options.session_ttl_ms // 2, 0
        while True:
            await asyncio.sleep(beat_ms / 1000)
            rested_ms += beat_ms
            if self._is_calm() and rested_ms + beat_ms <= calm_ms:
                continue
            rested_ms = 0
            try:
                await self.session.beat()
            except HoldfastError as error:
                log.debug("session %s: %s", self.session_id, error)

    async def _tick(self, ticker: Ticker) -> None:
        while True:
            with suppress(HoldfastError):  # the ticker has logged it, and tries again
                await ticker.fire_due()
            self.worked.fired = ticker.fired
            await asyncio.sleep(min(ticker.rest_s(), self.options.poll_ms / 1000))

    async def _close(self, helpers: list["asyncio.Future[Any]"]) -> None:
        everything: list[asyncio.Future[Any]] = [*helpers, *self._running.values()]
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
        self.worked.in_flight = 0
        self.worked.waiting = sum(len(self.feed.fresh_view(handler).open) for handler in self.feed.handlers)
        with suppress(HoldfastError):  # the sweep of another worker does both if this fails
            await self.feed.flush(leaving=True)
            await self.session.end()


async def unless_stopped(poll: Coroutine[Any, Any, int], stopping: "asyncio.Future[Any] | None") -> int:
    """The result of the poll; 0 if ``stopping`` came first, as reading a large backlog takes long."""
    if stopping is None:
        return await poll
    polling = asyncio.ensure_future(poll)
    try:
        await asyncio.wait({polling, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not polling.done():
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
    return 0 if polling.cancelled() else polling.result()
