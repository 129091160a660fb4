"""Journals of runs, judged by their bytes alone: everything that ever stood under a journal's key.

Reads JSON lines, and the segments that a head line refers to, with nothing of the code that wrote them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.sim.checkers.order import gapless, monotone
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Landing

APPEND_ONLY = "a journal only grows"
FENCED_OFF = "no entry of an older session follows a newer start"
READABLE = "a journal can be read"


@dataclass(frozen=True)
class Generation:
    """The lines of one history of a run, as they stood at its end."""

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
    """Everything that stood under a journal's key, one after the other."""

    journals: list[list[bytes]]
    """The lines, at every change."""
    generations: list[Generation]
    violations: list[Violation]


def course(landings: Iterable[Landing], folder: str) -> Course:
    """Read the journal in ``folder`` at every change, as a reader at that moment would have."""
    key = f"{folder}journal.jsonl"
    objects: dict[str, bytes] = {}
    found = Course([], [], [])
    before: list[bytes] = []
    for landing in landings:
        if landing.body is None:
            objects.pop(landing.key, None)
            continue
        objects[landing.key] = landing.body
        if landing.key != key:
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
