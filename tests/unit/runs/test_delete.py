"""Deleting: a tombstone for ever, nothing else left, and no fork robbed of its payloads."""

from datetime import timedelta

import pytest

from holdfast.base.errors import Conflict, Fenced, NotFound, Refused
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import CREATE, OVERWRITE, Lost, Mode, Written
from holdfast.runs import layout
from holdfast.runs.admin.delete import delete, purge
from holdfast.runs.admin.fork import fork
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_previous
from holdfast.runs.journal.index import RunIndex
from holdfast.runs.journal.journal import Journal, tidy
from holdfast.runs.journal.payload import get_payload, put_payload
from tests.unit.runs.journals import TINY, Archive, step


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
    assert archive.spent() == {"get": 1 + 1, "put": 1, "list": 5, "delete": 6}  # one segment besides the journal
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
        await delete(archive.store, "nobody")


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


async def test_payloads_that_a_fork_needs_are_kept() -> None:
    archive = Archive()
    await finished(archive)
    await fork(archive.store, "r", new_run_id="f", after_step="big")
    with pytest.raises(Refused, match="1 of its forks need: f"):
        await delete(archive.store, "r")
    assert (await archive.history()).state.status == "success"
    deleted = await delete(archive.store, "r", force=True)
    assert deleted.kept_for == ("f",)
    reference = (await archive.history("f")).entries[1].fields["payload"]
    assert await get_payload(archive.store, reference) == b"large"
    await delete(archive.store, "f", force=True)
    assert (await delete(archive.store, "r")).kept_for == ()
    assert archive.keys("runs/r/") == ["runs/r/journal.jsonl"]


async def test_a_fork_of_a_fork_keeps_the_root_s_payloads() -> None:
    archive = Archive()
    await finished(archive)
    await fork(archive.store, "r", new_run_id="f", after_step="big")
    await fork(archive.store, "f", new_run_id="g", after_step="big")
    await delete(archive.store, "f", force=True)
    assert (await delete(archive.store, "r", force=True)).kept_for == ("g",)
    reference = (await archive.history("g")).entries[1].fields["payload"]
    assert await get_payload(archive.store, reference) == b"large"


async def test_a_fork_that_only_registered_never_comes_into_being() -> None:
    archive = Archive()
    await finished(archive)
    await archive.backend.put(layout.fork_key("r", "f"), b"{}")  # it died, or is only slow
    deleted = await delete(archive.store, "r")
    assert deleted.kept_for == ()
    assert (await archive.history("f")).state.status == "deleted"
    assert archive.keys("payloads") == []


async def test_a_registration_under_somebody_else_s_name_keeps_nothing() -> None:
    archive = Archive()
    await finished(archive)
    await archive.begin("f")
    await archive.backend.put(layout.fork_key("r", "f"), b"{}")
    assert (await delete(archive.store, "r")).kept_for == ()
    assert (await archive.history("f")).state.status == "open"


async def test_a_fork_that_continued_as_new_still_shows_its_old_history() -> None:
    archive = Archive()
    await finished(archive)
    await fork(archive.store, "r", new_run_id="f", after_step="big")
    journal = await archive.begin("f")
    await journal.continue_as_new({})
    assert (await delete(archive.store, "r", force=True)).kept_for == ("f",)
    previous = await read_previous(archive.store, await archive.history("f"))
    assert previous is not None
    assert await get_payload(archive.store, previous.entries[1].fields["payload"]) == b"large"


async def test_a_slow_fork_meets_the_deleter_s_tombstone() -> None:
    """The fork has registered and looked; the deleter finds the registration and no fork; then the fork goes on."""

    class Slow(MemoryStore):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if key == "runs/f/journal.jsonl" and mode == CREATE and b'"deleting"' not in body:
                await delete(archive.store, "r", force=True)
            return await super().put(key, body, mode)

    archive = Archive(Slow())
    await finished(archive)
    with pytest.raises(NotFound, match="deleted or began a new history"):
        await fork(archive.store, "r", new_run_id="f", after_step="big")
    assert (await archive.history("f")).state.status == "deleted"


async def test_runs_past_their_time_are_purged() -> None:
    archive = Archive()
    for run_id in ("a", "b", "c"):
        await finished(archive, run_id)
    await archive.begin("live")
    await fork(archive.store, "b", new_run_id="f", after_step="big")
    assert (await purge(archive.store, older_than=timedelta(minutes=1))).deleted == []
    report = await purge(archive.store, older_than=timedelta(0))
    assert sorted(deleted.run_id for deleted in report.deleted) == ["a", "c"]
    assert list(report.refused) == ["b"]
    assert archive.keys("runs/a/") == ["runs/a/journal.jsonl"]
    assert [run.run_id async for run in RunIndex(archive.store).list(status="success")] == ["b"]


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
    assert await tidy(archive.store, "nobody") == 0


async def test_an_index_that_missed_the_deletion_is_mended() -> None:
    archive = Archive()
    await finished(archive)
    index = archive.keys("runs-index")
    await delete(archive.store, "r")
    assert archive.keys("runs-index") == []
    await archive.backend.put(index[0], b"")
    await RunIndex(archive.store).rebuild()
    assert archive.keys("runs-index") == []
