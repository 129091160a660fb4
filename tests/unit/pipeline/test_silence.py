"""Collectors that were killed: their marks tell the reconciler, which looks for what they left, once."""

import random
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.errors import Ambiguous
from holdfast.base.ids import Ambient
from holdfast.ingest import layout
from holdfast.ingest.collector import Collector
from holdfast.ingest.frame import Limits, decode, encode, pack
from holdfast.ingest.manifest import AcceptedManifest
from holdfast.ingest.marks import Mark, Marks
from holdfast.ingest.quarantine import record_conflict
from holdfast.ingest.records import Gauge
from holdfast.ingest.submit import submission_of
from holdfast.objects.observe import Usage
from holdfast.objects.spec import StoreSpec
from holdfast.objects.stack import OpenStore
from holdfast.pipeline import Options, audited, silence
from holdfast.pipeline import layout as pipeline_layout
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.silence import Memory
from holdfast.platform.metrics import Metrics
from tests.unit.ingest.accept_desk import AcceptDesk
from tests.unit.pipeline.field import SECOND
from tests.unit.runs.desk import Watch

EVERY_MS = 5_000
MINUTE_S = 60
DAYS_S = 3 * 86_400
"""Longer than marks stay that nobody needs."""


class Skewed(Watch):
    """The desk's time, as somebody has it whose clock is wrong."""

    def __init__(self, right: Watch, seconds: int) -> None:
        self._right = right
        self.seconds = seconds

    def wall_ns(self) -> int:
        return self._right.wall_ns() + self.seconds * SECOND

    def monotonic_ns(self) -> int:
        return self._right.monotonic_ns()


class Process:
    """A collector that writes its mark when told. One that is told nothing more was killed."""

    def __init__(self, fleet: "Fleet", name: str, *script: str) -> None:
        self._fleet = fleet
        desk = fleet.desk
        self.collector: Collector = desk.collector(name, *script, attempts=1)
        self.marks = Marks(
            desk.store(), desk.ambient(), self.collector.references, collector_id=name, every_ms=EVERY_MS
        )

    async def accept(self) -> None:
        number = next(self._fleet.numbers)
        body = encode(pack("web-1", "boot", [Gauge("load", 1.0, self._fleet.desk.watch.wall_ns())], seq_start=number))
        await self.collector.accept(submission_of(body, decode(body)))

    async def tell(self, *, ended: bool = False) -> None:
        await self.collector.references.flush()
        await self.marks.write(ended=ended)


class Fleet:
    def __init__(self) -> None:
        self.desk = AcceptDesk()
        self.usage = Usage()
        self.numbers = iter(range(1_000))
        self.store = self.opened(self.desk.ambient())

    def opened(self, ambient: Ambient) -> OpenStore:
        return OpenStore(self.desk.store(usage=self.usage), StoreSpec("memory", "desk"), self.usage, ambient)

    async def begun(self, name: str, *script: str) -> Process:
        process = Process(self, name, *script)
        await process.tell()
        return process

    async def reconcile(self, *, limit: int = 20_000, by: OpenStore | None = None) -> list[dict[str, Any]]:
        options = Options(batches_at_once=limit)
        ran = await pipeline.run(by or self.store, ["reconcile"], options=options, takeover=by is not None)
        assert {each.status for each in ran} <= {"success"}
        return [each.summary for each in ran]

    async def counted(self) -> float:
        metrics = Metrics(self.store, self.store.ambient, Limits())
        found = await metrics.query("load", since="1h", aggregate="count", by=[])
        assert not found.read.unreadable
        return sum(each or 0 for each in found.series[0].values)

    async def audit(self) -> set[str]:
        request = {"scopes": ["ingest"], "deep": True, "older_than_ns": SECOND}
        [ran] = await pipeline.run(self.store, ["audit"], request=request)
        return {str(each["rule"]) for each in (await audited.read(self.store, ran.summary["audit_id"])).findings}

    async def collect_garbage(self) -> list[str]:
        """Sessions whose marks are left."""
        [ran] = await pipeline.run(self.store, ["gc"], request={"apply": True, "kinds": ["gatherings"]})
        assert ran.status == "success"
        return [layout.session_in(key) or "" async for key in self.store.keys(layout.MARKS)]

    async def listed_manifests(self, *, by: OpenStore | None = None) -> int:
        """How often all manifests were listed by a reconciler that runs now."""
        before = self.usage.requests("list", "accepted")
        await self.reconcile(by=by)
        return self.usage.requests("list", "accepted") - before


