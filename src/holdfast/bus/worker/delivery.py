"""One event in one handler: the lease is renewed while it runs, then the claim is settled, then its effects written."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from holdfast.base import telemetry
from holdfast.base.codec import Document
from holdfast.base.errors import Ambiguous, Conflict, HoldfastError, Invalid, Unavailable
from holdfast.bus.claim import Claim
from holdfast.bus.errors import (
    Abandoned,
    BadPayload,
    Cancelled,
    ChainTooDeep,
    ClaimLost,
    DeadLetter,
    Later,
    TimedOut,
    UnknownEventType,
)
from holdfast.bus.event import Envelope
from holdfast.bus.handler import Context, Handler
from holdfast.bus.worker.claims import Hold

if TYPE_CHECKING:
    from holdfast.bus.worker.runner import Runner  # it starts deliveries, and they use what it holds

log = telemetry.logger("bus")

HOPELESS = (Abandoned, BadPayload, UnknownEventType, ChainTooDeep, DeadLetter)
SETTLE_TRIES = 8
STUBBORN_S = 5.0
"""How long to wait for a cancelled handler before its event is handed back."""
_MS = 1_000_000


class Ended(Enum):
    HANDLED = auto()
    FAILED = auto()
    DEAD = auto()
    LOST = auto()
    HANDED_BACK = auto()


@dataclass
class Delivery:
    runner: "Runner"
    handler: Handler
    name: str
    hold: Hold

    async def run(self) -> Ended:
        feed = self.runner.feed
        try:
            envelope = await feed.envelope(self.name)
            if envelope is None:
                await self._give_back()
                feed.settle(self.handler.id, self.name)
                return Ended.LOST
            if self.hold.claim.lost_leases >= self.runner.options.max_lost_leases:
                return await self._fail(envelope, Abandoned(self.hold.claim.lost_leases))
            return await self._handle(envelope)
        except asyncio.CancelledError:
            await self._give_back()
            feed.defer(self.handler.id, self.name, self._now())
            return Ended.HANDED_BACK
        except ClaimLost as error:
            log.info("event %s: %s", self.name, error)
            feed.defer(self.handler.id, self.name, self._now() + self.runner.options.poll_ms * _MS)
            return Ended.LOST
        except Exception as error:  # noqa: BLE001  # whatever it is, it must stop neither worker nor event
            log.warning("event %s: %s; it is claimed again when its lease has expired", self.name, error_text(error))
            feed.defer(self.handler.id, self.name, max(self.hold.claim.lease_ns, self._now()))
            return Ended.LOST

    async def _handle(self, envelope: Envelope) -> Ended:
        context = self._context(envelope)
        work = asyncio.ensure_future(self._call(context, envelope))
        renewal = asyncio.ensure_future(self._keep(work))
        failure: BaseException | None
        try:
            await asyncio.wait([work])  # ``await work`` would hang on a handler that ignores its cancellation
            failure = work.result()
        except asyncio.CancelledError:
            if self.hold.lost:
                raise ClaimLost(f"event {self.name}: another worker has taken over") from None
            if _is_cancelled():
                work.cancel()
                await asyncio.wait([work], timeout=STUBBORN_S)
                raise
            failure = Cancelled()  # raised by the handler itself
        finally:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)
        if isinstance(failure, Later):
            return await self._put_off(failure)
        if failure is not None:
            return await self._fail(envelope, failure)
        try:
            await self._settle(envelope, await self._outbox(context, envelope))
        except Exception as error:
            if isinstance(error, HoldfastError) and not isinstance(error, Invalid):
                raise
            return await self._fail(envelope, error)  # what it left behind cannot be written
        return Ended.HANDLED

    async def _call(self, context: Context, envelope: Envelope) -> BaseException | None:
        limit_s = self.handler.timeout
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                await self.handler.handle(context, self.handler.event_of(envelope))
            context.finish()
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        except TimeoutError as error:
            return TimedOut(limit_s) if limit_s is not None and limit.expired() else error
        except BaseException as error:  # noqa: BLE001  # whatever a handler raises fails this event alone
            return error
        return None

    async def _keep(self, work: "asyncio.Future[BaseException | None]") -> None:
        """Renew every third of the lease. Once another worker has the event there is no point in going on."""
        while True:
            await asyncio.sleep(self.runner.options.lease_ms / 3000)
            try:
                await self.runner.claims.renew(self.hold)
            except ClaimLost:
                work.cancel()
                return
            except HoldfastError as error:
                log.debug("event %s: not renewed (%s)", self.name, error)

    async def _put_off(self, later: Later) -> Ended:
        seconds = later.seconds or self.runner.options.poll_ms / 1000
        until_ns = later.until_ns if later.until_ns is not None else self._now() + int(seconds * 1e9)
        claim = await self._insist(lambda: self.runner.claims.release(self.hold, until_ns))
        self.runner.feed.defer(self.handler.id, self.name, claim.due_ns)
        return Ended.HANDED_BACK

    async def _settle(self, envelope: Envelope, outbox: tuple[Document, ...]) -> None:
        claim = await self._insist(lambda: self.runner.claims.ack(self.hold, outbox))
        await self.runner.claims.effects(claim, envelope)
        self.runner.feed.settle(self.handler.id, self.name)

    async def _fail(self, envelope: Envelope, failure: BaseException) -> Ended:
        retry = self.handler.retry if self.handler.retry is not None else self.runner.options.retry
        text = error_text(failure)
        hopeless = isinstance(failure, HOPELESS)
        number = self.hold.claim.attempts + 1
        log.warning(
            "event %s failed in %s: %s (try %d of %d)",
            self.name,
            self.handler.id,
            text,
            number,
            number if hopeless else retry.attempts,
            exc_info=failure,
        )
        claim = await self._insist(lambda: self.runner.claims.fail(self.hold, text, retry, hopeless=hopeless))
        if claim.dead_ns is None:
            self.runner.feed.defer(self.handler.id, self.name, claim.due_ns)
            return Ended.FAILED
        await self.runner.claims.effects(claim, envelope)
        self.runner.feed.settle(self.handler.id, self.name)
        return Ended.DEAD

    async def _insist(self, act: Callable[[], Awaitable[Claim]]) -> Claim:
        """Settle the claim; try again for some seconds if the store does not answer, so that the handler need not run
        again.
        """
        for attempt in range(SETTLE_TRIES):
            try:
                return await act()
            except (Ambiguous, Conflict, Unavailable):
                if attempt == SETTLE_TRIES - 1:
                    raise
                await asyncio.sleep(0.05 * 2**attempt)
        raise Conflict(f"event {self.name}: the claim could not be settled")

    async def _outbox(self, context: Context, envelope: Envelope) -> tuple[Document, ...]:
        """What the handler emitted, dated now: it becomes visible with the ack."""
        if not context.emissions:
            return ()
        await self.runner.boundary.recent()
        publisher = self.runner.publisher
        return tuple(publisher.compose(each, envelope).document() for each in context.emissions)

    async def _give_back(self) -> None:
        with suppress(HoldfastError):  # what cannot be handed back is free again when its lease has ended
            await self.runner.claims.release(self.hold)

    def _context(self, envelope: Envelope) -> Context:
        runner = self.runner
        context = Context(
            store=runner.store,
            envelope=envelope,
            handler_id=self.handler.id,
            session_id=runner.session_id,
            attempt=self.hold.claim.attempts + 1,
            max_chain_depth=runner.options.max_chain_depth,
            hold=self.hold,
            claims=runner.claims,
        )
        return runner.context(context)

    def _now(self) -> int:
        return self.runner.ambient.clock.wall_ns()


def error_text(error: BaseException) -> str:
    """What an error says, in characters that can be written down."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  # a user's class may raise from __str__
        said = "it cannot say what happened"
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return text.encode("utf-8", "backslashreplace").decode()


def _is_cancelled() -> bool:
    """Whether the running task is being cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
