"""Every rule of acceptance is needed: without it a small world shows the harm."""

import asyncio
import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from holdfast.base.errors import Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import ADDRESSED, CREATE, OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.sim.checkers.ingest import ACKNOWLEDGED, KNOWN, NEW_ONCE, ONCE, ONE_MANIFEST, RESOLVES, SHOWN, SPOOL_KEPT
from holdfast.sim.explore import Limits, explore
from holdfast.sim.scenario import Scenario
from holdfast.sim.scenarios.agents import IngestSpool, IngestSpoolLive, SimDatabase
from holdfast.sim.scenarios.ingest import ONE_AUTHORITY, IngestAccept, IngestAuthority, IngestLive
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.accept import Accepted, Answer, Submission, inspect_frame
from holdfast.telemetry.accept.authority import Acceptance
from holdfast.telemetry.accept.collector import Collector, Doubts, find_accepted
from holdfast.telemetry.accept.landing import SpoolCollector
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.orphans import Fate, OrphanKeeper
from holdfast.telemetry.accept.references import refer
from holdfast.telemetry.accept.spool import Spool, Spooled
from holdfast.telemetry.identity import BatchIdentity
from holdfast.telemetry.live.follow import Rebuild
from tests.sim.naive import first_broken, rules
from tests.sim.test_objects import NoReadBack

QUIET = Limits(crashes=0, lost_responses=0)
LOST_ANSWER = Limits(crashes=0, lost_responses=1)


class EchoIsDuplicate(IngestAccept):
    """A 412 against one's own write, whose answer was lost, is taken for another collector's."""

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

    async def treat(self, blob_key: str) -> Fate:
        head = inspect_frame((await self._store.get(blob_key)).body)
        if head is not None and await find_accepted(self._store, head.identity) is None:
            await self._store.delete(blob_key)
        return Fate.REMOVE


def marker_key(blob_key: str) -> str:
    return f"condemned/{layout.blob_hash(blob_key)}.json"


class Condemns(OrphanKeeper):
    """Leaves a marker first, then looks for manifests, then deletes."""

    async def treat(self, blob_key: str) -> Fate:
        await self._store.put(marker_key(blob_key), b"{}", CREATE)
        return await Audits.treat(self, blob_key)  # type: ignore[arg-type]  # only its parts are used


class ReadsMarker(Collector):
    """Looks for a marker before it claims: by the time the manifest lands, that is old news."""

    async def _claim(self, draft: AcceptedManifest) -> Object | None:
        if await self.store.find(marker_key(draft.raw_blob_key)) is not None:
            raise Unavailable(f"{draft.raw_blob_key}: is condemned")
        return await super()._claim(draft)


ONCE_MORE = {"collectors": 1, "again": 1, "retry": RetryPolicy(attempts=1, base_ms=0, max_ms=0)}
GARBAGE = {"collectors": 1, "keepers": 1}


@pytest.mark.parametrize(
    ("collector", "keeper", "settings", "limits", "harm"),
    [
        (ManifestFirst, OrphanKeeper, {}, QUIET, RESOLVES),
        (BlobIsDuplicate, OrphanKeeper, {}, QUIET, ACKNOWLEDGED),
        (EffectsFirst, OrphanKeeper, {}, QUIET, ONCE),
        (LooksThenWrites, OrphanKeeper, {}, QUIET, ONE_MANIFEST),
        (Forgetful, OrphanKeeper, ONCE_MORE, Limits(crashes=0, lost_responses=2), KNOWN),
        (Collector, Audits, GARBAGE, QUIET, RESOLVES),
        (ReadsMarker, Condemns, GARBAGE, QUIET, RESOLVES),
    ],
)
def test_a_naive_part_breaks_its_rule(
    collector: type[Collector], keeper: type[OrphanKeeper], settings: dict[str, Any], limits: Limits, harm: str
) -> None:
    class Naive(IngestAccept):
        pass

    Naive.collector, Naive.keeper = collector, keeper
    assert harm in found_in(Naive(**settings), limits)


