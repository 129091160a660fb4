"""Every rule of acceptance is needed: without it a small world shows the harm."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.sim import ingest_kit as kit
from holdfast.sim.checkers.ingest import ACKNOWLEDGED, KNOWN, NEW_FIRST, NEW_ONCE, ONCE, ONE_MANIFEST, RESOLVES, SHOWN
from holdfast.sim.explore import Limits, explore
from holdfast.sim.scenarios.agents import IngestSpool, IngestSpoolLive
from holdfast.sim.scenarios.ingest import ONE_AUTHORITY, IngestAccept, IngestAuthority, IngestLive
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Answer, Submission
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, Doubts, find_accepted
from holdfast.telemetry.accept.landing import SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.orphans import Fate, OrphanKeeper, Treated
from holdfast.telemetry.accept.references import refer
from holdfast.telemetry.accept.spool import Spool, Spooled, Taken, pending_key
from holdfast.telemetry.frame import Batch
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.rebuild import Rebuild
from holdfast.telemetry.live.state import Live
from tests.sim.naive import first_broken, rules
from tests.sim.test_objects import NoReadBack

QUIET = Limits(crashes=0, lost_responses=0)
LOST_ANSWER = Limits(crashes=0, lost_responses=1)


@dataclass(frozen=True, kw_only=True)
class EchoIsDuplicate(IngestAccept):
    """A 412 against one's own write, whose answer was lost, is taken for another collector's."""

    collectors: int = 1

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return NoReadBack(backend, ambient=ambient, retry=self.retry)


class ManifestFirst(Collector):
    """Claims the identity, and then brings the bytes."""

    async def accept(self, submission: Submission) -> Answer:
        found = await self._claim(self._draft(submission))
        await self.store.put(submission.blob_key, submission.body, ADDRESSED)
        return await super().accept(submission) if found is None else Accepted(AcceptedManifest.read(found), True)


class BlobIsDuplicate(Collector):
    """The bytes are there, so the batch must have been accepted."""

    async def accept(self, submission: Submission) -> Answer:
        if isinstance(await self.store.put(submission.blob_key, submission.body, ADDRESSED), Lost):
            return Accepted(self._draft(submission), duplicate=True)
        return await super().accept(submission)


class EffectsFirst(Collector):
    """Shows the batch to readers while the store is still at work."""

    async def accept(self, submission: Submission) -> Answer:
        if await find_accepted(self.store, submission.identity) is None and self._on_accepted is not None:
            self._on_accepted(self._draft(submission), submission)
        self._on_accepted, reported = None, self._on_accepted
        try:
            return await super().accept(submission)
        finally:
            self._on_accepted = reported


class LooksThenWrites(Collector):
    """No manifest is there, so writing one needs no condition."""

    async def _claim(self, draft: AcceptedManifest) -> Object | None:
        found = await self.store.find(draft.key)
        if found is None:
            await self.store.put(draft.key, draft.encode(), OVERWRITE)
        return found


class NoDoubts(Doubts):
    def of(self, identity: BatchIdentity) -> Collection[str]:
        return ()


class Forgetful(Collector):
    """An attempt without an answer is forgotten."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # whatever a collector takes
        self._doubts = NoDoubts()


class Audits(OrphanKeeper):
    """Deletes what no manifest names, after having looked."""

    async def treat(self, blob_key: str) -> Treated:
        head = kit.inspect((await self._store.get(blob_key)).body)
        if head is not None and await find_accepted(self._store, head.identity) is None:
            await self._store.delete(blob_key)
        return Treated(Fate.REMOVE)


def marker_key(blob_key: str) -> str:
    return f"condemned/{layout.blob_hash(blob_key)}.json"


class Condemns(OrphanKeeper):
    """Leaves a marker first, then looks for manifests, then deletes."""

    async def treat(self, blob_key: str) -> Treated:
        await self._store.put(marker_key(blob_key), b"{}", CREATE)
        return await Audits.treat(self, blob_key)  # type: ignore[arg-type]  # only its parts are used


class ReadsMarker(Collector):
    """Looks for a marker before it claims: by the time the manifest lands, that is old news."""

    async def _claim(self, draft: AcceptedManifest) -> Object | None:
        if await self.store.find(marker_key(draft.raw_blob_key)) is not None:
            raise Unavailable(f"{draft.raw_blob_key}: is condemned")
        return await super()._claim(draft)