async def test_what_a_killed_collector_left_is_found_by_the_next_run_once() -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    killed, living = await fleet.begun("a"), await fleet.begun("b")
    for each in (killed, living):
        await each.accept()
        await each.tell()
    assert [each["looked_at"] for each in await fleet.reconcile()] == [2]
    for each in (killed, killed, killed, living):
        await each.accept()
    watch.advance(seconds=5)
    await living.tell()
    [soon] = await fleet.reconcile()
    assert (soon["looked_at"], "untold" in soon) == (1, False)  # it may just be about to tell
    watch.advance(seconds=20)
    await living.tell()
    assert await fleet.counted() == 3
    assert "missing_by_time" in await fleet.audit()
    [ran] = await fleet.reconcile()
    assert (ran["untold"], ran["looked_at"], ran["references_written"]) == (["a"], 3, 9)
    assert await fleet.counted() == 6
    watch.advance(seconds=2)
    assert await fleet.audit() == set()
    for seconds in (1, MINUTE_S, 1_000, 100_000):
        watch.advance(seconds=seconds)
        await living.tell()
        assert await fleet.listed_manifests() == 0


async def test_requests() -> None:
    fleet = Fleet()
    collectors = [await fleet.begun(f"c{number}") for number in range(3)]
    await fleet.reconcile()

    async def asked() -> tuple[int, int]:
        fleet.usage.tallies.clear()
        assert await fleet.reconcile() == []
        return fleet.usage.requests("list", "collectors"), fleet.usage.requests("get", "collectors")

    assert await asked() == (1, 0)
    for each in collectors[:2]:
        await each.tell()
    assert await asked() == (1, 2)
    assert await asked() == (1, 0)
    await collectors[0].tell(ended=True)
    assert await asked() == (1, 1)


async def test_who_ended_or_still_tells_is_not_looked_into() -> None:
    fleet = Fleet()
    ended, living = await fleet.begun("a"), await fleet.begun("b")
    await ended.accept()
    await ended.tell(ended=True)
    for _ in range(5):
        await living.accept()
        await living.tell()
        assert await fleet.listed_manifests() == 0
        fleet.desk.watch.advance(seconds=MINUTE_S)
    assert await fleet.counted() == 6


async def test_what_a_collector_could_not_refer_to_is_found_as_soon_as_it_says_so() -> None:
    fleet = Fleet()
    process = await fleet.begun("a", "ok", "ok", "busy", "ok", "ok", "busy")
    for _ in range(2):
        await process.accept()
        await process.tell()
        assert len(process.collector.references) == 0
        [ran] = await fleet.reconcile()
        assert (ran["untold"], ran["looked_at"]) == (["a"], 1)
        assert await fleet.listed_manifests() == 0
    assert process.collector.references.dropped == 2
    await process.tell(ended=True)
    fleet.desk.watch.advance(seconds=MINUTE_S)
    assert await fleet.listed_manifests() == 0
    assert await fleet.counted() == 2


async def test_of_very_many_each_run_takes_some() -> None:
    fleet = Fleet()
    process = await fleet.begun("a")
    for _ in range(5):
        await process.accept()
    fleet.desk.watch.advance(seconds=MINUTE_S)
    ran = await fleet.reconcile(limit=2)
    assert [(each["looked_at"], each["untold"]) for each in ran] == [(2, ["a"]), (2, ["a"]), (1, ["a"])]
    assert await fleet.listed_manifests() == 0
    assert await fleet.counted() == 5


async def test_a_conflict_that_it_recorded_last_gets_its_reference() -> None:
    fleet = Fleet()
    process = await fleet.begun("a")
    await process.accept()
    [key] = [key async for key in fleet.store.keys(layout.ACCEPTED)]
    accepted = AcceptedManifest.read(await fleet.store.get(key))
    conflict = await record_conflict(fleet.store, fleet.store.ambient, accepted, "ab" * 32, collector_id="a")
    fleet.desk.watch.advance(seconds=MINUTE_S)
    [ran] = await fleet.reconcile()
    assert ran["looked_at"] == 2
    assert (await fleet.store.head(layout.conflict_by_blob_key("ab" * 32, conflict.identity))).size > 0


async def test_who_comes_back_and_is_killed_is_looked_into_again() -> None:
    fleet = Fleet()
    process = await fleet.begun("a")
    await process.accept()
    fleet.desk.watch.advance(seconds=MINUTE_S)
    assert await fleet.listed_manifests() == 1
    await process.tell()
    assert await fleet.listed_manifests() == 0
    await process.accept()
    fleet.desk.watch.advance(seconds=MINUTE_S)
    assert await fleet.listed_manifests() == 1
    assert await fleet.counted() == 2
    assert await fleet.listed_manifests() == 0


