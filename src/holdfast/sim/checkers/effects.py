"""Steps that have effects outside the store, against the journals that record them.

Reads plain journals, line by line, with nothing of the code that wrote them.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Landing

NEVER_AGAIN = "a recorded step never runs again"
EXECUTED = "what is recorded was executed by the session that recorded it"

_NOTES = ("now", "unique")
"""Recorded without a function that ran."""

ENDS = ("complete", "error", "cancel")


class Execution(NamedTuple):
    """A step's function ran: where in the order of events, in which session, for which step, with what result."""

    position: int
    session: int
    run_id: str
    step: str
    result: str


def entries_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


def journals(landings: Iterable[Landing]) -> dict[str, list[tuple[int, list[dict[str, Any]]]]]:
    """Of every run, all that ever stood in its journal: where in the order of events, and which entries."""
    found: dict[str, list[tuple[int, list[dict[str, Any]]]]] = {}
    for landing in landings:
        match landing.key.split("/"):
            case ["runs", run_id, "journal.jsonl"] if landing.body is not None:
                found.setdefault(run_id, []).append((landing.position, entries_of(landing.body)))
    return found


def effects(
    run_id: str, course: Sequence[tuple[int, list[dict[str, Any]]]], executions: Iterable[Execution]
) -> Iterator[Violation]:
    """A step that is recorded was executed in that session, and is not executed by a session that began later."""
    executed = [execution for execution in executions if execution.run_id == run_id]
    starts: dict[int, int] = {}
    recorded: dict[str, tuple[int, dict[str, Any]]] = {}
    for position, entries in course:
        for entry in entries:
            if entry["type"] == "start":
                starts.setdefault(entry["session"], position)
            elif entry["type"] == "step" and "child" not in entry and entry["name"] not in _NOTES:
                recorded.setdefault(entry["stepId"], (position, entry))
    for step, (position, entry) in recorded.items():
        runs = [execution for execution in executed if execution.step == step]
        if not any((run.session, run.result) == (entry["session"], entry.get("result")) for run in runs):
            yield Violation(EXECUTED, f"{run_id}: {entry} of {runs}")
        for run in runs:
            if position < starts.get(run.session, 0):
                yield Violation(NEVER_AGAIN, f"{run_id}: {step} was recorded at {position}: {run}")