@dataclass(frozen=True, kw_only=True)
class ManifestsFirst(IngestAccept):
    collector: ClassVar[type[Collector]] = ManifestFirst


@dataclass(frozen=True, kw_only=True)
class BlobsAreDuplicates(IngestAccept):
    collector: ClassVar[type[Collector]] = BlobIsDuplicate


@dataclass(frozen=True, kw_only=True)
class EffectsBefore(IngestAccept):
    collector: ClassVar[type[Collector]] = EffectsFirst


@dataclass(frozen=True, kw_only=True)
class Unconditional(IngestAccept):
    collector: ClassVar[type[Collector]] = LooksThenWrites


@dataclass(frozen=True, kw_only=True)
class Forgets(IngestAccept):
    collector: ClassVar[type[Collector]] = Forgetful
    collectors: int = 1
    again: int = 1
    retry: RetryPolicy = RetryPolicy(attempts=1, base_ms=0, max_ms=0)  # noqa: RUF009  # frozen


@dataclass(frozen=True, kw_only=True)
class AuditedGarbage(IngestAccept):
    keeper: ClassVar[type[OrphanKeeper]] = Audits
    collectors: int = 1
    keepers: int = 1


@dataclass(frozen=True, kw_only=True)
class CondemnedGarbage(IngestAccept):
    collector: ClassVar[type[Collector]] = ReadsMarker
    keeper: ClassVar[type[OrphanKeeper]] = Condemns
    collectors: int = 1
    keepers: int = 1


@pytest.mark.parametrize(
    ("naive", "limits", "harm"),
    [
        (EchoIsDuplicate(), LOST_ANSWER, KNOWN),
        (ManifestsFirst(), QUIET, RESOLVES),
        (BlobsAreDuplicates(), QUIET, ACKNOWLEDGED),
        (EffectsBefore(), QUIET, ONCE),
        (Unconditional(), QUIET, ONE_MANIFEST),
        (Forgets(), Limits(crashes=0, lost_responses=2), KNOWN),
        (AuditedGarbage(), QUIET, RESOLVES),
        (CondemnedGarbage(), QUIET, RESOLVES),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, IngestAccept) else "",
)
def test_a_naive_part_does_harm(naive: IngestAccept, limits: Limits, harm: str) -> None:
    found = explore(naive, limits).found
    assert found is not None
    assert any(violation.startswith(harm) for violation in found.violations), found.violations


class NoNotes(Spool):
    """What has landed is gone from the disk, so nothing of it needs to stay."""

    async def _landed(self, identity: BatchIdentity) -> Taken | None:
        return None


class NoteLast(Spool):
    """Clears its disk first and takes notes after."""

    async def have_landed(self, manifests: Collection[AcceptedManifest]) -> None:
        await self._store.delete_many([pending_key(manifest.identity) for manifest in manifests])
        await super().have_landed(manifests)


class LandsUnanswered(Spool):
    """Lands what is on the disk, whether its sender was answered or not."""

    async def take(self, submission: Submission) -> Taken:
        return await self._take(submission)


class LooksOnlyBefore(Spool):
    """Looks for a note, and then takes the batch in."""

    async def take(self, submission: Submission) -> Taken:
        key = pending_key(submission.identity)
        if await self._landed(submission.identity) is not None:
            return await super().take(submission)
        created = isinstance(await self._store.put(key, submission.body, CREATE), Written)
        return Taken(submission.frame_sha256, 0, new=True) if created else await super().take(submission)


@pytest.mark.parametrize("naive", [NoNotes, NoteLast, LooksOnlyBefore])
def test_a_naive_spool_forgets_what_it_took(naive: type[Spool]) -> None:
    class Naive(IngestSpool):
        spool: ClassVar[type[Spool]] = naive

    assert NEW_ONCE in rules(first_broken(Naive, range(1, 400)))


def test_a_spool_that_lands_what_was_not_answered_calls_no_one_the_first() -> None:
    class Naive(IngestSpool):
        spool: ClassVar[type[Spool]] = LandsUnanswered

    assert NEW_FIRST in rules(first_broken(Naive, range(1, 400)))


class StoreFirst(Rebuild):
    """Reads what the store lists, and what has not landed by then."""

    async def run(self) -> int:
        return await self.follower.poll() + await self._from_spool()


