"""A collector in ``local_spool`` mode: accepts on its own disk, and lands what it accepted in the object store.

One collector per authority. Landing goes through the same blob and manifest as in the other mode, every
``object_landing_interval_ms``, with the time of the acceptance here. What has landed can be found by time in the store
before it leaves the disk: no crash leaves a batch that is found neither here nor there. If other bytes stand in the
store under an identity that was accepted here, the conflict is recorded there, and the store's manifest counts from
then on.

``accept`` needs no object store. It raises the errors of the disk: ``Unavailable`` if it is full, ``Ambiguous`` if an
fsync failed.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import ClassVar, Protocol, Self

from holdfast.base.aio import lasting, map_bounded
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept.accept import Accepted, Answer, IdentityConflict, Inspect, Submission
from holdfast.telemetry.accept.authority import Acceptance, Authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions, OnAccepted
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Spool, Spooled, Taken, check_noteworthy
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.identity import BatchIdentity

AT_ONCE = 8
"""Batches that land at a time: a store that is far away answers each only after a while."""
GROUP = 64
FORGET_EVERY_NS = 600 * 1_000_000_000
_SECOND = 1_000_000_000

_log = logger("ingest")


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    object_landing_interval_ms: int = 1_000
    notes_kept_s: int = 30 * 86_400
    """How long notes of landed batches are kept: longer than any agent resends a batch."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of one round of landing."""

    batches: int = 0
    conflicts: int = 0
    unreadable: int = 0
    """Files in the spool that are no frames of their name: kept, and left alone."""
    stuck: int = 0
    """Batches whose manifest in the store cannot be read, and bytes whose conflict cannot be put on record: kept, and
    tried again. Others land all the same."""


class Landings(Protocol):
    """Live state, which shows the batches that wait here."""

    def add(self, manifest: AcceptedManifest, batch: Batch, *, waits: bool) -> bool:
        """This batch was accepted and is not in the store yet. It may be known already."""

    def landed(self, manifest_ids: Collection[str]) -> None:
        """These batches are in the store, with their references, and have left the disk."""

    def all_landed(self, began_ns: int) -> None:
        """All batches that waited at this time of the monotonic clock have landed."""


class _Unrecorded(Exception):
    """The store has other bytes under this identity, and the conflict could not be recorded; the log says why."""


class _Lander(Collector):
    """Writes what a spool has accepted into the store. What it has landed can be found by time there."""

    acceptance: ClassVar[Acceptance] = Acceptance.LOCAL_SPOOL


