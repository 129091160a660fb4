"""Forks copy lines and payloads of their sources; deleting leaves a tombstone."""

import json

import pytest

from holdfast import runs
from holdfast.base.errors import Conflict, Fenced, Invalid, NotFound, Refused
from holdfast.runs import layout
from holdfast.runs.admin.delete import delete
from holdfast.runs.admin.fork import fork
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_previous
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import Journal
from holdfast.runs.journal.leftovers import tidy, unreferenced
from holdfast.runs.journal.payload import get_payload, put_payload
from tests.unit.runs.desk import Crash, Desk
from tests.unit.runs.journal.journals import TINY, Archive, step


async def source(archive: Archive, *, payload: bool = False, steps: int = 3) -> None:
    journal = await archive.begin("s", version="1", input=7, policy=TINY if steps > 3 else None)
    for number in range(steps):
        await journal.append(step(number))
    if payload:
        reference = await put_payload(archive.store, archive.ambient, "s", b"large")
        await journal.append(Draft("step", {"stepId": "big", "payload": reference}))
    await journal.append(Draft("complete", {}))


@pytest.mark.parametrize(
    ("choice", "kept"),
    [
        ({"from_offset": 1}, 1),
        ({"from_offset": 3, "version": "2"}, 3),
        ({"from_offset": 5}, 5),
        ({"from_step": "s1"}, 2),
        ({"after_step": "s1"}, 3),
    ],
)
async def test_lines_before_the_point_are_copied_and_a_start_follows(choice: dict, kept: int) -> None:
    archive = Archive()
    await source(archive)
    before = archive.body("s")
    forked = await fork(archive.store, "s", new_run_id="f", **choice)
    assert (forked.run_id, forked.source, forked.from_offset) == ("f", "s", kept)
    assert archive.lines("f")[:-1] == archive.lines("s")[:kept]
    state = (await archive.history("f")).state
    assert state == forked.state
    assert (state.status, state.session, state.detached) == ("open", 2, True)
    assert (state.source, state.version, state.start["input"]) == (
        {"runId": "s", "fromOffset": kept},
        choice.get("version", "1"),
        7,
    )
    assert archive.body("s") == before
    assert archive.keys("runs/s/") == ["runs/s/journal.jsonl"]  # nothing shared, nothing registered


async def test_the_lines_of_a_long_source_are_sealed_by_the_first_append() -> None:
    archive = Archive()
    await source(archive, steps=20)
    assert (await archive.history("s")).refs
    await fork(archive.store, "s", new_run_id="f", from_offset=19)
    copied = await archive.history("f")
    assert (copied.lines[:19], copied.refs) == ((await archive.history("s")).lines[:19], ())
    journal = await archive.begin("f", policy=TINY)
    await journal.append(step("more"))
    assert (await archive.history("f")).entries == journal.history.entries
    assert len(archive.keys("runs/f/segments")) == 1


async def test_a_fork_needs_nothing_of_its_source() -> None:
    archive = Archive()
    await source(archive, payload=True, steps=20)
    before = archive.body("s")
    await fork(archive.store, "s", new_run_id="f", after_step="big")
    await fork(archive.store, "f", new_run_id="g", after_step="big")
    await fork(archive.store, "s", new_run_id="h", after_step="s1")
    assert archive.body("s") == before
    assert len(archive.keys("/payloads/")) == 3  # none for h
    for run_id in ("s", "f"):
        await delete(archive.store, run_id, force=True)
    entry = (await archive.history("g")).entries[-2]
    assert await get_payload(archive.store, entry.fields["payload"]) == b"large"


@pytest.mark.parametrize("choice", [{}, {"from_offset": 1, "from_step": "s0"}, {"from_offset": 0}, {"from_offset": 6}])
async def test_a_point_that_is_none_is_refused(choice: dict) -> None:
    archive = Archive()
    await source(archive)
    with pytest.raises(Invalid) as refused:
        await fork(archive.store, "s", **choice)
    assert refused.value.remedy
    assert archive.keys("journal") == ["runs/s/journal.jsonl"]


async def test_unknown_runs_steps_and_taken_names() -> None:
    archive = Archive()
    with pytest.raises(NotFound):
        await fork(archive.store, "s", from_offset=1)
    await source(archive)
    with pytest.raises(NotFound, match="no step 'x'"):
        await fork(archive.store, "s", from_step="x")
    before = archive.body("s")
    with pytest.raises(Refused, match="run s exists already"):
        await fork(archive.store, "s", new_run_id="s", from_offset=1)
    assert archive.body("s") == before
    await delete(archive.store, "s")
    with pytest.raises(NotFound):
        await fork(archive.store, "s", from_offset=1)