@pytest.mark.parametrize("hours", [-30, -1, 1, 30])
async def test_no_clock_of_a_driver_decides_what_is_found(hours: int) -> None:
    fleet = Fleet()
    driver = fleet.opened(Ambient(Skewed(fleet.desk.watch, hours * 3_600), random.Random(7)))
    process = await fleet.begun("a")
    for _ in range(6):
        await process.accept()
        await process.tell()
        assert await fleet.listed_manifests(by=driver) == 0  # it is alive, and how old its mark is says the store
        fleet.desk.watch.advance(seconds=MINUTE_S)
    await process.tell()
    await process.accept()  # the last that is heard of it
    looks = []
    for _ in range(4):
        fleet.desk.watch.advance(seconds=MINUTE_S)
        looks.append(await fleet.listed_manifests(by=driver))
    # A clock that is behind does not see that a mark is old, but that it stands still.
    assert looks == ([1, 0, 0, 0] if hours > 0 else [0, 1, 0, 0])
    assert await fleet.counted() == 7


async def test_who_looks_only_to_the_driver_as_silent_is_looked_into_when_it_is_killed_after_all() -> None:
    fleet = Fleet()
    driver = fleet.opened(Ambient(Skewed(fleet.desk.watch, 3_600), random.Random(7)))
    process = await fleet.begun("a")
    assert await fleet.listed_manifests(by=driver) == 0
    await process.accept()  # under the same mark
    fleet.desk.watch.advance(seconds=MINUTE_S)
    assert await fleet.listed_manifests(by=driver) == 1
    assert await fleet.counted() == 1


async def test_the_store_is_asked_for_its_time_before_anybody_is_called_silent() -> None:
    fleet = Fleet()
    killed, living = await fleet.begun("a"), await fleet.begun("b")
    await killed.accept()
    await fleet.reconcile()
    assert pipeline_layout.CLOCK not in fleet.desk.shelf.objects
    fleet.desk.watch.advance(seconds=MINUTE_S)
    await living.tell()
    await fleet.reconcile()
    assert await fleet.counted() == 1
    assert pipeline_layout.CLOCK in fleet.desk.shelf.objects


async def test_what_was_written_while_the_clock_was_ahead_calls_nobody_silent() -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    watch.advance(seconds=3_600)
    before = await fleet.begun("a")
    await before.accept()
    await before.tell(ended=True)
    await fleet.reconcile()
    watch.advance(seconds=-3_600)
    process = await fleet.begun("p")
    await process.accept()
    await process.tell()
    assert await fleet.listed_manifests() == 0
    await process.accept()  # under the same mark; then it is killed
    watch.advance(seconds=MINUTE_S)
    assert await fleet.listed_manifests() == 1
    watch.advance(seconds=MINUTE_S)
    assert await fleet.audit() == set()


async def test_a_driver_that_is_behind_does_not_look_at_everything_again() -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    behind = fleet.opened(Ambient(Skewed(watch, -1_500), random.Random(7)))
    killed, living = await fleet.begun("a"), await fleet.begun("b")
    await killed.accept()
    await killed.tell()
    await fleet.reconcile()
    watch.advance(seconds=MINUTE_S)
    await living.tell()
    assert await fleet.listed_manifests() == 1
    for _ in range(3):
        watch.advance(seconds=7_200)
        await living.tell()
        assert await fleet.listed_manifests() == 0
        watch.advance(seconds=MINUTE_S)
        await living.tell()
        assert await fleet.listed_manifests(by=behind) == 0


async def test_a_clock_that_was_ahead_hides_no_collector_that_begins_later() -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    watch.advance(seconds=86_400)  # store and driver alike
    await (await fleet.begun("a")).tell(ended=True)
    await fleet.reconcile()
    watch.advance(seconds=-86_400)
    process = await fleet.begun("b")
    await process.accept()
    watch.advance(seconds=MINUTE_S)
    assert await fleet.listed_manifests() == 1
    assert await fleet.counted() == 1


async def test_a_mark_that_cannot_be_read_is_looked_into_once_it_stands_still() -> None:
    fleet = Fleet()
    process = await fleet.begun("a")
    await process.accept()
    await fleet.store.put(layout.mark_key("c" * 32), b"no mark")
    await fleet.store.put(layout.mark_key(process.marks.session), b"rubbish")
    assert await fleet.listed_manifests() == 0
    fleet.desk.watch.advance(seconds=2 * MINUTE_S)
    assert await fleet.listed_manifests() == 1
    assert await fleet.listed_manifests() == 0
    assert await fleet.counted() == 1


async def test_a_checkpoint_keeps_those_that_are_open_or_given_up_and_the_latest_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Fleet()
    living = await fleet.begun("living")
    killed = []
    for number in range(10):
        killed.append(await fleet.begun(f"killed-{number}"))
        await (await fleet.begun(f"ended-{number}")).tell(ended=True)
        await living.tell()
        await fleet.reconcile()
        fleet.desk.watch.advance(seconds=3_600)
    for most in (1_000, 4):
        monkeypatch.setattr(silence, "MOST_GIVEN_UP", most)
        await living.tell()
        await fleet.reconcile()
        checkpoint = await Checkpoints(fleet.store, fleet.store.ambient).read()
        assert checkpoint is not None
        kept = {living.marks.session, *(each.marks.session for each in killed[-most:])}
        assert set(Memory.of(checkpoint.marks).marks) == kept
    assert Mark.read(await fleet.store.get(layout.mark_key(living.marks.session))).ended is False
    for _ in range(3):
        assert await fleet.listed_manifests() == 0