class SpoolCollector:
    """``async with SpoolCollector(...)`` lands in the background, and once more at the end."""

    def __init__(
        self,
        spool: Spool,
        store: Store,
        ambient: Ambient,
        authority: Authority,
        options: CollectorOptions,
        inspect: Inspect,
        *,
        spooling: SpoolOptions = SpoolOptions(),  # noqa: B008  # frozen
        on_accepted: OnAccepted | None = None,
        on_duplicate: OnAccepted | None = None,
        landings: Landings | None = None,
    ) -> None:
        self.spool = spool
        self.authority = authority
        self.options = options
        self.spooling = spooling
        self.lander: Collector = _Lander(store, ambient, authority, options)
        self._inspect = inspect
        self._ambient = ambient
        self.problem: str | None = None
        """Why the last round of landing has left batches behind."""
        self._on_accepted = on_accepted
        self._on_duplicate = on_duplicate
        self._landings = landings
        self.settled = 0
        """How often something has landed, and left the disk."""
        self._worker: asyncio.Task[None] | None = None
        self._all_landed_ns = ambient.clock.monotonic_ns()
        self._forgot_ns: int | None = None
        self._stuck: dict[BatchIdentity, None] = {}
        """Those that could not land; the latest that were tried are the last."""

    async def accept(self, submission: Submission) -> Answer:
        settled = self.settled
        taken = await self.spool.take(submission)
        if taken.frame_sha256 == submission.frame_sha256:
            manifest = taken.landed or self.manifest(submission, taken.accepted_at_unix_ns)
            callback = self._on_accepted if taken.new else self._on_duplicate
            if callback is not None:
                callback(manifest, submission)
            if taken.landed is None:
                await self._tell_waiting(manifest, submission, since=None if taken.new else settled)
            return Accepted(manifest, duplicate=not taken.new)
        standing = self._standing(submission.identity, taken)
        if standing is None:
            raise Corrupt(f"batch {submission.identity}: the bytes that hold its identity are no frame")
        return IdentityConflict(standing, None)

    async def land(self) -> Landed:
        """Land the pending batches. ``Unavailable`` or ``Ambiguous`` ends a round; nothing is lost."""
        done: Counter[str] = Counter()
        group: list[Spooled] = []
        stuck: dict[BatchIdentity, Spooled] = {}
        async for spooled in self.spool.to_land():
            if spooled.identity in self._stuck:
                stuck[spooled.identity] = spooled
                continue
            group.append(spooled)
            if len(group) == GROUP:
                done.update(await self._land_all(group))
                group = []
        done.update(await self._land_all(group))
        done.update(await self._land_stuck(stuck))
        async for identity, body in self.spool.conflicts():
            done[await self._put_on_record(identity, body)] += 1
        return Landed(done["batches"], done["conflicts"], done["unreadable"], done["stuck"])

    async def _land_stuck(self, stuck: Mapping[BatchIdentity, Spooled]) -> list[str]:
        """After all others, for the store may take long to refuse each. Once a whole group is refused, the rest is for
        the next round, which begins with it: what came meanwhile does not wait for very many."""
        waiting = [stuck[identity] for identity in self._stuck if identity in stuck]
        became: list[str] = []
        while waiting and set(became[-GROUP:]) != {"stuck"}:
            became += await self._land_all(waiting[:GROUP])
            waiting = waiting[GROUP:]
        return became + ["stuck"] * len(waiting)

    async def _land_all(self, group: list[Spooled]) -> list[str]:
        """What became of each. Those that did land are listed and noted at once, whatever became of the others."""
        standing: list[AcceptedManifest] = []
        try:
            return await map_bounded(group, partial(self._landed, standing), limit=AT_ONCE)
        finally:
            if standing:
                await self._settle(standing)

    async def _settle(self, standing: list[AcceptedManifest]) -> None:
        await self.spool.have_landed(standing)
        self.settled += 1
        self._tell_landed(standing)

    async def _landed(self, standing: list[AcceptedManifest], spooled: Spooled) -> str:
        """The outcome, as the name of a counter. A batch that cannot land does not stop the others."""
        self._stuck.pop(spooled.identity, None)
        try:
            answer = await self._land(spooled)
            if answer is None:
                return "unreadable"
            manifest = answer.manifest if isinstance(answer, Accepted) else answer.accepted
            standing.append(check_noteworthy(manifest))
        except (Corrupt, Incompatible, _Unrecorded) as error:
            _log.error("spooled batch %s: cannot land, and is kept: %s", spooled.identity, error)
            self._stuck[spooled.identity] = None
            return "stuck"
        return "batches" if isinstance(answer, Accepted) else "conflicts"

    async def _put_on_record(self, identity: BatchIdentity, body: bytes) -> str:
        submission = Submission.of(identity, body)
        try:
            await self._recorded(submission)
        except (Corrupt, Incompatible, _Unrecorded) as error:
            _log.error("conflict over %s: cannot be put on record, and is kept: %s", identity, error)
            return "stuck"
        await self.spool.conflict_landed(identity, submission.frame_sha256)
        return "conflicts"

    async def _recorded(self, submission: Submission) -> Answer:
        answer = await self.lander.accept(submission)
        if isinstance(answer, IdentityConflict) and answer.quarantine is None:
            raise _Unrecorded(f"batch {submission.identity}: its conflict could not be put on record")
        return answer

    async def run(self) -> None:
        """Land every interval, until cancelled."""
        while True:
            try:
                await self.spool.keep_reserve()  # independent of the store: disk space may have become free
                await self._round()
                await self.spool.keep_reserve()
                await self._forget()
            except HoldfastError as error:
                _log.warning("landing goes on in %d ms: %s", self.spooling.object_landing_interval_ms, error)
            await asyncio.sleep(self.spooling.object_landing_interval_ms / 1000)

    def lag_s(self) -> float:
        """Since the last round began that left nothing behind; before there was one, since the start."""
        return (self._ambient.clock.monotonic_ns() - self._all_landed_ns) / _SECOND

    async def _round(self) -> None:
        began_ns = self._ambient.clock.monotonic_ns()
        try:
            landed = await self.land()
        except HoldfastError as error:
            self.problem = str(error)
            raise
        kept = landed.unreadable + landed.stuck
        self.problem = f"{kept} {'file' if kept == 1 else 'files'} cannot land: the log says why" if kept else None
        if not kept:
            self._all_landed_ns = began_ns
            if self._landings is not None:
                self._landings.all_landed(began_ns)

    async def _tell_waiting(self, manifest: AcceptedManifest, submission: Submission, *, since: int | None) -> None:
        """One that was here before may have landed after it was found, which was reported before this."""
        if self._landings is None or submission.batch is None:
            return
        self._landings.add(manifest, submission.batch, waits=True)
        if since not in (None, self.settled) and await self.spool.waiting(submission.identity) is None:
            self._tell_landed([manifest])

    def _tell_landed(self, manifests: Collection[AcceptedManifest]) -> None:
        if self._landings is not None:
            self._landings.landed([each.identity.manifest_id for each in manifests])

    async def _forget(self) -> None:
        """Remove old notes from time to time, so that the spool does not grow for ever."""
        now = self._ambient.clock.monotonic_ns()
        if self._forgot_ns is None or now - self._forgot_ns >= FORGET_EVERY_NS:
            self._forgot_ns = now
            gone = await self.spool.forget(self._ambient.clock.wall_ns() - self.spooling.notes_kept_s * _SECOND)
            if gone:
                _log.info("notes of %d batches that landed long ago were removed", gone)

    async def _land(self, spooled: Spooled) -> Answer | None:
        waiting = await self.spool.waiting(spooled.identity)
        submission = None if waiting is None else self._submission(spooled, waiting.body)
        return None if submission is None else await self._recorded(submission)

    def _submission(self, spooled: Spooled, body: bytes) -> Submission | None:
        head = self._inspect(body)
        if head is None or head.identity != spooled.identity:
            _log.error("spooled batch %s: its file holds no frame of that identity; it is kept", spooled.identity)
            return None
        return Submission.of(
            head.identity,
            body,
            frame_version=head.frame_version,
            records=head.records,
            accepted_at_unix_ns=spooled.accepted_at_unix_ns,
        )

    def _standing(self, identity: BatchIdentity, taken: Taken) -> AcceptedManifest | None:
        """The manifest that counts: the one in the store, or what will be it."""
        if taken.landed is not None or taken.body is None:
            return taken.landed
        spooled = Spooled(identity, len(taken.body), taken.accepted_at_unix_ns)
        submission = self._submission(spooled, taken.body)
        return None if submission is None else self.manifest(submission, taken.accepted_at_unix_ns)

    def manifest(self, submission: Submission, accepted_at_unix_ns: int) -> AcceptedManifest:
        """Of a batch that has not landed: what its manifest will be."""
        return submission.manifest(
            accepted_at_unix_ns=accepted_at_unix_ns,
            collector_id=self.options.collector_id,
            authority_id=self.authority.authority_id,
            write_id=None,
            time_limits=self.options.record_times.limits(accepted_at_unix_ns),
        )

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(lasting("landing", self.run), name="landing")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
            self._worker = None
        with suppress(HoldfastError):  # what has not landed is safe in the spool
            await self._round()
