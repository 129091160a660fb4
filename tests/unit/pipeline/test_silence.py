"""Collectors that were killed: their marks tell the reconciler, which looks for what they left, once."""

import random

import pytest

from holdfast.base.ids import Ambient
from holdfast.pipeline import layout as pipeline_layout
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.silence import Memory
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.quarantine import record_conflict
from tests.unit.pipeline.fleet import MINUTE_S, Fleet, Skewed


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