class LandsUnseen(Collector):
    """Leaves the reference by time for later."""

    acceptance: ClassVar[Acceptance] = Acceptance.LOCAL_SPOOL

    async def _prepare(self, attempt: Any) -> Object | None:
        created = await self.store.put(attempt.submission.blob_key, attempt.submission.body, ADDRESSED)
        return None if isinstance(created, Written) else await self.store.find(attempt.draft.key)

    async def _make_findable(self, attempt: Any, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        pass


class ListsLater(SpoolCollector):
    """Clears its disk, and refers after: a reader in between finds nothing, and after a crash none ever does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lander = LandsUnseen(self.lander.store, self._ambient, self.authority, self.options)

    async def _settle(self, standing: list[AcceptedManifest]) -> None:
        await self.spool.have_landed(standing)
        for manifest in standing:
            await refer(self.lander.store, manifest, 0)


class PassesOver(Spool):
    """What is being sent again need not be read: its sender will be answered."""

    def pending(self) -> AsyncIterator[Spooled]:
        return self.to_land()

    async def to_land(self) -> AsyncIterator[Spooled]:
        async for spooled in super().pending():
            if spooled.identity not in self._taking:
                yield spooled


def test_live_state_lacks_batches_where_spool_and_store_are_read_or_left_in_another_order() -> None:
    class ReadsTheStoreFirst(IngestSpoolLive):
        rebuild: ClassVar[type[Rebuild]] = StoreFirst

    class ListsWhatIsGone(IngestSpoolLive):
        collector: ClassVar[type[SpoolCollector]] = ListsLater

    class LeavesOutWhatIsSentAgain(IngestSpoolLive):
        spool: ClassVar[type[Spool]] = PassesOver

    for naive in (ReadsTheStoreFirst, ListsWhatIsGone, LeavesOutWhatIsSentAgain):
        assert SHOWN in rules(first_broken(naive, range(1, 400)))


class ReadsTheWindow(Rebuild):
    """What is older than the window is of no interest."""

    async def _newest(self, spool: Spool) -> tuple[list[Spooled], bool]:
        newest, more = await super()._newest(spool)
        horizon_ns = self.follower.live.horizon_ns()
        return [each for each in newest if each.accepted_at_unix_ns >= horizon_ns], more


class KeepsTheWindow(Live):
    """The same, of what was there already."""

    def add(self, manifest: AcceptedManifest, batch: Batch, *, waits: bool = False) -> bool:
        return super().add(manifest, batch)


def test_what_waits_for_longer_than_the_window_is_shown_nowhere_if_it_is_forgotten() -> None:
    class ForgetsAtTheStart(IngestSpoolLive):
        rebuild: ClassVar[type[Rebuild]] = ReadsTheWindow

    class ForgetsInTime(IngestSpoolLive):
        live: ClassVar[type[Live]] = KeepsTheWindow

    for naive in (ForgetsAtTheStart, ForgetsInTime):
        assert SHOWN in rules(first_broken(naive, range(1, 400)))


class RefersLater(Collector):
    """Answers first, and writes the reference by time after."""

    async def _prepare(self, attempt: Any) -> Object | None:
        created = await self.store.put(attempt.submission.blob_key, attempt.submission.body, ADDRESSED)
        return None if isinstance(created, Written) else await self.store.find(attempt.draft.key)

    async def _make_findable(self, attempt: Any, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        self._writing = asyncio.create_task(refer(self.store, manifest, 0))


def test_live_state_lacks_what_is_referred_to_after_the_answer() -> None:
    class Naive(IngestLive):
        collector: ClassVar[type[Collector]] = RefersLater

    assert SHOWN in rules(first_broken(Naive, range(1, 400)))


@dataclass(frozen=True, kw_only=True)
class FoundsBlindly(IngestAuthority):
    """Everybody writes the authority that it found missing."""

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return Unconditionally(backend, ambient=ambient, retry=self.retry)


class Unconditionally(Client):
    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, OVERWRITE)


def test_an_authority_that_is_written_without_a_condition_is_two() -> None:
    found = explore(FoundsBlindly(), QUIET).found
    assert found is not None
    assert any(violation.startswith(ONE_AUTHORITY) for violation in found.violations)
    assert explore(IngestAuthority(), Limits(crashes=1, lost_responses=1)).found is None