def test_an_own_write_is_taken_for_a_duplicate_without_a_read_back() -> None:
    assert KNOWN in found_in(EchoIsDuplicate(collectors=1), LOST_ANSWER)


def found_in(scenario: Scenario, limits: Limits) -> str:
    """The rules that some course of events breaks."""
    found = explore(scenario, limits).found
    assert found is not None
    return "\n".join(found.violations)


class ForgetsAtOnce(Spool):
    """Forgets a batch as soon as it has landed."""

    async def landed(self, landed: Sequence[tuple[Spooled, AcceptedManifest]]) -> None:
        await super().landed(landed)
        await self.forget(1 << 62)


class RemovesFirst(Spool):
    """Removes a batch when it begins to land."""

    async def frame(self, spooled: Spooled) -> bytes | None:
        frame = await super().frame(spooled)
        await super().landed([(spooled, spooled.manifest)])
        return frame


class Unsynced(SimDatabase):
    """Answers before the batch is on the disk."""

    @contextmanager
    def write(self, *, durable: bool = True, adds: int = 0) -> Iterator[sqlite3.Connection]:
        with super().write(durable=False, adds=adds) as database:
            yield database


def test_a_naive_spool_accepts_twice_or_loses_batches() -> None:
    class ForgetsLanded(IngestSpool):
        spool: ClassVar[type[Spool]] = ForgetsAtOnce

    class LandsLast(IngestSpool):
        spool: ClassVar[type[Spool]] = RemovesFirst

    class AnswersEarly(IngestSpool):
        database: ClassVar[type[SimDatabase]] = Unsynced

    for naive, harm in ((ForgetsLanded, NEW_ONCE), (LandsLast, SPOOL_KEPT), (AnswersEarly, NEW_ONCE)):
        assert harm in rules(first_broken(naive, range(1, 400)))


class StoreFirst(Rebuild):
    """Reads what the store lists, and what has not landed by then."""

    async def run(self) -> int:
        assert self.spool is not None
        return await self.follower.poll() + await self._from_spool(self.spool)


class LandsUnseen(Collector):
    """Leaves the reference by time for later."""

    acceptance: ClassVar[Acceptance] = Acceptance.LOCAL_SPOOL

    async def _prepare(self, attempt: Any) -> Object | None:
        created = await self.store.put(attempt.submission.blob_key, attempt.submission.body, ADDRESSED)
        return None if isinstance(created, Written) else await self.store.find(attempt.draft.key)

    async def _make_findable(self, attempt: Any, manifest: AcceptedManifest, manifest_ns: int | None) -> None:
        pass


class ListsLater(SpoolCollector):
    """Removes batches from its disk before it writes their references: a reader in between does not find them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lander = LandsUnseen(self.lander.store, self._ambient, self.lander.authority, self.options)

    async def _land_group(self, batches: list[Spooled]) -> list[str]:
        outcomes = await super()._land_group(batches)
        for spooled in batches:
            found = await self.lander.store.find(spooled.manifest.key)
            if found is not None:
                await refer(self.lander.store, AcceptedManifest.read(found), 0)
        return outcomes


def test_live_state_lacks_batches_if_it_reads_the_store_first_or_their_references_come_last() -> None:
    class ReadsTheStoreFirst(IngestSpoolLive):
        rebuild: ClassVar[type[Rebuild]] = StoreFirst

    class ListsWhatIsGone(IngestSpoolLive):
        collector: ClassVar[type[SpoolCollector]] = ListsLater

    for naive in (ReadsTheStoreFirst, ListsWhatIsGone):
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


class FoundsBlindly(IngestAuthority):
    """Every collector writes the authority that it did not find."""

    def stack(self, backend: Store, ambient: Ambient) -> Client:
        return Unconditionally(backend, ambient=ambient, retry=self.retry)


class Unconditionally(Client):
    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        return await super().put(key, body, OVERWRITE)


def test_an_authority_that_is_written_without_a_condition_is_two() -> None:
    assert ONE_AUTHORITY in found_in(FoundsBlindly(), QUIET)
    assert explore(IngestAuthority(), Limits(crashes=1, lost_responses=1)).found is None