@pytest.mark.parametrize("minutes", [5, 12, 3 * 1_440])  # it is remembered; for longer than others; it was swept
async def test_what_landed_after_its_collector_was_given_up_is_found_when_it_comes_back(minutes: int) -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    cut_off, living = await fleet.begun("a", *["ok"] * 7, "late"), await fleet.begun("b")
    for _ in range(2):
        await cut_off.accept()
        await cut_off.tell()
    await fleet.reconcile()
    watch.advance(seconds=20)
    await living.tell()
    assert await fleet.listed_manifests() == 1
    watch.advance(seconds=5)
    with pytest.raises(Ambiguous):
        await cut_off.accept()
    await cut_off.collector.store.put("elsewhere", b"")  # and now it lands
    await fleet.store.delete("elsewhere")
    assert cut_off.collector.references.doubted == 1
    for _ in range(4):
        watch.advance(seconds=minutes * MINUTE_S / 4)
        await living.tell()
        await fleet.reconcile()
        await fleet.collect_garbage()
    await cut_off.tell()
    [ran] = await fleet.reconcile()
    assert (ran["untold"], ran["looked_at"]) == (["a"], 1)
    watch.advance(seconds=2)
    assert await fleet.audit() == set()
    assert await fleet.listed_manifests() == 0


async def test_who_was_cut_off_for_long_and_lacks_nothing_more_is_not_looked_into_again() -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    cut_off, living = await fleet.begun("a", "ok", "ok", "busy"), await fleet.begun("b")
    await cut_off.accept()
    await cut_off.tell()
    assert await fleet.listed_manifests() == 1
    for _ in range(4):
        watch.advance(seconds=10 * MINUTE_S)
        await living.tell()
        await fleet.reconcile()
    await cut_off.tell()
    assert await fleet.listed_manifests() == 0


async def test_marks_that_a_checkpoint_keeps_in_another_form_are_read_again() -> None:
    fleet = Fleet()
    process = await fleet.begun("a")
    await process.accept()
    assert Memory.of({"at_ns": 5, "marks": {"x": [1]}}) == Memory.of({"marks": 3}) == Memory.of(None) == Memory()
    fleet.desk.watch.advance(seconds=MINUTE_S)
    await fleet.reconcile()
    checkpoint = await Checkpoints(fleet.store, fleet.store.ambient).read()
    assert checkpoint is not None
    kept = Memory.of(checkpoint.marks)
    assert Memory.of(kept.document()) == kept
    assert [each.over for each in kept.marks.values()] == [True]


@pytest.mark.parametrize("known", [True, False])
async def test_a_mark_outlasts_a_reconciler_that_stands_still_for_days(known: bool) -> None:
    fleet = Fleet()
    before = await fleet.begun("before")
    killed = await fleet.begun("killed") if known else None
    await fleet.reconcile()
    killed = killed or await fleet.begun("killed")
    await killed.accept()
    await before.tell(ended=True)
    fleet.desk.watch.advance(seconds=DAYS_S)
    assert await fleet.collect_garbage() == [killed.marks.session]
    [ran] = await fleet.reconcile()
    assert (ran["untold"], ran["looked_at"]) == (["killed"], 1)
    fleet.desk.watch.advance(seconds=2)
    assert await fleet.audit() == set()
    assert await fleet.collect_garbage() == []
    assert await fleet.listed_manifests() == 0


async def test_marks_that_were_settled_while_others_went_on_are_swept() -> None:
    fleet = Fleet()
    living = await fleet.begun("living")
    await fleet.begun("killed")
    await (await fleet.begun("ended")).tell(ended=True)
    for _ in range(3):
        await living.tell()
        await fleet.reconcile()
        fleet.desk.watch.advance(seconds=DAYS_S)
    await living.tell()
    assert await fleet.collect_garbage() == [living.marks.session]


async def test_what_was_heard_while_the_clock_was_ahead_settles_no_mark() -> None:
    fleet = Fleet()
    watch = fleet.desk.watch
    watch.advance(seconds=10 * DAYS_S)  # store and driver alike
    await (await fleet.begun("a")).tell(ended=True)
    await fleet.reconcile()
    watch.advance(seconds=-10 * DAYS_S)
    killed = await fleet.begun("killed")
    await killed.accept()
    watch.advance(seconds=DAYS_S)
    assert killed.marks.session in await fleet.collect_garbage()
    assert await fleet.listed_manifests() == 1
