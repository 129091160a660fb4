"""Gatherings and marks go when nobody needs them, and not before."""

from dataclasses import replace

from holdfast.objects.store import OVERWRITE
from holdfast.pipeline.gc import gatherings
from holdfast.telemetry.accept import expired, layout
from holdfast.telemetry.accept.expired import Expired
from holdfast.telemetry.accept.gathering import gather
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.accept.marks import Mark
from holdfast.telemetry.accept.references import by_time
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.live.follow import Follower
from holdfast.telemetry.live.state import Live
from tests.unit.pipeline.gc_desk import DAY, HOUR, GcDesk, frame


async def accepted(desk: GcDesk, number: int) -> AcceptedManifest:
    submission = frame(number)
    await desk.accept(submission)
    return AcceptedManifest.read(await desk.store.get(layout.accepted_key(submission.identity)))


async def gathered(desk: GcDesk, first: int = 0, count: int = 3) -> tuple[list[AcceptedManifest], str]:
    manifests = [await accepted(desk, number) for number in range(first, first + count)]
    key, body = gather(manifests, desk.watch.wall_ns())
    await desk.store.put(key, body)
    return manifests, key


async def refer(desk: GcDesk, manifest: AcceptedManifest) -> None:
    reference = by_time(manifest)
    await desk.store.put(reference.key, reference.body)


async def test_one_goes_when_each_of_its_batches_has_a_reference_of_its_own() -> None:
    desk = GcDesk()
    manifests, key = await gathered(desk)
    for manifest in manifests[:-1]:
        await refer(desk, manifest)
    assert (await desk.run("gatherings"))["kinds"]["gatherings"]["kept"] == {gatherings.YOUNG: 1}
    desk.later(3 * DAY)
    kept = (await desk.run("gatherings", run_id="run-2"))["kinds"]["gatherings"]["kept"]
    assert kept == {gatherings.NEEDED: 1}
    await refer(desk, manifests[-1])
    found = (await desk.plan("gatherings"))["kinds"]["gatherings"]
    assert found["removed"] == {gatherings.REFERRED: 1}
    assert desk.keys(layout.GATHERINGS) == [key]
    desk.usage.tallies.clear()
    assert (await desk.run("gatherings", run_id="run-3"))["removed"] == 1
    assert desk.keys(layout.GATHERINGS) == []
    assert desk.usage.requests("get", "acceptances") == 1
    assert desk.usage.requests("list", "accepted-by-time") == 1
    assert len(desk.keys("meta/pipeline/gc/v1/run-3/gatherings/")) == 2  # intent and end
    assert len(desk.keys(layout.ACCEPTED)) == len(manifests)


async def test_a_batch_that_has_expired_needs_no_reference() -> None:
    desk = GcDesk()
    manifests, _ = await gathered(desk, count=2)
    desk.later(3 * DAY)
    await refer(desk, manifests[0])
    await expired.record(desk.store, Expired.of_manifest(manifests[1], "retention", ()))
    assert (await desk.run("gatherings"))["removed"] == 1


async def test_what_cannot_be_read_stays_and_a_limit_holds() -> None:
    desk = GcDesk()
    for first in (0, 2, 4):
        for manifest in (await gathered(desk, first, 2))[0]:
            await refer(desk, manifest)
    broken = min(desk.keys(layout.GATHERINGS))
    await desk.store.put(broken, b"{}", OVERWRITE)
    desk.later(3 * DAY)
    found = await desk.run("gatherings", limit=1)
    assert (found["removed"], found["kinds"]["gatherings"]["more"]) == (1, True)
    found = await desk.run("gatherings", run_id="run-2")
    assert found["kinds"]["gatherings"]["kept"] == {gatherings.UNREADABLE: 1}
    assert desk.keys(layout.GATHERINGS) == [broken]


async def test_marks_of_those_that_ended_go_when_they_were_not_written_for_long() -> None:
    desk = GcDesk()
    for session in ("a" * 32, "b" * 32):
        mark = Mark(session, "c", desk.watch.wall_ns(), 0, 0, 5_000, ended=True)
        await desk.store.put(mark.key, mark.encode())
        desk.later(DAY + HOUR)
    assert (await desk.run("gatherings"))["kinds"]["gatherings"]["removed"] == {gatherings.GONE: 1}
    assert desk.keys(layout.MARKS) == [layout.mark_key("b" * 32)]


async def test_marks_from_which_a_first_reconciler_would_learn_something_stay() -> None:
    desk = GcDesk()
    ended = Mark("a" * 32, "c", desk.watch.wall_ns(), 0, 0, 5_000, ended=True)
    owing = replace(ended, session="b" * 32, unlisted=1)
    killed = replace(ended, session="c" * 32, ended=False)
    for mark in (ended, owing, killed):
        await desk.store.put(mark.key, mark.encode())
    await desk.store.put(layout.mark_key("d" * 32), b"rubbish")
    desk.later(3 * DAY)
    found = (await desk.run("gatherings"))["kinds"]["gatherings"]
    assert found["removed"] == {gatherings.GONE: 1}
    assert found["kept"] == {gatherings.UNHEARD: 2, gatherings.UNREADABLE: 1}
    assert desk.keys(layout.MARKS) == [layout.mark_key(each * 32) for each in "bcd"]


async def test_who_follows_is_not_disturbed_by_one_that_goes() -> None:
    desk = GcDesk()
    manifests, _ = await gathered(desk)
    for manifest in manifests:
        await refer(desk, manifest)
    live = Live(desk.watch, max_bytes=10**9, window_ns=10 * DAY)

    class Removing(Follower):
        async def _bring(self, found):  # type: ignore[no-untyped-def]  # as it is there
            """Between the LIST and the GET."""
            desk.later(3 * DAY)
            await desk.run("gatherings")
            return await super()._bring(found)

    follower = Removing(desk.store, live, desk.watch, Limits())
    assert await follower.rebuild() == len(manifests)
    assert follower.problems == 0
    assert desk.keys(layout.GATHERINGS) == []
