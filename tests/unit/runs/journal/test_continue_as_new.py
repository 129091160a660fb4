"""Continue as new: the same run, the next session, an empty history."""

import asyncio

import pytest

from holdfast.base.errors import Ambiguous, Fenced
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_previous
from tests.unit.objects.scripted import Scripted
from tests.unit.runs.journal.journals import TINY, Archive, Unsteady, step


async def test_the_old_history_is_archived_and_the_new_one_starts_at_zero() -> None:
    archive = Archive()
    journal = await archive.begin(tags=["nightly"], inputHash="h", metadata={"a": 1}, input=1)
    await journal.append(step(1))
    before = archive.body()
    archive.spent()
    await journal.continue_as_new({"input": 2}, [step("first")])
    assert archive.spent() == {"put": 2}
    assert [entry.type for entry in journal.history.entries] == ["start", "step"]
    assert (journal.session, journal.state.generation) == (2, 1)
    first = journal.history.entries[0].fields
    assert (first["input"], first["tags"], first["metadata"], first["inputHash"]) == (2, ["nightly"], {"a": 1}, "h")
    (archived,) = archive.keys("generations/")
    assert archive.shelf.objects[archived].body == before
    await journal.append(step(2))
    found = await archive.history()
    assert found.entries == journal.history.entries
    previous = await read_previous(archive.store, found)
    assert previous is not None
    assert [entry.fields.get("stepId") for entry in previous.entries] == [None, "s1"]


async def test_segments_of_an_old_generation_stay_readable() -> None:
    archive = Archive()
    journal = await archive.begin(policy=TINY)
    for number in range(9):
        await journal.append(step(number))
    lines = journal.history.lines
    await journal.continue_as_new({})
    for number in range(9):
        await journal.append(step(number))
    assert (await archive.history()).lines == journal.history.lines
    previous = await read_previous(archive.store, await archive.history())
    assert previous is not None
    assert previous.lines == lines


async def test_an_older_session_is_fenced_by_the_new_generation() -> None:
    archive = Archive()
    older = await archive.begin()
    newer = await archive.begin()
    await newer.continue_as_new({})
    with pytest.raises(Fenced, match="session 3 has started"):
        await older.append(step(1))
    with pytest.raises(Fenced):
        await older.continue_as_new({})
    assert (await archive.history()).state.session == 3


async def test_what_waits_is_written_before() -> None:
    archive = Archive()
    journal = await archive.begin()
    answers = await asyncio.gather(journal.append(step(1)), journal.append(step(2)), journal.continue_as_new({}))
    assert [entry.offset for answer in answers[:2] if answer for entry in answer] == [1, 2]
    previous = await read_previous(archive.store, await archive.history())
    assert previous is not None
    assert len(previous.entries) == 3


async def test_a_foreign_line_is_archived_too() -> None:
    archive = Archive()
    journal = await archive.begin()
    line = b'{"type":"step","session":1,"offset":1,"timestamp":"2026-01-01T00:00:00Z","stepId":"theirs"}\n'
    await archive.backend.put("runs/r/journal.jsonl", archive.body() + line)
    await journal.continue_as_new({})
    previous = await read_previous(archive.store, await archive.history())
    assert previous is not None
    assert previous.entries[-1].fields["stepId"] == "theirs"


@pytest.mark.parametrize("word", ["lost", "twice", "drop", "late", "clash"])
async def test_whatever_happens_to_the_put_it_happens_once(word: str) -> None:
    backend = Scripted("ok", "ok", "ok", word)  # start, step, archive, and the PUT that decides
    archive = Archive(backend)
    journal = await archive.begin()
    await journal.append(step(1))
    await journal.continue_as_new({})
    await journal.append(step(2))
    history = await archive.history()
    assert [entry.type for entry in history.entries] == ["start", "step"]
    assert (history.state.generation, history.state.session) == (1, 2)


async def test_an_unknown_outcome_that_landed_fences_the_old_session() -> None:
    backend = Unsteady()
    archive = Archive(backend)
    journal = await archive.begin()
    backend.mode, backend.archives = "lands", True
    with pytest.raises(Ambiguous):
        await journal.continue_as_new({})
    backend.mode = "ok"
    with pytest.raises(Fenced):
        await journal.append(step(1))
    assert (await archive.history()).state.generation == 1


async def test_a_run_that_is_being_cancelled_stays_so() -> None:
    archive = Archive()
    await archive.begin()
    journal = await archive.begin("r", cancelling=True, reason="enough")
    await journal.continue_as_new({})
    assert (journal.state.status, journal.state.cancel_reason) == ("cancelling", "enough")
    await journal.append(Draft("cancel", {}))
    assert journal.state.status == "cancelled"
