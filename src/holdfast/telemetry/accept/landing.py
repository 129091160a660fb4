"""A collector in ``local_spool`` mode: accepts on its own disk, and lands what it accepted in the object store.

One collector per authority. Landing writes the same objects as the other mode, every ``object_landing_interval_ms``,
with the time of the acceptance here. If other bytes are in the store under an identity that was accepted here, the
conflict is recorded there, and the store's manifest counts from then on.

``accept`` needs no object store; it raises the errors of the disk.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.base.aio import map_bounded, restarting
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import Store
from holdfast.telemetry.accept.accept import Accepted, Answer, IdentityConflict, Submission
from holdfast.telemetry.accept.authority import Authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions, OnAccepted
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.spool import Conflicting, Spool, Spooled

AT_ONCE = 8
"""Batches that land at the same time."""
GROUP = 64
"""Batches whose landing is recorded in one transaction."""
FORGET_EVERY_NS = 600 * 1_000_000_000
_SECOND = 1_000_000_000

_log = logger("ingest")


@dataclass(frozen=True, slots=True)
class SpoolOptions:
    object_landing_interval_ms: int = 1_000
    notes_kept_s: int = 30 * 86_400
    """How long identities of landed batches are remembered: longer than any agent resends a batch."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of one round of landing."""

    batches: int = 0
    conflicts: int = 0
    stuck: int = 0
    """Batches whose manifest in the store cannot be read or whose frame here is damaged, and conflicts that cannot be
    recorded. They are kept and tried again; others land all the same."""


class _Unrecorded(Exception):
    """The store has other bytes under this identity, and the conflict could not be recorded; the log says why."""


class SpoolCollector:
    """``async with SpoolCollector(...)`` lands in the background, and once more at the end."""

    def __init__(
        self,
        spool: Spool,
        store: Store,
        ambient: Ambient,
        authority: Authority,
        options: CollectorOptions,
        *,
        spooling: SpoolOptions = SpoolOptions(),  # noqa: B008  # frozen
        on_accepted: OnAccepted | None = None,
        on_duplicate: OnAccepted | None = None,
    ) -> None:
        self.spool = spool
        self.options = options
        self.spooling = spooling
        self.lander = Collector(store, ambient, authority, options)
        """Writes what the spool has accepted into the store."""
        self._ambient = ambient
        self.problem: str | None = None
        """Why the last round of landing has left batches behind."""
        self._on_accepted = on_accepted
        self._on_duplicate = on_duplicate
        self._worker: asyncio.Task[None] | None = None
        self._all_landed_ns = ambient.clock.monotonic_ns()
        self._forgot_ns: int | None = None

    async def accept(self, submission: Submission) -> Answer:
        accepted_at = self._ambient.clock.wall_ns()
        draft = submission.manifest(
            accepted_at_unix_ns=accepted_at,
            collector_id=self.options.collector_id,
            time_limits=self.options.record_times.limits(accepted_at),
        )
        taken = await self.spool.accept(draft, submission.body)
        if taken.manifest.frame_sha256 != submission.frame_sha256:
            return IdentityConflict(taken.manifest, None)
        callback = self._on_accepted if taken.new else self._on_duplicate
        if callback is not None:
            callback(taken.manifest, submission)
        return Accepted(taken.manifest, duplicate=not taken.new)

    async def land(self) -> Landed:
        """Land the batches that wait. ``Unavailable`` or ``Ambiguous`` ends a round; nothing is lost."""
        done: Counter[str] = Counter()
        while batches := await self.spool.to_land(GROUP):
            outcomes = await self._land_group(batches)
            done.update(outcomes)
            if set(outcomes) == {"stuck"}:
                break  # the rest has failed before; the next round begins with it
        for refused in await self.spool.refused():
            done[await self._record_conflict(refused)] += 1
        return Landed(done["batches"], done["conflicts"], await self.spool.stuck() + done["unrecorded"])

    async def _land_group(self, batches: list[Spooled]) -> list[str]:
        """Returns the outcome of each. Those that landed are removed at once, even if landing others fails."""
        landed: list[tuple[Spooled, AcceptedManifest]] = []
        failed: list[Spooled] = []

        async def land(spooled: Spooled) -> str:
            try:
                answer = await self._land(spooled)
            except (Corrupt, Incompatible, Invalid, _Unrecorded) as error:
                _log.error("spooled batch %s: cannot land, and is kept: %s", spooled.manifest.identity, error)
                failed.append(spooled)
                return "stuck"
            landed.append((spooled, answer.manifest if isinstance(answer, Accepted) else answer.accepted))
            return "batches" if isinstance(answer, Accepted) else "conflicts"

        try:
            return await map_bounded(batches, land, limit=AT_ONCE)
        finally:
            await self.spool.landed(landed)
            await self.spool.failed(failed)

    async def _land(self, spooled: Spooled) -> Answer:
        frame, manifest = await self.spool.frame(spooled), spooled.manifest
        return await self._offer(
            Submission.of(manifest.identity, frame or b"", declared_sha256=manifest.frame_sha256, accepted=manifest)
        )

    async def _record_conflict(self, refused: Conflicting) -> str:
        try:
            frame = await self.spool.refused_frame(refused)
            await self._offer(Submission.of(refused.identity, frame, declared_sha256=refused.frame_sha256))
        except (Corrupt, Incompatible, Invalid, _Unrecorded) as error:
            _log.error("conflict over %s: cannot be recorded, and is kept: %s", refused.identity, error)
            return "unrecorded"
        await self.spool.remove_refused(refused)
        return "conflicts"

    async def _offer(self, submission: Submission) -> Answer:
        answer = await self.lander.accept(submission)
        if isinstance(answer, IdentityConflict) and answer.quarantine is None:
            raise _Unrecorded(f"batch {submission.identity}: its conflict could not be recorded")
        return answer

    async def run(self) -> None:
        """Land every interval, until cancelled."""
        while True:
            try:
                await self._round()
                await self._forget()
            except HoldfastError as error:
                _log.warning("landing continues in %d ms: %s", self.spooling.object_landing_interval_ms, error)
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
        if landed.stuck:
            batches = "batch" if landed.stuck == 1 else "batches"
            self.problem = f"{landed.stuck} {batches} cannot land: the log says why"
        else:
            self.problem, self._all_landed_ns = None, began_ns

    async def _forget(self) -> None:
        """Remove old rows from time to time, and as soon as the disk is full."""
        now = self._ambient.clock.monotonic_ns()
        if self._forgot_ns is None or now - self._forgot_ns >= FORGET_EVERY_NS or await self.spool.is_full():
            self._forgot_ns = now
            gone = await self.spool.forget(self._ambient.clock.wall_ns() - self.spooling.notes_kept_s * _SECOND)
            if gone:
                _log.info("%d batches that landed long ago were forgotten", gone)

    async def __aenter__(self) -> Self:
        self._worker = asyncio.create_task(restarting("landing", self.run), name="landing")
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
