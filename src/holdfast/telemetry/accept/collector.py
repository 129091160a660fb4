"""A collector in ``s3_manifest`` mode: bytes first, then the manifest, whose creation is the acceptance.

Any number of collectors share one authority and know nothing of each other: the store lets one of them create the
manifest of an identity. ``accept`` answers ``Accepted`` or ``IdentityConflict``, and raises

* ``Unavailable`` before acceptance: this submission was not accepted, the sender tries again later;
* ``Ambiguous`` if the manifest may or may not have landed: sending the same batch again resolves it;
* ``Corrupt`` or ``Incompatible`` if the manifest found cannot be read.

On the path of a batch that is new: two PUTs. A duplicate: one PUT and one GET. What follows from an acceptance (live
state by ``on_accepted``, derived references) follows after the manifest, once, at the collector that created it; what
a crash leaves out the reconciler repairs.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Protocol, Self

from holdfast.base.errors import Ambiguous, HoldfastError, Refused, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import ADDRESSED, CREATE, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Answer, IdentityConflict, Standing, Submission, standing
from holdfast.telemetry.accept.authority import Acceptance, Authority
from holdfast.telemetry.accept.doubts import Doubts
from holdfast.telemetry.accept.lasting import lasting
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.quarantine import record_conflict
from holdfast.telemetry.accept.record_times import BY_DEFAULT, RecordTimes
from holdfast.telemetry.accept.references import References, of_blob
from holdfast.telemetry.identity import BatchIdentity

_log = logger("ingest")

OnAccepted = Callable[[AcceptedManifest, Submission], None]
"""Told once of every batch that this collector has accepted, or of those that it acknowledges although another attempt
has accepted them. It must not fail; the batch is accepted already."""


class Acceptor(Protocol):
    """What a server needs of a collector, in either mode."""

    async def accept(self, submission: Submission) -> Answer: ...


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    collector_id: str
    record_times: RecordTimes = BY_DEFAULT
    references_owed: int = 10_000
    """How many accepted batches may wait for their derived references."""


class Collector:
    """``async with Collector(...)`` also writes derived references as they come, and the rest of them at the end."""

    acceptance: ClassVar[Acceptance] = Acceptance.S3_MANIFEST

    def __init__(
        self,
        store: Store,
        ambient: Ambient,
        authority: Authority,
        options: CollectorOptions,
        *,
        on_accepted: OnAccepted | None = None,
        on_duplicate: OnAccepted | None = None,
    ) -> None:
        if authority.acceptance is not self.acceptance:
            raise Refused(
                f"the authority {authority.authority_id} accepts by {authority.acceptance}, not by {self.acceptance}",
                remedy=f"start every collector of this store with --acceptance {authority.acceptance}",
            )
        self.store = store
        self.authority = authority
        self.options = options
        self.references = References(store, ambient.clock, most=options.references_owed)
        self._ambient = ambient
        self._on_accepted = on_accepted
        self._on_duplicate = on_duplicate
        self._doubts = Doubts()
        self._writer: asyncio.Task[None] | None = None

    async def accept(self, submission: Submission) -> Answer:
        found = await self._prepare(submission)
        if found is None:
            draft = self._draft(submission)
            found = await self._claim(draft, submission)
            if found is draft:
                return self._won(draft, submission)
        return await self._answer(found, submission)

    async def _prepare(self, submission: Submission) -> AcceptedManifest | None:
        """Bring the bytes into the store. If they were there, the manifest may be too: look before writing it."""
        try:
            created = isinstance(await self.store.put(submission.blob_key, submission.body, ADDRESSED), Written)
        except Ambiguous as error:
            raise Unavailable(f"batch {submission.identity}: its bytes are not in the store yet ({error})") from error
        return None if created else await self._find(submission.identity)

    async def _claim(self, draft: AcceptedManifest, submission: Submission) -> AcceptedManifest:
        """The manifest that stands under the identity: the draft, or what was there before it."""
        try:
            outcome = await self.store.put(draft.key, draft.encode(), CREATE)
        except Ambiguous as error:
            self._doubt(draft)
            self._leave(submission)
            raise Ambiguous(
                f"batch {draft.identity}: may or may not be accepted ({error})", remedy="send the same batch again"
            ) from error
        except asyncio.CancelledError:
            self._doubt(draft)
            raise
        except Unavailable:
            self._leave(submission)
            raise
        if isinstance(outcome, Written):
            return draft
        if outcome.current is not None:
            return AcceptedManifest.read(outcome.current)
        found = await self._find(draft.identity)
        if found is None:
            raise Unavailable(f"{draft.key}: was there and is gone; manifests are never deleted")
        return found

    async def _answer(self, found: AcceptedManifest, submission: Submission) -> Answer:
        match standing(found, submission.frame_sha256, self._doubts.of(submission.identity)):
            case Standing.OURS:
                self._doubts.settle(submission.identity)
                return self._won(found, submission)
            case Standing.OTHER:
                return await self._conflict(found, submission)
            case _:
                if self._on_duplicate is not None:
                    self._on_duplicate(found, submission)
                return Accepted(found, duplicate=True)

    async def _conflict(self, accepted: AcceptedManifest, submission: Submission) -> IdentityConflict:
        record: ConflictManifest | None = None
        try:
            record = await record_conflict(
                self.store,
                self._ambient,
                accepted,
                submission.frame_sha256,
                collector_id=self.options.collector_id,
            )
            self.references.owe(record)
        except HoldfastError as error:  # the verdict stands whether or not it can be recorded now
            _log.warning("conflict over %s: not put on record now: %s", submission.identity, error)
        return IdentityConflict(accepted, record)

    def _won(self, manifest: AcceptedManifest, submission: Submission) -> Accepted:
        self.references.owe(manifest)
        if self._on_accepted is not None:
            self._on_accepted(manifest, submission)
        return Accepted(manifest, duplicate=False)

    def _doubt(self, draft: AcceptedManifest) -> None:
        self._doubts.add(draft)
        self.references.doubted += 1

    def _leave(self, submission: Submission) -> None:
        """The blob may stay without a manifest: let it be found by time."""
        now = self._ambient.clock.wall_ns()
        self.references.owe(of_blob(submission.frame_sha256, len(submission.body), now))

    def _draft(self, submission: Submission) -> AcceptedManifest:
        accepted_at = submission.accepted_at_unix_ns
        if accepted_at is None:
            accepted_at = self._ambient.clock.wall_ns()
        return submission.manifest(
            accepted_at_unix_ns=accepted_at,
            collector_id=self.options.collector_id,
            authority_id=self.authority.authority_id,
            write_id=self._ambient.ids.write_id(),
            time_limits=self.options.record_times.limits(accepted_at),
        )

    async def _find(self, identity: BatchIdentity) -> AcceptedManifest | None:
        return await find_accepted(self.store, identity)

    async def __aenter__(self) -> Self:
        self._writer = asyncio.create_task(
            lasting("the writer of references", self.references.run), name="derived references"
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
            self._writer = None
        with suppress(HoldfastError):
            await self.references.flush()


async def find_accepted(store: Store, identity: BatchIdentity) -> AcceptedManifest | None:
    found = await store.find(layout.accepted_key(identity))
    return None if found is None else AcceptedManifest.read(found)
