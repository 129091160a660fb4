"""A collector as a service: the checks before it serves, its parts, and its background tasks.

It checks before the first request that the token file can be read, that the store keeps conditions (``start_check``),
and that the store's authority allows this collector to accept in this mode. Live state is rebuilt in the background:
acceptance does not wait for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.base.aio import blocking, restarting
from holdfast.base.clock import Clock
from holdfast.base.config import IngestSection
from holdfast.base.errors import Invalid, Refused
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.client import Client
from holdfast.objects.conformance.certificate import start_check
from holdfast.objects.place import Place
from holdfast.server.intake import Intake
from holdfast.server.limits import Limits
from holdfast.server.metrics import Metrics, add_gauges
from holdfast.server.readiness import Readiness
from holdfast.server.tokens import TokenFile
from holdfast.telemetry import frame
from holdfast.telemetry.accept.accept import Submission
from holdfast.telemetry.accept.authority import OWN_SPOOL, Acceptance, Authority, Claim, open_authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions, Guarded
from holdfast.telemetry.accept.conflicts import Holds, Resolutions
from holdfast.telemetry.accept.landing import SpoolCollector, SpoolOptions
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.record_times import RecordTimes
from holdfast.telemetry.accept.spool import Spool, holds_spool, open_spool
from holdfast.telemetry.live.follow import Follower, Rebuild
from holdfast.telemetry.live.state import Live

TOKENS_EVERY_S = 1.0
STALE_ROUNDS = 10
"""After this many failed rounds of following, live state is not complete any more."""
DRAIN_LEAST_S = 2.0
"""The least time for the spool to land at the end, even if requests have used up ``drain_ms``."""

_SECOND = 1_000_000_000
_log = logger("server")


@dataclass
class Shutdown:
    """How long the shutdown may take, even if the store does not answer.

    Requests in progress have ``drain_ms``. Batches in the spool have the rest of that time to land, and at least
    ``DRAIN_LEAST_S``. What does not land is recovered as after a crash.
    """

    clock: Clock
    drain_ms: int
    _begun_ns: int | None = None

    def begin(self) -> None:
        self._begun_ns = self.clock.monotonic_ns()

    def left_s(self) -> float:
        passed_ns = 0 if self._begun_ns is None else self.clock.monotonic_ns() - self._begun_ns
        return max(DRAIN_LEAST_S, self.drain_ms / 1_000 - passed_ns / 1_000_000_000)


@dataclass
class Service:
    section: IngestSection
    store: Client
    authority: Authority
    advice: str | None
    """A warning about the store, if it has no certificate."""
    acceptor: Collector | SpoolCollector
    live: Live
    follower: Follower
    tokens: TokenFile
    limits: Limits
    metrics: Metrics
    intake: Intake
    collector_id: str
    query: bool
    holds: Holds
    readiness: Readiness
    shutdown: Shutdown
    rebuilt: bool = False

    @property
    def ambient(self) -> Ambient:
        return self.store.ambient

    @property
    def spooling(self) -> SpoolCollector | None:
        return self.acceptor if isinstance(self.acceptor, SpoolCollector) else None

    @property
    def draining(self) -> bool:
        return self.intake.draining

    def begin_draining(self) -> None:
        """Accept no new batches; requests in progress continue."""
        self.intake.draining = True
        self.shutdown.begin()
        self.live.end()

    def completeness(self) -> dict[str, Any]:
        """Whether live state has everything that was accepted: part of every response from it."""
        why = self._partial_because()
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

    def _partial_because(self) -> str | None:
        if not self.rebuilt:
            return "live state is being rebuilt"
        if self.live.missing:
            return "the whole window did not fit into the memory for live state"
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
        """At the end: how many batches are only in the spool."""
        if self.spooling is not None and (count := len(self.spooling.spool)):
            _log.warning(
                "%d %s in the spool %s, and will land when a collector is started with this spool again",
                count,
                "batch remains" if count == 1 else "batches remain",
                self.section.spool,
                extra={"landing_problem": self.spooling.problem},
            )

    async def end_landing(self, spooling: SpoolCollector) -> None:
        try:
            async with asyncio.timeout(self.shutdown.left_s()):
                await spooling.__aexit__(None, None, None)
        except TimeoutError:
            _log.warning("landing: not finished in time; it will be recovered as after a crash")

    async def state(self) -> dict[str, Any]:
        """For ``/readyz``: whether batches can be accepted, and the state of background work."""
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
            spool = None if self.spooling is None else self.spooling.spool
            count = await Rebuild(self.follower, spool).run()
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
    """A collector that is ready to serve. When the block ends, batches in its spool land and it is closed."""
    async with AsyncExitStack() as stack:
        tokens = await _tokens(store, section)
        acceptance, place = Acceptance(section.acceptance), store.place
        folder = _spool_folder(section, acceptance)
        rules: dict[str, Any] = {"expected_id": section.authority_id, "unsafe_any_place": unsafe_any_place}
        existing = await Claim(place, acceptance, **rules).find(store, store.ambient)
        if folder is not None:
            await blocking(_check_folder, folder, place, existing)
        advice = await start_check(store)  # nothing is written before
        spool = None if folder is None else await stack.enter_async_context(open_spool(folder, store.ambient))
        spool_id = None if spool is None else spool.spool_id
        authority = await open_authority(store, store.ambient, place, acceptance, spool_id=spool_id, **rules)
        service = _compose(store, section, authority, advice, tokens, spool, query)
        await service.holds.refresh()
        _warn(service)
        stack.callback(service.warn_of_spooled)
        if service.spooling is not None:
            await service.spooling.__aenter__()
            stack.push_async_callback(service.end_landing, service.spooling)
        add_gauges(service)
        async with _background(service):
            yield service


@asynccontextmanager
async def _background(service: Service) -> AsyncIterator[None]:
    tasks = [
        asyncio.create_task(restarting("reading tokens", service.read_tokens), name="tokens"),
        asyncio.create_task(restarting("live state", service.keep_live), name="live state"),
        asyncio.create_task(restarting("reading holds", service.read_holds), name="holds"),
    ]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await service.readiness.close()
        await asyncio.gather(*tasks, return_exceptions=True)


def _warn(service: Service) -> None:
    """Log settings that are allowed, but probably a mistake."""
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


def _check_folder(folder: Path, place: Place, existing: Authority | None) -> None:
    """Refuse to create a spool for a store that has another one."""
    spool_id = None if existing is None else existing.spool_id
    if not holds_spool(folder) and spool_id is not None:
        raise Refused(f"{place}: the spool {spool_id} accepts here, and --spool {folder} has none", remedy=OWN_SPOOL)


def _compose(
    store: Client,
    section: IngestSection,
    authority: Authority,
    advice: str | None,
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
        acceptor = SpoolCollector(spool, store, ambient, authority, options, spooling=spooling, **called)
    metrics = Metrics(store.usage)
    limits = Limits(section, clock)
    holds = Holds(store, ambient)
    readiness = Readiness(store, clock, spool, collector_id)
    guarded = Guarded(acceptor, holds, Resolutions(store, ambient))
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
        readiness=readiness,
    )
    return Service(
        section=section,
        store=store,
        authority=authority,
        advice=advice,
        acceptor=acceptor,
        live=live,
        follower=Follower(store, live, clock, frames),
        tokens=tokens,
        limits=limits,
        metrics=metrics,
        intake=intake,
        collector_id=collector_id,
        query=query,
        holds=holds,
        readiness=readiness,
        shutdown=Shutdown(clock, section.drain_ms),
    )
