"""Old bytes: journals of the specification's own writer, and every format of ours. Read for ever, never regenerated."""

from pathlib import Path

import pytest

from holdfast.runs.admin.fork import fork
from holdfast.runs.journal.entry import Draft
from holdfast.runs.journal.history import read_previous
from holdfast.runs.journal.journal import Journal
from tests.unit.runs.journal.journals import Archive, step

GOLDEN = Path(__file__).parents[3] / "golden" / "runs"


async def shelved() -> Archive:
    archive = Archive()
    for path in sorted(GOLDEN.rglob("*.jsonl")):
        await archive.backend.put(f"runs/{path.relative_to(GOLDEN)}", path.read_bytes())
    return archive


@pytest.mark.parametrize(
    ("run_id", "status", "session", "lines"),
    [
        ("plain-completed", "success", 2, 7),
        ("plain-suspended", "suspended", 2, 6),
        ("plain-failed", "failed", 1, 3),
        ("plain-fork", "cancelled", 2, 4),
        ("v1-segments", "open", 1, 12),
        ("v1-renewed", "open", 2, 2),
        ("v1-deleted", "deleted", 2, 2),
    ],
)
async def test_every_old_journal_is_read(run_id: str, status: str, session: int, lines: int) -> None:
    history = await (await shelved()).history(run_id)
    assert (history.state.status, history.state.session, len(history.lines)) == (status, session, lines)


def test_no_old_journal_is_left_out() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == [
        "plain-completed",
        "plain-failed",
        "plain-fork",
        "plain-suspended",
        "v1-deleted",
        "v1-renewed",
        "v1-segments",
    ]


async def test_what_a_plain_journal_says() -> None:
    archive = await shelved()
    state = (await archive.history("plain-completed")).state
    assert (state.version, state.metadata) == ("v3", {"customer": "acme", "retries": 2})
    assert state.outcome is not None
    assert state.outcome.fields == {"result": {"ok": True}}
    entries = (await archive.history("plain-completed")).entries
    assert "result" not in entries[3].fields
    assert entries[5].fields["traceId"] == "4bf9"
    waiting = (await archive.history("plain-suspended")).state
    assert waiting.pending is not None
    assert (waiting.pending.event, waiting.pending.wake_at_ns) == ("signature", None)
    assert (await archive.history("plain-failed")).entries[1].fields["result"] == [1, 2.5, "é😀"]
    assert (await archive.history("plain-fork")).state.source == {"runId": "plain-completed", "fromOffset": 2}


async def test_a_plain_journal_is_extended_and_its_lines_are_kept_byte_for_byte() -> None:
    archive = await shelved()
    before = archive.body("plain-suspended")
    journal = await archive.begin("plain-suspended", Draft("resume", {"value": "signed"}))
    await journal.append(step("send"), Draft("complete", {"result": None}))
    assert archive.body("plain-suspended").startswith(before)
    assert journal.session == 3
    assert (await archive.history("plain-suspended")).state.status == "success"


async def test_a_last_line_without_a_newline_is_completed_not_joined() -> None:
    archive = await shelved()
    before = archive.body("plain-failed")
    assert not before.endswith(b"\n")
    await archive.begin("plain-failed", reopen=True)
    assert archive.body("plain-failed").startswith(before + b"\n{")
    assert (await archive.history("plain-failed")).state.status == "open"


async def test_a_plain_journal_is_forked_verbatim() -> None:
    archive = await shelved()
    await fork(archive.store, "plain-completed", new_run_id="f", after_step="llm#2")
    assert archive.lines("f")[:3] == archive.lines("plain-completed")[:3]
    state = (await archive.history("f")).state
    assert (state.source, state.session) == ({"runId": "plain-completed", "fromOffset": 3}, 2)


async def test_the_generation_before_is_found() -> None:
    archive = await shelved()
    history = await archive.history("v1-renewed")
    previous = await read_previous(archive.store, history)
    assert previous is not None
    assert [entry.fields.get("stepId") for entry in previous.entries] == [None, "s0", "s1", "s2", "s3", "s4"]
    assert await read_previous(archive.store, previous) is None


async def test_a_journal_with_segments_goes_on() -> None:
    archive = await shelved()
    history = await archive.history("v1-segments")
    journal = await Journal.begin(archive.store, archive.ambient, "v1-segments", history, {})
    await journal.append(step("more"))
    assert (await archive.history("v1-segments")).lines[:12] == history.lines