async def finished(archive: Archive, run_id: str = "r", *, steps: int = 6) -> Journal:
    journal = await archive.begin(run_id, policy=TINY)
    reference = await put_payload(archive.store, archive.ambient, run_id, b"large")
    await journal.append(Draft("step", {"stepId": "big", "payload": reference}))
    for number in range(steps):
        await journal.append(step(number))
    await journal.append(Draft("complete", {}))
    await archive.backend.put(layout.mail_key(run_id, "e", "m-1"), b"{}")
    await RunIndex(archive.store, archive.ambient).note(run_id, journal.state)
    return journal


async def test_everything_goes_but_the_tombstone() -> None:
    archive = Archive()
    await finished(archive)
    archive.spent()
    deleted = await delete(archive.store, "r")
    assert archive.spent() == {"get": 1 + 2, "put": 1, "list": 3, "delete": 7}  # two segments besides the journal
    assert sorted(archive.shelf.objects) == ["runs/r/journal.jsonl"]
    assert deleted.removed > 4
    state = (await archive.history()).state
    assert (state.status, state.session, state.generation) == ("deleted", 2, 1)
    assert len(archive.lines()) == 2


async def test_a_deleted_name_is_not_created_again() -> None:
    archive = Archive()
    await finished(archive)
    await delete(archive.store, "r")
    with pytest.raises(Conflict):
        await Journal.begin(archive.store, archive.ambient, "r", None, {})  # a creator that was paused before it
    with pytest.raises(Refused):
        await archive.begin("r", reopen=True)
    with pytest.raises(NotFound):
        await delete(archive.store, "missing")


async def test_a_run_that_is_not_over_is_deleted_by_force_only() -> None:
    archive = Archive()
    journal = await archive.begin()
    with pytest.raises(Refused, match="is open"):
        await delete(archive.store, "r")
    await delete(archive.store, "r", force=True)
    with pytest.raises(Fenced, match="session 2 has started"):
        await journal.append(step(1))
    assert (await archive.history()).state.status == "deleted"


async def test_deleting_again_removes_what_came_late() -> None:
    archive = Archive()
    await finished(archive)
    await delete(archive.store, "r")
    await put_payload(archive.store, archive.ambient, "r", b"of a zombie")
    again = await delete(archive.store, "r")
    assert again.removed == 1
    assert sorted(archive.shelf.objects) == ["runs/r/journal.jsonl"]


async def test_payloads_that_forks_of_earlier_versions_share_are_kept() -> None:
    archive = Archive()
    await finished(archive)
    await archive.backend.put(layout.fork_folder("r") + "f.json", b"{}")
    shared = archive.keys("/payloads/")
    for _ in range(2):
        await delete(archive.store, "r")
        assert archive.keys("runs/r/") == ["runs/r/forks/f.json", "runs/r/journal.jsonl", *shared]
    assert await unreferenced(archive.store, "r", archive.keys("runs/r/")) == []


async def test_tidying_removes_merged_segments_of_finished_runs_alone() -> None:
    archive = Archive()
    journal = await archive.begin(policy=TINY)
    for number in range(12):
        await journal.append(step(number))
    assert await tidy(archive.store, "r") == 0
    await journal.continue_as_new({})
    for number in range(12):
        await journal.append(step(number))
    await journal.append(Draft("complete", {}))
    before = len(archive.keys("segments/"))
    removed = await tidy(archive.store, "r")
    assert removed > 0
    assert len(archive.keys("segments/")) == before - removed
    history = await archive.history()
    assert history.lines == journal.history.lines
    previous = await read_previous(archive.store, history)
    assert previous is not None
    assert len(previous.entries) == 13
    assert await tidy(archive.store, "r") == 0
    assert await tidy(archive.store, "missing") == 0


@pytest.mark.parametrize(("steps", "dies", "looks"), [(20, True, 0), (100, False, 0), (100, True, 1), (300, False, 1)])
async def test_only_a_run_that_may_have_left_segments_is_tidied(steps: int, dies: bool, looks: int) -> None:
    """Merging leaves some, from the eighth segment on; and a session that was cut short may have."""
    desk = Desk()
    store = desk.store()

    @runs.workflow()
    async def work(ctx: runs.Context) -> None:
        for _ in range(steps):
            await ctx.step("one", lambda: "x" * 1024)
        if dies and ctx.session == 1:
            raise Crash

    if dies:
        with pytest.raises(Crash):
            await work.start(desk.store(), run_id="r")
    await work.start(store, run_id="r")
    assert store.usage.requests("list", "runs") == looks
    segments = [key for key in desk.shelf.objects if "/segments/" in key]
    head = json.loads(desk.journal("r")[0])
    assert len(segments) == len(head.get("refs", ())), "nothing is left that the journal does not refer to"
