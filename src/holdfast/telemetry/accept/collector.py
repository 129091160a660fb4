"""A collector in ``s3_manifest`` mode: bytes and reference first, then the manifest, whose creation is the acceptance.

Any number of collectors share one authority without knowing each other: the store lets one of them create the manifest
of an identity. ``accept`` answers ``Accepted`` or ``IdentityConflict``, and raises

* ``Unavailable`` before acceptance: this submission was not accepted, the sender tries again later;
* ``Ambiguous`` if the manifest may or may not have landed, or cannot be found by time yet: sending the same batch again
  resolves it;
* ``Corrupt`` or ``Incompatible`` if the manifest found cannot be read.

The order of writes: the bytes and the reference by time at once, then the manifest, then the answer. So a manifest
never names bytes that do not exist, and every accepted batch can be found by time. A new batch is three PUTs in two
round trips. A batch is acknowledged only when its reference counts (``references``): usually that is known from how
long this took; otherwise the reference is read, and written again if necessary.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from holdfast.base.errors import Ambiguous, HoldfastError, Unavailable
from holdfast.base.ids import Ambient
from holdfast.base.telemetry import logger
from holdfast.objects.store import ADDRESSED, CREATE, Lost, Object, Store, Written
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Answer, Existing, IdentityConflict, Submission
from holdfast.telemetry.accept.authority import Authority
from holdfast.telemetry.accept.conflicts import Holds, Resolutions, record_conflict
from holdfast.telemetry.accept.manifest import AcceptedManifest, ConflictManifest
from holdfast.telemetry.accept.record_times import BY_DEFAULT, RecordTimes
from holdfast.telemetry.accept.references import SLOW_NS, Reference, by_time, of_conflict, refer, write
from holdfast.telemetry.identity import BatchIdentity

MOST_DOUBTS = 10_000
"""Identities whose outcome is unknown that are remembered. For a forgotten one ``on_accepted`` is not called."""
RESOLUTION_S = 1.0
"""How long a request waits for the resolution of its conflict to be read."""

_log = logger("ingest")

Put = Callable[[], Awaitable[Written | Lost]]
Outcome = Written | Lost | BaseException
OnAccepted = Callable[[AcceptedManifest, Submission], None]
"""Called once for every batch that this collector has accepted, or for those that it acknowledges although another
attempt has accepted them. It must not fail; the batch is accepted already."""


class Acceptor(Protocol):
    """A collector in either mode."""

    async def accept(self, submission: Submission) -> Answer: ...


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    collector_id: str
    record_times: RecordTimes = BY_DEFAULT


class Doubts:
    """Write ids of attempts of this process whose outcome is unknown: a manifest with one of them was written here.

    Otherwise a collector that accepted a batch without knowing it would call the sender's next try a duplicate, and
    ``on_accepted`` would never be called for the batch.
    """

    def __init__(self, most: int = MOST_DOUBTS) -> None:
        self._most = most
        self._attempts: OrderedDict[BatchIdentity, set[str]] = OrderedDict()

    def add(self, attempt: AcceptedManifest) -> None:
        """Record that ``attempt`` has ended with an unknown outcome."""
        if attempt.write_id is not None:
            self._attempts.setdefault(attempt.identity, set()).add(attempt.write_id)
        while len(self._attempts) > self._most:
            self._attempts.popitem(last=False)

    def of(self, identity: BatchIdentity) -> Collection[str]:
        return self._attempts.get(identity, ())

    def settle(self, identity: BatchIdentity) -> None:
        """Forget the attempts at this identity: its manifest was read, and never changes."""
        self._attempts.pop(identity, None)


@dataclass(slots=True)
class _Attempt:
    """A submission that is being accepted, and when it began by both clocks: one may stop during a pause."""

    submission: Submission
    draft: AcceptedManifest
    reference: Reference
    began: tuple[int, int]
    referred: Written | Lost | None = None


class Collector:
    """``authority`` is that of the store, from ``open_authority``, which refuses another mode."""

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
        self.store = store
        self.authority = authority
        self.options = options
        self._ambient = ambient
        self._on_accepted = on_accepted
        self._on_duplicate = on_duplicate
        self._doubts = Doubts()

    async def accept(self, submission: Submission) -> Answer:
        began = self._now()
        draft = self._draft(submission)
        attempt = _Attempt(submission, draft, by_time(draft, write_id=draft.write_id or ""), began)
        found = await self._prepare(attempt) or await self._claim(draft)
        if found is None:
            await self._make_findable(attempt, draft, None)
            return self._won(draft, submission)
        return await self._answer(attempt, AcceptedManifest.read(found), found.modified_ns)

    async def _prepare(self, attempt: _Attempt) -> Object | None:
        """Write the bytes and the reference. If the bytes existed, the manifest may too: returns it if so."""
        submission = attempt.submission
        blob, referred = await self._both(
            partial(self.store.put, submission.blob_key, submission.body, ADDRESSED),
            partial(self.store.put, attempt.reference.key, attempt.reference.body, CREATE),
        )
        for outcome in (blob, referred):
            if isinstance(outcome, Ambiguous):
                raise Unavailable(f"batch {submission.identity}: not in the store yet ({outcome})") from outcome
            if isinstance(outcome, BaseException):
                raise outcome
        attempt.referred = referred if not isinstance(referred, BaseException) else None
        return None if isinstance(blob, Written) else await self.store.find(attempt.draft.key)

    async def _both(self, blob: Put, reference: Put) -> tuple[Outcome, Outcome]:
        """Concurrently: neither depends on the other."""
        return await asyncio.gather(blob(), reference(), return_exceptions=True)

    async def _claim(self, draft: AcceptedManifest) -> Object | None:
        """Create the manifest; returns the existing one if there is one."""
        try:
            outcome = await self.store.put(draft.key, draft.encode(), CREATE)
        except Ambiguous as error:
            self._doubts.add(draft)
            raise Ambiguous(
                f"batch {draft.identity}: may or may not be accepted ({error})", remedy="send the same batch again"
            ) from error
        except asyncio.CancelledError:
            self._doubts.add(draft)
            raise
        if isinstance(outcome, Written):
            return None
        found = outcome.current or await self.store.find(draft.key)
        if found is None:
            raise Unavailable(f"{draft.key}: existed and was deleted, although manifests are never deleted")
        return found

    async def _answer(self, attempt: _Attempt, found: AcceptedManifest, found_ns: int) -> Answer:
        submission = attempt.submission
        match Existing.of(found, submission.frame_sha256, self._doubts.of(submission.identity)):
            case Existing.OURS:
                await self._make_findable(attempt, found, found_ns)
                self._doubts.settle(submission.identity)
                return self._won(found, submission)
            case Existing.OTHER:
                return await self._conflict(found, submission)
            case _:
                await self._make_findable(attempt, found, found_ns)
                if self._on_duplicate is not None:
                    self._on_duplicate(found, submission)
                return Accepted(found, duplicate=True)

    async def _make_findable(self, attempt: _Attempt, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        """Make sure that the reference counts, before the batch is acknowledged. ``manifest_ns`` is when the manifest
        was written, by the store's clock; None if it was created just now.
        """
        own = by_time(manifest).key == attempt.reference.key
        if own and isinstance(attempt.referred, Written) and self._took_ns(attempt) <= SLOW_NS:
            return
        try:
            if manifest_ns is None:
                manifest_ns = (await self.store.head(manifest.key)).modified_ns
            known = attempt.referred.current if own and isinstance(attempt.referred, Lost) else None
            await refer(self.store, manifest, manifest_ns, known)
        except BaseException as error:
            if manifest is attempt.draft:
                self._doubts.add(manifest)
            if not isinstance(error, HoldfastError):
                raise
            raise Ambiguous(
                f"batch {manifest.identity}: accepted, but its reference by time could not be written ({error})",
                remedy="send the same batch again",
            ) from error

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
            await write(self.store, of_conflict(record))
        except HoldfastError as error:  # it is a conflict whether or not it can be recorded now
            _log.warning("conflict over %s: not recorded completely: %s", submission.identity, error)
        return IdentityConflict(accepted, record)

    def _won(self, manifest: AcceptedManifest, submission: Submission) -> Accepted:
        if self._on_accepted is not None:
            self._on_accepted(manifest, submission)
        return Accepted(manifest, duplicate=False)

    def _draft(self, submission: Submission) -> AcceptedManifest:
        authority_id, write_id = self.authority.authority_id, self._ambient.ids.write_id()
        if submission.accepted is not None:
            return replace(submission.accepted, authority_id=authority_id, write_id=write_id)
        accepted_at = self._ambient.clock.wall_ns()
        return submission.manifest(
            accepted_at_unix_ns=accepted_at,
            collector_id=self.options.collector_id,
            authority_id=authority_id,
            write_id=write_id,
            time_limits=self.options.record_times.limits(accepted_at),
        )

    def _now(self) -> tuple[int, int]:
        return self._ambient.clock.wall_ns(), self._ambient.clock.monotonic_ns()

    def _took_ns(self, attempt: _Attempt) -> int:
        return max(now - began for now, began in zip(self._now(), attempt.began, strict=True))


async def find_accepted(store: Store, identity: BatchIdentity) -> AcceptedManifest | None:
    found = await store.find(layout.accepted_key(identity))
    return None if found is None else AcceptedManifest.read(found)


class Guarded:
    """Refuses batches of held agents, and adds the resolution to the answer for a conflict.

    A batch that is accepted costs nothing more, a conflict one GET, with a short timeout: a collector with a spool
    answers also while the store does not."""

    def __init__(self, inner: Acceptor, holds: Holds, resolutions: Resolutions) -> None:
        self._inner = inner
        self._holds = holds
        self._resolutions = resolutions

    async def accept(self, submission: Submission) -> Answer:
        self._holds.check(submission.identity)
        answer = await self._inner.accept(submission)
        if not isinstance(answer, IdentityConflict):
            return answer
        try:
            async with asyncio.timeout(RESOLUTION_S):
                decisions = await self._resolutions.of(submission.identity, submission.frame_sha256)
        except (HoldfastError, TimeoutError) as error:
            # The resolution is answered when the batch is sent again.
            _log.warning("conflict over %s: its resolution could not be read: %r", submission.identity, error)
            return answer
        return replace(answer, resolution=decisions[-1].resolution.value) if decisions else answer
