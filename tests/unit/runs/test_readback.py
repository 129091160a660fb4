"""What a journal says of a session's writes."""

from holdfast.runs.journal.attempt import Attempt, Call, damaged, landed_attempt, superseded
from holdfast.runs.journal.entry import Draft, Entry
from holdfast.runs.journal.state import RunState

TIME = "2026-01-02T03:04:05Z"


def entry(offset: int, name: str, *, session: int = 1, timestamp: str = TIME) -> Entry:
    return Entry("step", session, offset, timestamp, {"stepId": name, "result": 1.5})


def test_a_higher_session_or_another_writer_stops_a_session() -> None:
    mine = RunState(session=2, writer="me")
    assert superseded(mine, 2, "me") is None
    assert superseded(mine._replace(writer="you"), 2, "me") == "session 2 belongs to another writer"
    assert superseded(mine._replace(session=3), 2, "me") == "session 3 has started"


def test_what_was_recorded_must_still_be_there() -> None:
    state = RunState(session=2, next_offset=5)
    assert damaged(state, 2, 5) is None
    assert damaged(state, 2, 4) is None
    assert damaged(state, 2, 6) == "6 entries were recorded, and 5 are left"
    assert damaged(state._replace(session=1), 2, 5) is not None


def test_an_attempt_has_landed_if_all_its_lines_are_in_their_places() -> None:
    first, second = Attempt(entries=[entry(1, "a"), entry(2, "b")]), Attempt(entries=[entry(1, "c")])
    start = Entry("start", 1, 0, TIME)
    assert landed_attempt([start, entry(1, "a"), entry(2, "b"), entry(3, "x")], [first, second]) is first
    assert landed_attempt([start, entry(1, "c"), entry(2, "b")], [first, second]) is second
    assert landed_attempt([start, entry(1, "a"), entry(2, "x")], [first, second]) is None
    assert landed_attempt([start], [first, second]) is None
    assert landed_attempt([start, entry(1, "a", session=2), entry(2, "b")], [first]) is None


def test_a_rewritten_line_is_ours_but_an_equal_one_comes_first() -> None:
    rewritten = Entry("step", 1, 1, TIME, {"stepId": "a", "result": 2})
    mine, twin = Attempt(entries=[entry(1, "a")]), Attempt(entries=[rewritten])
    assert landed_attempt([entry(0, "s"), rewritten], [mine]) is mine
    assert landed_attempt([entry(0, "s"), rewritten], [mine, twin]) is twin


def test_every_caller_gets_its_own_entries() -> None:
    calls = [Call((Draft("step"),)), Call((Draft("step"), Draft("step")))]
    attempt = Attempt(calls=[(calls[0], 1), (calls[1], 2)], entries=[entry(n, str(n)) for n in (1, 2, 3)])
    assert all(call.wanted for call in calls)
    attempt.settle(attempt.entries)
    assert [[each.offset for each in call.entries or []] for call in calls] == [[1], [2, 3]]
    assert not any(call.wanted for call in calls)
