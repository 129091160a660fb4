"""One session's hold on a run: what it writes, at what price, and what it does when others write too."""

import asyncio

import pytest

from holdfast.base.errors import Conflict, Corrupt, Fenced, Invalid, Refused
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_previous
from holdfast.runs.journal.journal import Journal
from tests.unit.runs.journal.journals import TINY, Archive, step


async def test_the_older_session_is_fenced_for_good() -> None:
    archive = Archive()
    older = await archive.begin()
    newer = await archive.begin()
    with pytest.raises(Fenced, match="session 2 has started"):
        await older.append(step(1))
    archive.spent()
    for call in (older.append(step(1)), older.continue_as_new({})):
        with pytest.raises(Fenced):
            await call
    assert archive.spent() == {}
    await newer.append(step(1))
    assert [entry.session for entry in (await archive.history()).entries] == [1, 2, 2]


async def test_a_run_is_created_once() -> None:
    archive = Archive()
    await Journal.begin(archive.store, archive.ambient, "r", None, {})
    with pytest.raises(Conflict, match="was started by another process"):
        await Journal.begin(archive.store, archive.ambient, "r", None, {})
    assert len(archive.lines()) == 1


async def test_what_is_asked_for_meanwhile_leaves_together_in_order() -> None:
    archive = Archive(Slow())
    journal = await archive.begin()
    archive.spent()
    first = asyncio.ensure_future(journal.append(step(0, 0), step("0b")))
    for _ in range(3):
        await asyncio.sleep(0)
    answers = await asyncio.gather(first, *(journal.append(step(n, n), step(f"{n}b")) for n in range(1, 30)))
    assert archive.spent() == {"put": 2}  # the first alone, all others after it
    assert [[entry.fields["stepId"] for entry in answer] for answer in answers] == [
        [f"s{n}", f"s{n}b"] for n in range(30)
    ]
    offsets = [entry.offset for answer in answers for entry in answer]
    assert offsets == list(range(1, 61))
    assert (await archive.history()).entries == journal.history.entries


class Slow(MemoryStore):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.go.set()

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        await asyncio.sleep(0)
        await self.go.wait()
        return outcome


@pytest.mark.parametrize(("victim", "recorded"), [(0, [0, 1, 2, 3, 4, 5]), (3, [0, 1, 2, 4, 5])])
async def test_a_cancelled_caller_cancels_no_other(victim: int, recorded: list[int]) -> None:
    """The first one's entry is being sent when its caller goes away; the fourth has not been sent yet."""
    backend = Slow()
    archive = Archive(backend)
    journal = await archive.begin()
    archive.spent()
    backend.go.clear()
    callers = [asyncio.ensure_future(journal.append(step(0)))]
    for _ in range(4):
        await asyncio.sleep(0)
    callers += [asyncio.ensure_future(journal.append(step(n))) for n in range(1, 6)]
    await asyncio.sleep(0)
    callers[victim].cancel()
    await asyncio.sleep(0)
    backend.go.set()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(answers[victim], asyncio.CancelledError)
    assert archive.spent() == {"put": 2}
    there = (await archive.history()).entries[1:]
    assert [entry.fields.get("stepId") for entry in there] == [f"s{n}" for n in recorded]
    reported = [answer[0] for answer in answers if isinstance(answer, list)]
    assert reported == [entry for entry in there if entry.fields["stepId"] != f"s{victim}"]


async def test_a_draft_that_has_no_place_fails_its_own_caller_alone() -> None:
    archive = Archive()
    journal = await archive.begin()
    answers = await asyncio.gather(
        journal.append(step(1)),
        journal.append(Draft("step", {"result": object()})),
        journal.append(Draft("start", {})),
        journal.append(step(2), Draft("nonsense", {})),
        journal.append(step(3)),
        return_exceptions=True,
    )
    assert [type(answer).__name__ for answer in answers] == ["list", "Invalid", "Invalid", "Invalid", "list"]
    assert [entry.fields.get("stepId") for entry in (await archive.history()).entries[1:]] == ["s1", "s3"]


async def test_nothing_follows_the_end() -> None:
    archive = Archive()
    journal = await archive.begin()
    await journal.append(step(1), Draft("complete", {"result": 1}))
    before = archive.lines()
    with pytest.raises(Invalid, match="the status allows the entry"):
        await journal.append(step(2))
    with pytest.raises(Invalid):
        await archive.begin()
    assert archive.lines() == before
    reopened = await archive.begin("r", reopen=True)
    await reopened.append(step(2))
    assert reopened.state.status == "open"


async def test_a_foreign_end_stops_the_session() -> None:
    archive = Archive()
    journal = await archive.begin()
    key = "runs/r/journal.jsonl"
    ending = b'\n{"type":"cancel","session":1,"offset":1,"timestamp":"2026-01-01T00:00:00Z"}\n'
    await archive.backend.put(key, b"\n".join(archive.lines()) + ending)
    with pytest.raises(Fenced, match="it is cancelled"):
        await journal.append(step(1))


async def test_a_journal_that_vanished_or_went_back_is_not_written_to() -> None:
    archive = Archive()
    journal = await archive.begin()
    older = archive.shelf.objects["runs/r/journal.jsonl"].body
    await journal.append(step(1))
    await archive.backend.put("runs/r/journal.jsonl", older)
    with pytest.raises(Corrupt, match="2 entries were recorded, and 1 are left"):
        await journal.append(step(2))
    assert archive.shelf.objects["runs/r/journal.jsonl"].body == older
    newer = await archive.begin()
    await archive.backend.delete("runs/r/journal.jsonl")
    with pytest.raises(Fenced, match="its journal is gone"):
        await newer.append(step(2))
    assert archive.keys("journal") == []


async def test_a_deleted_run_is_not_opened() -> None:
    archive = Archive()
    journal = await archive.begin()
    await journal.append(Draft("cancel", {"deleted": True}))
    with pytest.raises(Refused, match="was deleted"):
        await archive.begin("r", reopen=True)


async def test_an_older_session_is_fenced_without_reading_segments() -> None:
    archive = Archive()
    older = await archive.begin()
    newer = await archive.begin(policy=TINY)
    for number in range(12):
        await newer.append(step(number))
    archive.spent()
    with pytest.raises(Fenced):
        await older.append(step("late"))
    assert archive.spent() == {"put": 1, "get": 1}


async def test_continuing_as_new_archives_the_old_history_and_starts_at_zero() -> None:
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


async def test_what_waits_is_written_before_the_run_continues_as_new() -> None:
    archive = Archive()
    journal = await archive.begin()
    answers = await asyncio.gather(journal.append(step(1)), journal.append(step(2)), journal.continue_as_new({}))
    assert [entry.offset for answer in answers[:2] if answer for entry in answer] == [1, 2]
    previous = await read_previous(archive.store, await archive.history())
    assert previous is not None
    assert len(previous.entries) == 3


async def test_a_run_that_is_being_cancelled_stays_so_when_it_continues_as_new() -> None:
    archive = Archive()
    await archive.begin()
    journal = await archive.begin("r", cancelling=True, reason="enough")
    await journal.continue_as_new({})
    assert (journal.state.status, journal.state.cancel_reason) == ("cancelling", "enough")
    await journal.append(Draft("cancel", {}))
    assert journal.state.status == "cancelled"
