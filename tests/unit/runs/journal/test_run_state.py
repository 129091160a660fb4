"""The state of a run, entry by entry."""

from typing import Any

import pytest

from holdfast.base.errors import Corrupt
from holdfast.runs.journal.entry import Entry
from holdfast.runs.journal.state import TRANSITIONS, RunState, fold

TIME = "2026-01-02T03:04:05Z"
WAKE = "2026-01-02T04:00:00Z"


def entries(*script: str | tuple[str, dict[str, Any]]) -> list[Entry]:
    """Words are types; ``start`` begins the next session."""
    made: list[Entry] = []
    session = 0
    for offset, word in enumerate(script):
        kind, fields = (word, {}) if isinstance(word, str) else word
        session += kind == "start"
        made.append(Entry(kind, session, offset, TIME, fields))
    return made


REOPEN = ("start", {"reopen": True})
CANCELLING = ("start", {"cancelling": True, "reason": "enough"})
SUSPEND = ("suspend", {"event": "approval"})
SLEEP = ("suspend", {"event": "sleep", "wakeAt": WAKE})
RETRY = ("error", {"error": {}, "retryAt": WAKE})
DELETE = ("cancel", {"deleted": True})


@pytest.mark.parametrize(
    ("script", "status"),
    [
        (["start"], "open"),
        (["start", "step", "step"], "open"),
        (["start", SUSPEND], "suspended"),
        (["start", SUSPEND, "step"], "suspended"),
        (["start", SUSPEND, "start"], "suspended"),
        (["start", SUSPEND, "start", "resume"], "open"),
        (["start", SUSPEND, "resume"], "open"),
        (["start", SLEEP], "sleeping"),
        (["start", SLEEP, "start", "resume", "step"], "open"),
        (["start", "complete"], "success"),
        (["start", "error"], "failed"),
        (["start", SUSPEND, "error"], "failed"),
        (["start", RETRY], "retrying"),
        (["start", RETRY, "start"], "open"),
        (["start", "error", REOPEN], "open"),
        (["start", "step", CANCELLING], "cancelling"),
        (["start", SUSPEND, CANCELLING, "step"], "cancelling"),
        (["start", CANCELLING, "start"], "cancelling"),
        (["start", CANCELLING, SUSPEND, "start", "resume"], "cancelling"),
        (["start", CANCELLING, RETRY, "start"], "cancelling"),
        (["start", CANCELLING, "cancel"], "cancelled"),
        (["start", SUSPEND, "cancel"], "cancelled"),
        (["start", "cancel", REOPEN], "open"),
        (["start", "complete", DELETE], "deleted"),
        (["start", DELETE], "deleted"),
    ],
)
def test_status(script: list[Any], status: str) -> None:
    assert fold(entries(*script)).status == status


@pytest.mark.parametrize(
    "script",
    [
        ["step"],
        ["start", "complete", "step"],
        ["start", "complete", "start"],
        ["start", "error", "start"],
        ["start", "cancel", "complete"],
        ["start", RETRY, "step"],
        ["start", SUSPEND, "complete"],
        ["start", DELETE, REOPEN],
        ["start", DELETE, DELETE],
        ["start", ("suspend", {"wakeAt": "soon"})],
    ],
)
def test_what_may_not_follow_is_corrupt_with_its_offset(script: list[Any]) -> None:
    with pytest.raises(Corrupt, match=rf"runs/r/journal\.jsonl: offset {len(script) - 1}: "):
        fold(entries(*script), key="runs/r/journal.jsonl")


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (Entry("step", 1, 3, TIME), "offsets are contiguous"),
        (Entry("step", 1, 1, TIME), "offsets are contiguous"),
        (Entry("start", 1, 2, TIME), "sessions only grow"),
        (Entry("step", 0, 2, TIME), "sessions only grow"),
        (Entry("step", 2, 2, TIME), "belong to the latest session"),
        (Entry("start", 2, 3, TIME), "offsets are contiguous"),
    ],
)
def test_offsets_and_sessions(wrong: Entry, rule: str) -> None:
    with pytest.raises(Corrupt, match=f"offset 2: .*{rule}"):
        fold([*entries("start", "step"), wrong])


def test_what_a_run_is_known_by() -> None:
    state = fold(
        entries(
            ("start", {"workflow": "triage", "input": 1, "inputHash": "h1", "writer": "a", "tags": ["x"]}),
            ("start", {"version": "2", "metadata": {"who": "me"}, "writer": "b", "tags": ["y"], "inputHash": "h2"}),
            ("start", {"version": "3", "writer": "c", "detached": True}),
        )
    )
    assert (state.workflow, state.start["input"], state.version) == ("triage", 1, "2")
    assert (dict(state.metadata), state.tags, state.input_hashes) == ({"who": "me"}, ("x",), frozenset(("h1", "h2")))
    assert (state.session, state.writer, state.detached, state.next_offset) == (3, "c", True, 3)


def test_a_fork_may_go_on_with_another_version() -> None:
    source = {"runId": "r", "fromOffset": 1}
    state = fold(entries(("start", {"version": "1"}), ("start", {"source": source, "version": "2"})))
    assert (state.version, state.source) == ("2", source)


def test_waits_failures_and_mail() -> None:
    state = fold(entries("start", SUSPEND))
    assert state.pending is not None
    assert (state.pending.event, state.pending.wake_at_ns, state.wake_at_ns) == ("approval", None, None)
    state = fold(entries("start", SLEEP))
    assert state.wake_at_ns == 1767326400_000_000_000
    state = fold(entries("start", RETRY, "start", RETRY))
    assert (state.failures, state.wake_at_ns, state.outcome is not None) == (2, 1767326400_000_000_000, True)
    state = fold(entries("start", RETRY, "start", "error", REOPEN))
    assert (state.failures, state.retry_at_ns, state.outcome, state.reopened) == (0, None, None, (TIME,))
    state = fold(entries("start", SUSPEND, "start", ("resume", {"mail": "m1", "value": 1})))
    assert (state.pending, state.mails, state.asked, state.answers) == (None, ("m1",), 1, {})
    state = fold(entries("start", SUSPEND, "start", ("resume", {"value": 1}), SUSPEND, ("resume", {"mail": "m1"})))
    assert state.answers["approval"].offset == 3, "mail is no answer that a caller brought"


def test_a_cancellation_keeps_its_place_and_reason() -> None:
    state = fold(entries("start", "step", CANCELLING, "start", CANCELLING))
    assert (state.cancelled_at, state.cancel_reason) == (2, "enough")


def test_tags_may_be_a_table() -> None:
    assert fold(entries(("start", {"tags": {"env": "prod"}}))).tags == ("env=prod",)
    assert fold(entries(("start", {"tags": 7, "metadata": 7}))) == fold(entries(("start", {"tags": 7, "metadata": 7})))


def test_every_status_has_its_row() -> None:
    assert set(TRANSITIONS) == set(RunState.__annotations__["status"].__args__)
