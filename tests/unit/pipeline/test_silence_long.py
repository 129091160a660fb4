"""Collectors that are cut off, and reconcilers that stand still, for longer than most is remembered."""

import pytest

from holdfast.base.errors import Ambiguous
from holdfast.pipeline import silence
from holdfast.pipeline.checkpoint import Checkpoints
from holdfast.pipeline.silence import Memory
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.marks import Mark
from tests.unit.pipeline.fleet import DAYS_S, MINUTE_S, Fleet


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
