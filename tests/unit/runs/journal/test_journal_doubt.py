"""Lost answers, late landings, failures: a session looks before it writes again, and writes nothing twice."""

import asyncio

import pytest

from holdfast.base.errors import Ambiguous, Fenced, Unavailable
from holdfast.objects.memory import MemoryStore
from holdfast.objects.store import OVERWRITE, Lost, Mode, Written
from holdfast.runs.journal.attempt import Attempt, damaged, superseded
from holdfast.runs.journal.entry import Entry
from holdfast.runs.journal.state import RunState
from tests.unit.objects.scripted import Scripted
from tests.unit.runs.journal.journals import TINY, Archive, Unsteady, step


async def steps(archive: Archive) -> list[str]:
    return [entry.fields["stepId"] for entry in (await archive.history()).entries if entry.type == "step"]


@pytest.mark.parametrize("word", ["lost", "twice", "drop", "late", "clash", "busy"])
async def test_whatever_happens_to_one_put_the_entry_is_there_once(word: str) -> None:
    backend = Scripted("ok", word)
    archive = Archive(backend)
    journal = await archive.begin()
    await journal.append(step(1))
    await journal.append(step(2))
    assert await steps(archive) == ["s1", "s2"]
    assert (await archive.history()).entries == journal.history.entries


class Overtaken(MemoryStore):
    """The next write lands, the answer is lost, and before its writer looks another writer writes."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: bytes | None = None

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        if self.meanwhile is not None and isinstance(outcome, Written):
            line, self.meanwhile = self.meanwhile, None
            await super().put(key, body + line)
            raise Unavailable(f"{key}: response lost", maybe_applied=True)
        return outcome


def foreign(kind: str, session: int, offset: int) -> bytes:
    fields = f'"type":"{kind}","session":{session},"offset":{offset},"timestamp":"2026-01-01T00:00:00Z"'
    return b"{" + fields.encode() + b',"stepId":"theirs"}\n'


async def test_landed_and_then_ended_by_another_writer_returns_and_is_fenced_next() -> None:
    backend = Overtaken()
    archive = Archive(backend)
    journal = await archive.begin()
    backend.meanwhile = foreign("cancel", 1, 2)
    (entry,) = await journal.append(step(1))
    assert entry.offset == 1
    with pytest.raises(Fenced, match="it is cancelled"):
        await journal.append(step(2))


async def test_a_start_that_landed_and_was_superseded_is_fenced() -> None:
    backend = Overtaken()
    backend.meanwhile = foreign("start", 2, 1)
    archive = Archive(backend)
    with pytest.raises(Fenced, match="superseded as soon as it had started"):
        await archive.begin()


async def test_a_line_that_another_program_rewrote_is_still_ours() -> None:
    """A program that reads JSON and writes it again may change how numbers and keys look, and loses large ones."""

    class Rewriting(Overtaken):
        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if self.meanwhile is not None:
                body_after = body.replace(b"1152921504606846977", b"1152921504606847000")
                self.meanwhile = None
                await MemoryStore.put(self, key, body, mode)
                await MemoryStore.put(self, key, body_after)
                raise Unavailable("response lost", maybe_applied=True)
            return await super().put(key, body, mode)

    backend = Rewriting()
    archive = Archive(backend)
    journal = await archive.begin()
    backend.meanwhile = b"now"
    (entry,) = await journal.append(step(1, 2**60 + 1))
    assert entry.fields["result"] == 1152921504606847000  # what is recorded is what is returned
    await journal.append(step(2))
    assert await steps(archive) == ["s1", "s2"]


@pytest.mark.parametrize("mode", ["lands", "vanishes"])
async def test_after_an_unknown_outcome_only_another_session_goes_on(mode: str) -> None:
    backend = Unsteady()
    archive = Archive(backend)
    journal = await archive.begin()
    backend.mode = mode
    answers = await asyncio.gather(*(journal.append(step(n)) for n in range(3)), return_exceptions=True)
    assert [type(answer).__name__ for answer in answers] == ["Ambiguous"] * 3
    backend.mode = "ok"
    archive.spent()
    with pytest.raises(Ambiguous):
        await journal.append(step(3))
    assert archive.spent() == {}
    await (await archive.begin()).append(step(4))
    assert await steps(archive) == (["s0", "s1", "s2", "s4"] if mode == "lands" else ["s4"])


async def test_sealing_that_fails_only_leaves_the_tail_long() -> None:
    class NoSegments(MemoryStore):
        refusing = True
        tried = 0

        async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
            if "/segments/" in key and self.refusing:
                self.tried += 1
                raise Unavailable(f"{key}: too large for this link")
            return await super().put(key, body, mode)

    backend = NoSegments()
    archive = Archive(backend)
    journal = await archive.begin(policy=TINY)
    for number in range(8):
        await journal.append(step(number))
    assert backend.tried == 4 * 3  # every second line, three attempts each
    backend.refusing = False
    for number in range(8, 12):
        await journal.append(step(number))
    assert journal.history.refs
    assert (await archive.history()).entries == journal.history.entries


TIME = "2026-01-02T03:04:05Z"


def entry(offset: int, name: str, *, session: int = 1, timestamp: str = TIME) -> Entry:
    return Entry("step", session, offset, timestamp, {"stepId": name, "result": 1.5})


def test_what_stops_a_session() -> None:
    mine = RunState(session=2, writer="me", next_offset=5)
    assert (superseded(mine, 2, "me"), damaged(mine, 2, 5)) == (None, None)
    assert superseded(mine._replace(writer="you"), 2, "me") == "session 2 belongs to another writer"
    assert superseded(mine._replace(session=3), 2, "me") == "session 3 has started"
    assert damaged(mine, 2, 6) == "6 entries were recorded, and 5 are left"
    assert damaged(mine._replace(session=1), 2, 5) == "the start of session 2 is gone; the highest session is 1"


def attempt(*entries: Entry) -> Attempt:
    made = Attempt("r", 1, TIME, RunState())
    made.entries += entries
    return made


def test_an_attempt_has_landed_if_all_its_lines_are_in_their_places() -> None:
    mine = attempt(entry(1, "a"), entry(2, "b"))
    start = Entry("start", 1, 0, TIME)
    assert mine.is_in([start, entry(1, "a"), entry(2, "b"), entry(3, "x")])
    assert not mine.is_in([start, entry(1, "a"), entry(2, "x")])
    assert not mine.is_in([start])
    assert not mine.is_in([start, entry(1, "a", session=2), entry(2, "b")])


def test_a_rewritten_line_is_ours() -> None:
    assert attempt(entry(1, "a")).is_in([entry(0, "s"), Entry("step", 1, 1, TIME, {"stepId": "a", "result": 2})])
