"""Journals of runs, and the effects of their steps, judged by the bytes alone.

Reads JSON lines, and the segments that a head line refers to, with nothing of the code that wrote them.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.sim.checkers.objects import gapless, monotone
from holdfast.sim.history import Landing, Violation, states

APPEND_ONLY = "a journal only grows"
FENCED_OFF = "no entry of an older session follows a newer start"
READABLE = "a journal can be read"


@dataclass(frozen=True)
class Generation:
    """The lines of one history of a run, as they were at its end."""

    number: int
    lines: list[bytes]

    @property
    def entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]


def expand(body: bytes, folder: str, objects: Mapping[str, bytes]) -> list[bytes]:
    """All lines of a journal; ``objects`` holds the segments under ``folder``."""
    lines = body.splitlines()
    head = json.loads(lines[0])
    if head.get("type") != "segments":
        return lines
    sealed: list[bytes] = []
    for level, first, _, _, attempt, _ in head["refs"]:
        sealed += objects[f"{folder}segments/{level}-{first:010d}-{attempt}.jsonl"].splitlines()
    return sealed + lines[1:]


@dataclass
class Course:
    """Every body of a journal, one after the other."""

    journals: list[list[bytes]]
    """The lines, at every change."""
    generations: list[Generation]
    violations: list[Violation]


def course(landings: Iterable[Landing], folder: str) -> Course:
    """Read the journal in ``folder`` at every change, as a reader at that moment would have."""
    key = f"{folder}journal.jsonl"
    found = Course([], [], [])
    before: list[bytes] = []
    for landing, objects in states(landings):
        if landing.key != key or landing.body is None:
            continue
        try:
            lines = expand(landing.body, folder, objects)
            first = json.loads(lines[0])
            fresh = not before or _continues(first, before, folder, objects)
        except (KeyError, ValueError, IndexError) as error:
            found.violations.append(Violation(READABLE, f"what {landing.process} wrote cannot be read: {error!r}"))
            continue
        if before and lines[: len(before)] == before:
            found.generations.pop()
        elif not fresh:
            found.violations.append(Violation(APPEND_ONLY, _difference(before, lines)))
        found.generations.append(Generation(int(first.get("generation", 0)), lines))
        found.journals.append(lines)
        before = lines
    return found


def well_formed(histories: Sequence[Generation]) -> Iterator[Violation]:
    """Offsets and sessions, over all generations of a run."""
    starts: list[int] = []
    for history in histories:
        yield from gapless("the offset", (entry["offset"] for entry in history.entries), first=0)
        for entry in history.entries:
            if entry["type"] == "start":
                starts.append(entry["session"])
            elif starts and entry["session"] != starts[-1]:
                yield Violation(
                    FENCED_OFF, f"{entry['type']} of session {entry['session']} after the start of {starts[-1]}"
                )
    yield from monotone("the session", starts, strictly=True)


def _continues(first: Mapping[str, Any], before: Sequence[bytes], folder: str, objects: Mapping[str, bytes]) -> bool:
    """Whether a fresh history keeps the one before it in the archive that it names."""
    previous = first.get("previous")
    return isinstance(previous, dict) and expand(objects[previous["key"]], folder, objects) == before


def _difference(before: Sequence[bytes], after: Sequence[bytes]) -> str:
    pairs = enumerate(zip(before, after, strict=False))
    place = next((number for number, (old, new) in pairs if old != new), len(after))
    new = after[place].decode()[:200] if place < len(after) else "nothing"
    return f"line {place} was {before[place].decode()[:200]}, and became {new}"


RECORDED_ONCE = "a step is recorded once"
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
    """Of every run, all that was ever in its journal: where in the order of events, and which entries."""
    found: dict[str, list[tuple[int, list[dict[str, Any]]]]] = {}
    for landing in landings:
        match landing.key.split("/"):
            case ["runs", run_id, "journal.jsonl"] if landing.body is not None:
                found.setdefault(run_id, []).append((landing.position, entries_of(landing.body)))
    return found


def executed_as_recorded(landings: Sequence[Landing], executions: Sequence[Execution]) -> Iterator[Violation]:
    """Every journal only grows and is well formed, and its steps are what was executed."""
    for run_id, its_course in journals(landings).items():
        grown = course(landings, f"runs/{run_id}/")
        yield from grown.violations
        yield from well_formed(grown.generations)
        yield from effects(run_id, its_course, executions)


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
    steps = Counter(entry["stepId"] for entry in course[-1][1] if entry["type"] == "step")
    for step, count in steps.items():
        if count > 1:
            yield Violation(RECORDED_ONCE, f"{run_id}: {step} is recorded {count} times")
    for step, (position, entry) in recorded.items():
        runs = [execution for execution in executed if execution.step == step]
        result = entry["error"]["message"] if "error" in entry else entry.get("result")
        if not any((run.session, run.result) == (entry["session"], result) for run in runs):
            yield Violation(EXECUTED, f"{run_id}: {entry} of {runs}")
        for run in runs:
            if position < starts.get(run.session, 0):
                yield Violation(NEVER_AGAIN, f"{run_id}: {step} was recorded at {position}: {run}")
