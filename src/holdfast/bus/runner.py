"""The runner: hands events to handlers until it is stopped, or until there is nothing to do.

It polls, sweeps when that is due, claims what its handlers have room for, and writes what it has learnt to the digest
at most once per poll. Stopping is graceful: nothing new is claimed, handlers may finish for a while, and what has not
finished is handed back, without counting as a failure. Cancelling does the same without the while.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.base import telemetry
from holdfast.base.errors import Corrupt, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.bus import layout
from holdfast.bus.claim import Claim
from holdfast.bus.claims import Busy, Claims, Hold, Over
from holdfast.bus.delivery import Delivery, Ended
from holdfast.bus.errors import BadHandler
from holdfast.bus.feed import Feed
from holdfast.bus.handler import Context, Handler
from holdfast.bus.helping import Helping
from holdfast.bus.options import Options
from holdfast.bus.publish import Boundary, Publisher
from holdfast.bus.schedule import Schedule, Ticker
from holdfast.bus.sessions import Session, prune
from holdfast.bus.stopping import unless_stopped
from holdfast.bus.sweep import Sweep, attempted
from holdfast.bus.worked import Worked
from holdfast.objects.store import Store

log = telemetry.logger("bus")

_MS = 1_000_000
SUSPECT = 2
"""After so many claims in a row without a word an event is handled alone: if it ends the worker, it ends nobody else's
try, and those that only were there come out of suspicion."""
HELP_EVERY = 10
"""Polls after which a busy worker looks at the events of others as well."""
HELP_WITH = 8
"""Others' events that a worker claims at once: they may be at them, or other helpers."""
_MENDING_NS = 3_600 * 1_000 * _MS
"""How long an event is left alone whose claim cannot be read."""
_YIELD_NS = 50 * _MS
"""How long an event is left alone that another worker has just taken from under us."""


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
    """Publishes what others promised to this bus and a crash left out. Called at the start, by every sweep, and before
    a worker says that it is idle."""
    session_id: str = ""

    def __post_init__(self) -> None:
        for one in self.handlers:
            given: object = one
            if not isinstance(given, Handler):
                raise BadHandler(f"{given!r} is no handler", remedy="decorate the function with @on(SomeEvent)")
        ids = [handler.id for handler in self.handlers]
        if len(set(ids)) < len(ids):
            raise BadHandler(f"two handlers are called {max(ids, key=ids.count)}", remedy="give each an id of its own")
        if durable := [handler.id for handler in self.handlers if handler.durable]:
            raise BadHandler(f"{durable[0]} is durable, which takes the platform", remedy="run it with hf.run(...)")
        self.session_id = self.session_id or layout.spelled_id(self.ambient.ids.unique())
        options = self.options
        self.worked = Worked()
        self.boundary = Boundary(self.store, self.namespace, self.ambient)
        self.publisher = Publisher(
            self.store, self.namespace, self.ambient, boundary=self.boundary, max_chain_depth=options.max_chain_depth
        )
        types = {each.id: each.types for each in self.handlers}
        ordered = {each.id for each in self.handlers if each.ordered}
        self.feed = Feed(
            self.store, self.namespace, self.ambient, types, self.session_id, ordered=ordered, boundary=self.boundary
        )
        self.claims = Claims(
            self.store,
            self.namespace,
            self.session_id,
            self.ambient,
            lease_ms=options.lease_ms,
            max_chain_depth=options.max_chain_depth,
        )
        self.sweep = Sweep(self.store, self.feed, self.claims, self.ambient, every_ms=options.lease_ms)
        self.session = Session(self.store, self.namespace, self.session_id, self.ambient, self.metadata)
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._polled_ns: int | None = None
        self._look_ns = 0
        """How long the last look took."""
        self._waited = False
        """Nothing has happened for as long as there is between two polls."""
        self._hungry = False
        self._suspects: list[tuple[Handler, str]] = []
        self._alone: tuple[str, str] | None = None
        self._polls = 0
        self._stopping: asyncio.Future[Any] | None = None
        self._helping = Helping()
        self._greedy = False
        """Nothing of this worker's own is left to do, so it helps the others."""

    async def run(
        self, *, until_idle: bool = False, stop: asyncio.Event | None = None, grace_ms: int | None = None
    ) -> Worked:
        """Work until ``stop`` is set or this task is cancelled; with ``until_idle``, until nothing falls due soon.

        ``grace_ms`` is how long handlers may go on after ``stop``; a lease if not given.
        """
        stop = stop if stop is not None else asyncio.Event()
        await self.session.register()
        await self._mend()
        helpers = [asyncio.ensure_future(self._beat())]
        if self.schedules:
            ticker = Ticker(self.store, self.publisher, self.ambient, self.schedules)
            if until_idle:
                self.worked.fired = await ticker.catch_up()
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
        """Whether it has looked for events within a lease, or ten polls if that is longer."""
        allowed_s = max(self.options.lease_ms, 10 * self.options.poll_ms) / 1000
        return self.silent_s is not None and self.silent_s <= allowed_s

    async def step(self) -> int:
        """Poll once and hand out what is due; how many events were handed out. For callers with a loop of their own."""
        self._greedy = True
        await self._poll()
        return await self._claim()

    async def drain_flight(self) -> None:
        """Wait for everything in flight."""
        while self._running:
            await asyncio.wait(self._running.values())

    async def _round(self, until_idle: bool) -> bool:
        """One turn of the loop; True if there is nothing left to do."""
        try:
            if self._poll_is_due():
                await self._poll()
            if self._stopping is not None and self._stopping.done():
                return False
            if self.sweep.is_due():
                await self._sweep()
            started = await self._claim()
            self._greedy = self._greedy and not started
            if self.feed.more and not started and not self._running:
                self._hungry = True  # what it knew of is done, and there is more
            if started or not until_idle or not self._is_idle():
                return False
            return await self._is_drained()
        except Unavailable as error:
            if until_idle:
                raise
            log.warning("the store cannot be reached (%s); again later", error)
            return False

    async def _poll(self) -> None:
        if self.feed.unwritten or self._polled_ns is None:
            await self.feed.flush()
        began_ns, self._hungry, self._waited = self.ambient.clock.monotonic_ns(), False, False
        self._polls += 1
        # A worker that is never idle must not starve the others'; and what comes first of an ordering key is known only
        # to who has read everything.
        greedy = self._greedy or self._polls % HELP_EVERY == 0 or any(each.ordered for each in self.handlers)
        self._hungry = await unless_stopped(self.feed.poll(greedy=greedy), self._stopping) > 0
        self._polled_ns = self.ambient.clock.monotonic_ns()
        self.worked.waiting = max(0, self.feed.count - len(self._running))
        # After a long look it works at least as long as it has looked: whatever comes in, work goes on.
        self._look_ns = self._polled_ns - began_ns
        self._helping.polled()

    async def _mend(self) -> None:
        if self.mend is not None:
            try:
                await self.mend()
            except HoldfastError as error:
                log.warning("not everything that was promised is published (%s); again later", error)

    async def _sweep(self) -> None:
        await self._mend()
        alive: list[str] | None = None
        with suppress(HoldfastError):  # sessions of the dead do no harm; the next sweep prunes them
            alive = await prune(self.store, self.namespace, self.ambient, session_ttl_ms=self.options.session_ttl_ms)
        if await attempted(self.sweep, alive):
            self._hungry = True

    async def _is_drained(self) -> bool:
        """Nothing is left to do, by a look at everything."""
        await self._mend()
        await self._poll()
        if self._hungry or not self._is_idle():
            return False
        found = await self.sweep.run(whole=True)
        return found == 0 and self._is_idle()

    def _is_idle(self) -> bool:
        soon_ns = self.ambient.clock.wall_ns() + max(self.options.lease_ms, self.options.retry.max_ms) * _MS
        dues = [self.feed.next_due_ns(handler.id) for handler in self.handlers]
        self.worked.waiting = max(0, self.feed.count - len(self._running))
        return not (self._running or self.feed.unread or any(due is not None and due <= soon_ns for due in dues))

    def _poll_is_due(self) -> bool:
        if self._polled_ns is None or self._waited:
            return True
        poll_ns = self.options.poll_ms * _MS
        rest_ns = 0 if self._hungry and self._look_ns < poll_ns else max(poll_ns, self._look_ns)
        return self.ambient.clock.monotonic_ns() - self._polled_ns >= rest_ns

    async def _claim(self) -> int:
        """Claim what there is room for, best handler first; how many were started."""
        started = 0
        if self._alone in self._running or (self._suspects and self._running):
            return 0
        if self._suspects:
            handler, name = self._suspects.pop(0)
            return await self._claim_for(handler, [name])
        await self.feed.stock()
        for handler in sorted(self.handlers, key=lambda each: -each.priority):
            room = handler.concurrency - sum(handler_id == handler.id for handler_id, _ in self._running)
            names = self._wanted(handler, min(room, self.options.claim_limit))
            if names:
                started += await self._claim_for(handler, names)
        self._helping.over()
        self.worked.in_flight = len(self._running)
        return started

    def _wanted(self, handler: Handler, count: int) -> list[str]:
        if count < 1:
            return []
        names: list[str] = []
        others: list[str] = []
        greedy = self._helping.allowed and (self._greedy or self._polls % HELP_EVERY == 0)
        for name in self.feed.due(handler.id, self.ambient.clock.wall_ns()):
            if (handler.id, name) in self._running:
                continue
            if self.feed.is_mine(name):
                names.append(name)
            elif greedy:
                others.append(name)
            if len(names) == count:
                return names
        return names + self._helping.choose(self.feed.spread(others)[: min(count - len(names), HELP_WITH)])

    async def _claim_for(self, handler: Handler, names: list[str]) -> int:
        outcomes = await asyncio.gather(*(self.claims.take(name, handler.id) for name in names), return_exceptions=True)
        self._helping.judge(names, [isinstance(outcome, Hold) for outcome in outcomes])
        spent = await self._spent([outcome for outcome in outcomes if isinstance(outcome, Hold)])
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
                    await self._meet(handler, name, claim)
                case HoldfastError():
                    self._again_later(handler, name, outcome)
                case BaseException():
                    raise outcome
        return started

    async def _spent(self, holds: list[Hold]) -> str:
        """Names before this one were cleaned up. They can be claimed anew; only the boundary tells, and only after the
        create. Who cannot ask gives back what it has claimed."""
        if not any(hold.unproven for hold in holds):
            return ""
        try:
            return layout.time_name(await self.boundary.read())
        except HoldfastError:
            released = (self.claims.release(hold, untried=True) for hold in holds)
            await asyncio.gather(*released, return_exceptions=True)
            raise

    async def _set_aside(self, handler: Handler, name: str, hold: Hold) -> None:
        """Give an event back that may be what kills workers, to claim it again when nothing else is in flight."""
        try:
            await self.claims.release(hold, untried=True)
        except HoldfastError as error:
            self._again_later(handler, name, error)
        else:
            self._suspects.append((handler, name))

    async def _meet(self, handler: Handler, name: str, claim: Claim) -> None:
        """An event that somebody has settled: whoever did may have died before the effects."""
        try:
            envelope = await self.feed.envelope(name) if claim.dead_ns is not None else None
            await self.claims.effects(claim, envelope)
        except HoldfastError as error:
            self._again_later(handler, name, error)
        else:
            self.feed.settle(handler.id, name)

    def _again_later(self, handler: Handler, name: str, error: HoldfastError) -> None:
        log.warning("event %s: %s; again later", name, error)
        # A claim that cannot be read takes an operator: until then it should neither cost requests nor hold up others.
        rest_ns = _MENDING_NS if isinstance(error, Corrupt) else self.options.poll_ms * _MS
        self.feed.defer(handler.id, name, self.ambient.clock.wall_ns() + rest_ns)

    def _start(self, handler: Handler, name: str, hold: Hold) -> None:
        delivery = Delivery(self, handler, name, hold)
        if hold.claim.lost_leases >= SUSPECT:
            self._alone = (handler.id, name)
        task = asyncio.ensure_future(self._deliver(delivery))
        self._running[handler.id, name] = task
        self.feed.defer(handler.id, name, hold.claim.lease_ns)  # so that others need not try

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

    async def _pause(self, stopping: "asyncio.Future[Any]") -> None:
        """Until something has ended, something falls due, or it is time to poll."""
        if self._hungry and not self._running and self._poll_is_due():
            return
        now_ns = self.ambient.clock.wall_ns()
        dues = [self.feed.next_due_ns(handler.id) for handler in self.handlers]
        ahead_ms = [(due - now_ns) / _MS for due in dues if due is not None and due > now_ns]
        wait_ms = min([self.options.poll_ms, *ahead_ms])
        waits: list[asyncio.Future[Any]] = [*self._running.values(), stopping]
        ended, _ = await asyncio.wait(waits, timeout=max(wait_ms, 1) / 1000, return_when=asyncio.FIRST_COMPLETED)
        self._greedy = not ended and not self._running
        self._waited = not ended and wait_ms >= self.options.poll_ms

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.options.heartbeat_ms / 1000)
            try:
                await self.session.beat()
            except HoldfastError as error:
                log.debug("session %s: %s", self.session_id, error)

    async def _tick(self, ticker: Ticker) -> None:
        while True:
            with suppress(HoldfastError):  # it was told; again later
                await ticker.fire_due()
            self.worked.fired = ticker.fired
            await asyncio.sleep(min(ticker.rest_s(), self.options.poll_ms / 1000))

    async def _close(self, helpers: list["asyncio.Future[Any]"]) -> None:
        everything: list[asyncio.Future[Any]] = [*helpers, *self._running.values()]
        for task in everything:
            task.cancel()
        await asyncio.gather(*everything, return_exceptions=True)
        self.worked.in_flight = 0
        with suppress(HoldfastError):  # both are advice, and both are made good by others
            await self.feed.flush(leaving=True)
            await self.session.end()
