"""A collector as a service: the checks before it serves, its parts, and its background tasks.

Checked before the first request: the token file can be read, the store honours conditions (``start_check``), and its
authority allows this collector to accept, in this mode. Each failure is one clear error. Live state is rebuilt in the
background: acceptance does not wait for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.base.aio import blocking, lasting
from holdfast.base.clock import Clock
from holdfast.base.config import IngestSection
from holdfast.base.errors import Invalid, Refused
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.client import Client
from holdfast.objects.conformance.certificate import StartCheck, start_check
from holdfast.objects.place import Place
from holdfast.server.intake import Intake
from holdfast.server.limits import Limits
from holdfast.server.logs import Refusals
from holdfast.server.metrics import Metrics, add_gauges
from holdfast.server.readiness import Readiness, Watched
from holdfast.server.reconciled import Reconciled
from holdfast.server.tokens import TokenFile
from holdfast.telemetry import frame
from holdfast.telemetry.accept.accept import Submission, inspect_frame
from holdfast.telemetry.accept.authority import OWN_SPOOL, Acceptance, Authority, open_authority, standing_authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions, Guarded
from holdfast.telemetry.accept.conflicts import Holds, Resolutions
from holdfast.telemetry.accept.landing import SpoolCollector, SpoolOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.record_times import RecordTimes
from holdfast.telemetry.accept.spool import Spool, holds_spool, open_spool
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live

TOKENS_EVERY_S = 1.0
STALE_ROUNDS = 10
"""If so many rounds of following fail, live state is no longer called complete."""
DRAIN_LEAST_S = 2.0
"""Time for each part to close, even if requests have used up ``drain_ms``."""

_SECOND = 1_000_000_000
_log = logger("server")


@dataclass
class Shutdown:
    """How long the shutdown may take, whatever the store does.

    Requests in progress have ``drain_ms``. Batches in the spool have the time that is left to land, and
    ``DRAIN_LEAST_S`` in any case. The rest is recovered as after a crash.
    """

    clock: Clock
    drain_ms: int
    _begun_ns: int | None = None

    def begin(self) -> None:
        self._begun_ns = self.clock.monotonic_ns()

    def left_s(self) -> float:
        passed_ns = 0 if self._begun_ns is None else self.clock.monotonic_ns() - self._begun_ns
        return max(DRAIN_LEAST_S, self.drain_ms / 1_000 - passed_ns / 1_000_000_000)

    def limit(self, what: str, part: AbstractAsyncContextManager[Any]) -> "_LimitedExit":
        return _LimitedExit(self, what, part)


@dataclass
class _LimitedExit:
    """A part whose ``__aexit__`` is cancelled when the time for the shutdown is over."""

    shutdown: Shutdown
    what: str
    part: AbstractAsyncContextManager[Any]

    async def __aenter__(self) -> None:
        await self.part.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            async with asyncio.timeout(self.shutdown.left_s()):
                await self.part.__aexit__(kind, error, trace)
        except TimeoutError:
            _log.warning("%s: not finished in time; it will be recovered as after a crash", self.what)


@dataclass
class Service:
    section: IngestSection
    store: Client
    authority: Authority
    check: StartCheck
    acceptor: Collector | SpoolCollector
    live: Live
    follower: Follower
    tokens: TokenFile
    limits: Limits
    metrics: Metrics
    intake: Intake
    refusals: Refusals
    collector_id: str
    query: bool
    holds: Holds
    reconciled: Reconciled
    readiness: Readiness
    shutdown: Shutdown
    draining: bool = False
    rebuilt: bool = False

    @property
    def ambient(self) -> Ambient:
        return self.store.ambient

    @property
    def spooling(self) -> SpoolCollector | None:
        return self.acceptor if isinstance(self.acceptor, SpoolCollector) else None

    def begin_draining(self) -> None:
        """Accept no new batches; requests in progress go on."""
        self.draining = self.intake.draining = True
        self.shutdown.begin()
        self.live.end()

    def completeness(self) -> dict[str, Any]:
        """Whether live state has everything that was accepted: part of every answer from it."""
        why = self._partial()
        answer: dict[str, Any] = {
            "complete": why is None,
            "collector_id": self.collector_id,
            "since_unix_ns": self.live.horizon_ns(),
            "batches": len(self.live),
        }
        if why is not None:
            return {**answer, "partial_because": why}
        through = self.follower.followed_ns if self.query else None
        return {**answer, "through_unix_ns": self.ambient.clock.wall_ns() if through is None else through}

    def _partial(self) -> str | None:
        if not self.rebuilt:
            return "live state is being rebuilt"
        if self.live.missing:
            return "the whole window did not fit into the memory for live state"
        if self.live.lacks_waiting:
            return "not all batches in the spool fit into the memory for live state"
        if self.spooling is not None:
            return self._unread()
        if not self.query:
            return "batches that other collectors accepted since this one started are not included"
        age = self.follow_lag_s()
        if age is None or age > STALE_ROUNDS * max(1.0, self.section.follow_interval_ms / 1000):
            return "the store could not be read recently"
        return self._unread()

    def _unread(self) -> str | None:
        problems = self.follower.problems
        return f"{problems} {'batch' if problems == 1 else 'batches'} could not be read" if problems else None

    def follow_lag_s(self) -> float | None:
        followed = self.follower.followed_ns
        return None if followed is None else max(0, self.ambient.clock.wall_ns() - followed) / _SECOND

    def landing_lag_s(self) -> float | None:
        return None if self.spooling is None else self.spooling.lag_s()

    def warn_of_spooled(self) -> None:
        """At the end: how many batches are in the spool alone."""
        if self.spooling is not None and (count := len(self.spooling.spool)):
            _log.warning(
                "%d %s in the spool %s, and will land when a collector is started with this spool again",
                count,
                "batch remains" if count == 1 else "batches remain",
                self.section.spool,
                extra={"landing_problem": self.spooling.problem},
            )

    async def standing(self) -> dict[str, Any]:
        """For ``/readyz``: whether batches can be accepted, and how far derived work lags behind."""
        return {
            "collector_id": self.collector_id,
            "authority_id": self.authority.authority_id,
            "acceptance": self.authority.acceptance.value,
            "store_problem": await self.readiness.problem(),
            "spool_batches": None if self.spooling is None else len(self.spooling.spool),
            "landing_lag_s": self.landing_lag_s(),
            "landing_problem": None if self.spooling is None else self.spooling.problem,
            "live_rebuilt": self.rebuilt,
            "follow_lag_s": self.follow_lag_s(),
            "reconcile_lag_s": self.reconciled.lag_s(),
            "reconcile_problem": self.reconciled.problem,
            "tokens_problem": self.tokens.problem,
        }

    async def read_tokens(self) -> None:
        """Watch the token file until cancelled."""
        while True:
            await asyncio.sleep(TOKENS_EVERY_S)
            if await self.tokens.refresh():
                self.limits.forget({token.token_id for token in self.tokens.table.tokens})

    async def read_holds(self) -> None:
        await self.holds.run(self.section.holds_refresh_ms / 1000)

    async def keep_live(self) -> None:
        """Rebuild live state, then follow the store if this is a query collector."""
        if not self.rebuilt:
            count = await Rebuild(self.follower, self.spooling).run()
            self.rebuilt = True
            _log.info("live state was rebuilt", extra={"batches": count, "problems": self.follower.problems})
        if self.query:
            await self.follower.run(self.section.follow_interval_ms / 1000)


@asynccontextmanager
async def open_service(
    store: Client,
    section: IngestSection,
    *,
    query: bool = False,
    unsafe_any_place: bool = False,
) -> AsyncIterator[Service]:
    """A collector that is ready to serve. When the block ends, what is in its spool lands and it is closed."""
    async with AsyncExitStack() as stack:
        tokens = await _tokens(store, section)
        acceptance, place = Acceptance(section.acceptance), store.place
        folder = _spool_folder(section, acceptance)
        rules: dict[str, Any] = {"expected_id": section.authority_id, "unsafe_any_place": unsafe_any_place}
        standing = await standing_authority(store, store.ambient, place, acceptance, **rules)
        if folder is not None:
            await blocking(_check_folder, folder, place, standing)
        check = await start_check(store)  # nothing is written before
        spool = None if folder is None else await stack.enter_async_context(open_spool(folder, store.ambient))
        spool_id = None if spool is None else await spool.spool_id(store.ambient)
        authority = await open_authority(store, store.ambient, place, acceptance, spool_id=spool_id, **rules)
        service = _compose(store, section, authority, check, tokens, spool, query)
        await service.holds.refresh()
        await service.reconciled.look()
        _warn(service)
        stack.callback(service.warn_of_spooled)
        if service.spooling is not None:
            await stack.enter_async_context(service.shutdown.limit("landing", service.spooling))
        add_gauges(service)
        async with _beside(service):
            yield service


@asynccontextmanager
async def _beside(service: Service) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(lasting("reading tokens", service.read_tokens), name="tokens"),
        asyncio.create_task(lasting("live state", service.keep_live), name="live state"),
        asyncio.create_task(lasting("reading holds", service.read_holds), name="holds"),
        asyncio.create_task(lasting("reading the reconciler's progress", service.reconciled.run), name="reconciled"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await service.readiness.close()
        await asyncio.gather(*tasks, return_exceptions=True)


def _warn(service: Service) -> None:
    """Of settings that are allowed, but probably a mistake."""
    if not service.tokens.valid():
        _log.warning(
            "token file %s has no valid token, so no agent can send: `holdfast tokens add --file %s --agents PATTERN`",
            service.tokens.path,
            service.tokens.path,
        )
    if service.store.spec.scheme == "memory":
        _log.warning("the store is in memory: accepted batches are lost when this process ends")
    if not service.authority.covers(place := service.store.place):
        _log.warning(
            "this store is at %s, and its authority is for %s: a copy accepts again what the original has already"
            " accepted; use `holdfast authority promote` or `alias` instead of --unsafe-any-place",
            place,
            service.authority.place,
        )


async def _tokens(store: Client, section: IngestSection) -> TokenFile:
    if section.tokens is None:
        raise Invalid("a collector needs a token file", remedy="give --tokens PATH; `holdfast tokens add` makes one")
    tokens = TokenFile(section.tokens, store.ambient.clock)
    await tokens.load()
    return tokens


def _spool_folder(section: IngestSection, acceptance: Acceptance) -> Path | None:
    if acceptance is Acceptance.S3_MANIFEST:
        if section.spool is not None:
            raise Invalid(
                "s3_manifest uses no spool: batches are accepted in the store",
                remedy="leave --spool out, or use --acceptance local_spool",
            )
        return None
    if section.spool is None:
        raise Invalid("local_spool accepts on a disk, and --spool is missing", remedy="give --spool DIR")
    return section.spool


def _check_folder(folder: Path, place: Place, standing: Authority | None) -> None:
    """Before a spool is created: a new one needs a store that has none."""
    spool_id = None if standing is None else standing.spool_id
    if not holds_spool(folder) and spool_id is not None:
        raise Refused(f"{place}: the spool {spool_id} accepts here, and --spool {folder} has none", remedy=OWN_SPOOL)


def _compose(
    store: Client,
    section: IngestSection,
    authority: Authority,
    check: StartCheck,
    tokens: TokenFile,
    spool: Spool | None,
    query: bool,
) -> Service:
    ambient, clock = store.ambient, store.ambient.clock
    collector_id = section.collector_id or f"collector-{ambient.ids.attempt()}"
    live = Live(clock, max_bytes=section.live_bytes, window_ns=section.live_window_s * _SECOND)
    frames = frame.Limits(frame_bytes=section.frame_bytes, payload_bytes=section.payload_bytes)

    def on_accepted(manifest: AcceptedManifest, submission: Submission) -> None:
        if submission.batch is not None:
            live.add(manifest, submission.batch)

    record_times = RecordTimes(
        None if section.backfill else section.max_age_s * _SECOND, hours_per_batch=section.hours_per_batch
    )
    options = CollectorOptions(collector_id, record_times)
    acceptor: Collector | SpoolCollector
    called = {"on_accepted": on_accepted, "on_duplicate": on_accepted}  # an acknowledged batch is in live state
    if spool is None:
        acceptor = Collector(store, ambient, authority, options, **called)
    else:
        spooling = SpoolOptions(section.object_landing_interval_ms, section.spool_notes_s)
        acceptor = SpoolCollector(
            spool, store, ambient, authority, options, inspect_frame, spooling=spooling, landings=live, **called
        )
    metrics = Metrics(store.usage)
    limits = Limits.of(section, clock)
    holds = Holds(store, ambient)
    readiness = Readiness(store, clock, spool, collector_id)
    guarded = Guarded(Watched(acceptor, readiness) if spool is None else acceptor, holds, Resolutions(store, ambient))
    accept_timeout_s = section.accept_timeout_ms / 1000 if spool is None else None
    intake = Intake(
        guarded,
        tokens,
        limits,
        metrics,
        clock,
        frames=frames,
        accept_timeout_s=accept_timeout_s,
        record_times=record_times,
    )
    return Service(
        section=section,
        store=store,
        authority=authority,
        check=check,
        acceptor=acceptor,
        live=live,
        follower=Follower(store, live, clock, frames),
        tokens=tokens,
        limits=limits,
        metrics=metrics,
        intake=intake,
        refusals=Refusals(clock),
        collector_id=collector_id,
        query=query,
        holds=holds,
        reconciled=Reconciled(store, clock),
        readiness=readiness,
        shutdown=Shutdown(clock, section.drain_ms),
    )
