"""Orphan blobs: kept without proof, adopted, kept as evidence or removed with it, and every removal on record."""

from collections.abc import Iterable

import pytest

from holdfast.base.errors import Denied, Invalid
from holdfast.objects.layer import Layer
from holdfast.pipeline.gc import orphans
from holdfast.pipeline.gc.sweep import GC, intents
from holdfast.telemetry.accept import layout, references
from holdfast.telemetry.accept.conflicts import Resolution, Resolutions, find_conflict
from holdfast.telemetry.accept.manifest import AcceptedManifest
from tests.unit.pipeline.gc_desk import DAY, GcDesk, frame


async def resolve(desk: GcDesk, number: int, variant: int) -> None:
    lost = frame(number, variant)
    resolutions = Resolutions(desk.store, desk.ambient)
    await resolutions.decide(
        lost.identity, lost.frame_sha256, Resolution.EXISTING_IS_AUTHORITATIVE, by="anna", why="a bug"
    )


async def conflict(desk: GcDesk, *numbers: int) -> str:
    """Two frames under each identity, the second on record and resolved; the key of the last."""
    key = ""
    for number in numbers:
        await desk.accept(frame(number))
        key = await desk.put_blob(frame(number, 1))
    desk.later(8 * DAY)
    await desk.audit()
    await desk.run("orphans", run_id="first")
    for number in numbers:
        await resolve(desk, number, 1)
    return key


async def test_nothing_is_touched_before_an_audit_has_seen_past_its_retry_horizon() -> None:
    desk = GcDesk()
    key = await desk.put_blob(frame(1))
    desk.later(30 * DAY)
    assert (await desk.run("orphans"))["kinds"]["orphans"]["kept"] == {orphans.NO_AUDIT: 1}
    young = await desk.put_blob(frame(2))
    desk.later(6 * DAY)
    await desk.audit(("runs",))
    assert (await desk.run("orphans"))["kinds"]["orphans"]["kept"] == {orphans.NO_AUDIT: 2}
    await desk.audit(incomplete={"ingest": "cut short"})
    assert (await desk.run("orphans"))["kinds"]["orphans"]["kept"] == {orphans.NO_AUDIT: 2}
    await desk.audit()
    desk.later(30 * DAY)  # an audit proves nothing about what has grown old since
    found = (await desk.run("orphans", run_id="run-2"))["kinds"]["orphans"]
    assert found["kept"] == {orphans.YOUNG: 1}
    assert found["examples"][orphans.YOUNG] == [young]
    assert found["did"] == {"adopted": 1}
    assert {key, young} <= desk.shelf.objects.keys()
    batch = frame(1)
    manifest = AcceptedManifest.read(await desk.store.get(layout.accepted_key(batch.identity)))
    assert (manifest.collector_id, manifest.frame_sha256) == ("gc", batch.frame_sha256)
    assert references.by_time(manifest).key in desk.shelf.objects


LOST = "it lost a conflict that is resolved"


def named_in(number: int, variant: int) -> list[str]:
    """The record of a conflict, and the reference that leads to it."""
    lost = frame(number, variant)
    return [
        layout.conflict_by_blob_key(lost.frame_sha256, lost.identity),
        layout.conflict_key(lost.identity, lost.frame_sha256),
    ]


async def test_the_bytes_that_lost_a_conflict_go_after_its_record_once_it_is_resolved() -> None:
    desk = GcDesk()
    key = await conflict(desk, 1)
    lost = frame(1, 1)
    assert await find_conflict(desk.store, lost.identity, lost.frame_sha256) is not None
    size = len(desk.shelf.objects[key].body)
    gone: list[list[str]] = []

    class Deletes(Layer):
        async def delete_many(self, keys: Iterable[str]) -> None:
            gone.append(sorted(keys))
            await self.inner.delete_many(gone[-1])

    found = await desk.run("orphans", run_id="run-2", store=Deletes(desk.store))
    assert (found["removed"], found["bytes"]) == (3, size)
    assert found["kinds"]["orphans"]["removed"] == {LOST: 1, orphans.RESOLVED: 2}
    assert gone[:2] == [named_in(1, 1), [key]]
    assert frame(1).blob_key in desk.shelf.objects
    answer = [intent async for intent in intents(desk.store, "run-2")]
    named = [(each, 0, orphans.RESOLVED) for each in named_in(1, 1)]
    assert [each.objects for each in answer] == [tuple(sorted([*named, (key, size, LOST)]))]
    assert (await desk.run("orphans", run_id="run-3"))["removed"] == 0


async def test_a_plan_reads_alone_and_says_the_same() -> None:
    desk = GcDesk()
    key = await conflict(desk, 1)
    await desk.put_blob(frame(2))
    before = dict(desk.shelf.objects)
    found = (await desk.plan("orphans"))["kinds"]["orphans"]
    assert found["removed"] == {"it lost a conflict that is resolved": 1}
    assert found["examples"]["it lost a conflict that is resolved"] == [key]
    assert found["kept"] == {orphans.YOUNG: 1, "the manifest of its identity names it": 1}
    assert desk.shelf.objects == before
    with pytest.raises(Invalid, match="there is no kind of garbage 'orphan'"):
        await desk.plan("orphan")


async def test_no_more_than_the_limit_goes() -> None:
    desk = GcDesk()
    await conflict(desk, *range(4))
    found = await desk.run("orphans", run_id="run-2", limit=3)
    assert found["kinds"]["orphans"]["removed"][LOST] == 3
    assert found["kinds"]["orphans"]["more"]
    found = await desk.run("orphans", run_id="run-3", limit=3)
    assert found["kinds"]["orphans"]["removed"][LOST] == 1


class NoDeletes(Layer):
    """Credentials that may not delete; or a process that dies right there."""

    async def delete_many(self, keys: object) -> None:
        raise Denied("403: deletes are for garbage collection")


async def test_what_is_about_to_go_is_on_record_before_it_goes() -> None:
    desk = GcDesk()
    key = await conflict(desk, 1)
    with pytest.raises(Denied):
        await desk.run("orphans", run_id="run-2", store=NoDeletes(desk.store))
    assert key in desk.shelf.objects
    [left] = [intent async for intent in intents(desk.store, "run-2")]
    assert [each[0] for each in left.objects] == sorted([*named_in(1, 1), key])


async def test_what_is_referred_to_costs_a_share_of_a_listing() -> None:
    desk = GcDesk()
    for number in range(20):
        await desk.accept(frame(number))
        key = layout.accepted_key(frame(number).identity)
        for reference in references.of_accepted(AcceptedManifest.read(await desk.store.get(key))):
            await references.write(desk.store, reference)
    desk.later(8 * DAY)
    await desk.audit()
    await desk.run("orphans")
    # Audits: 1 LIST, 1 GET. The run's own record: 1 PUT, 1 HEAD. Staged tables of dead runs: 1 LIST. Blobs and
    # references: 2 LIST for their folders, 10 for the spans between them. Staged tables: 1 LIST that finds none, 3 PUT
    # for one with rows and one without, 1 GET of a part, 1 LIST and 3 keys in a DELETE.
    assert desk.usage.by_verb == {"get": 2, "list": 16, "put": 4, "head": 1, "delete": 3}
    assert desk.keys(GC) == [f"{GC}run-1/run.json"]
