"""A witness of runs: reads the objects and the notes of what steps did, and says what must not have happened.

It knows the format of journals and segments from the design alone, and uses none of the code that writes them.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Get = Callable[[str], bytes]
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Deed:
    """One execution of a step, as the process that did it wrote it down."""

    label: str
    key: str
    pid: int
    session: int
    got: str | None
    """What the step before it had returned."""
    gave: str


def read_deeds(notes: Path) -> list[Deed]:
    return [Deed(**json.loads(line)) for line in notes.read_text().splitlines()]


def read_entries(get: Get, run_id: str) -> list[dict[str, Any]]:
    """Every entry of a run, from its first segment to its last line."""
    lines = get(f"runs/{run_id}/journal.jsonl").splitlines()
    head = json.loads(lines[0])
    if head["type"] != "segments":
        return [json.loads(line) for line in lines]
    sealed: list[bytes] = []
    for level, first, count, size, attempt, sha256 in head["refs"]:
        body = get(f"runs/{run_id}/segments/{level}-{first:010d}-{attempt}.jsonl")
        assert (len(body), hashlib.sha256(body).hexdigest(), len(sealed)) == (size, sha256, first)
        sealed += body.splitlines()
        assert len(sealed) == first + count
    return [json.loads(line) for line in [*sealed, *lines[1:]]]


def read_result(get: Get, entry: Entry) -> Any:
    """What an entry says was returned, wherever it lies."""
    reference = entry.get("payload")
    if reference is None:
        return entry.get("result")
    body = get(reference["key"])
    assert (len(body), hashlib.sha256(body).hexdigest()) == (reference["bytes"], reference["sha256"])
    return json.loads(body)["value"]


def faults(run_id: str, entries: Sequence[Entry], deeds: Sequence[Deed], gave: Mapping[str, str]) -> list[str]:
    """What is wrong with a finished run. ``gave`` is, by step id, what the journal has as the step's result."""
    return [
        *_faults_of_the_journal(entries),
        *_faults_of_keys(run_id, entries, deeds),
        *_faults_of_executions(run_id, entries, deeds),
        *_faults_of_values(run_id, entries, deeds, gave),
    ]


def _faults_of_the_journal(entries: Sequence[Entry]) -> Iterator[str]:
    if [entry["offset"] for entry in entries] != list(range(len(entries))):
        yield "offsets do not count up from 0"
    session = 0
    for entry in entries:
        if entry["type"] == "start":
            if entry["session"] <= session:
                yield f"session {entry['session']} started after session {session}"
            session = entry["session"]
        elif entry["session"] != session:
            yield f"session {entry['session']} wrote offset {entry['offset']} after session {session} had started"
    for step, times in Counter(entry["stepId"] for entry in entries if entry["type"] == "step").items():
        if times > 1:
            yield f"step {step} was recorded {times} times"
    for wait, times in Counter(entry["event"] for entry in entries if entry["type"] == "resume").items():
        if times > 1:
            yield f"the wait for {wait} was answered {times} times"
    if [entry["offset"] for entry in entries if entry["type"] == "complete"] != [len(entries) - 1]:
        yield "the run was not completed once, at its end"


def _faults_of_keys(run_id: str, entries: Sequence[Entry], deeds: Sequence[Deed]) -> Iterator[str]:
    keys: dict[str, set[str]] = defaultdict(set)
    for deed in deeds:
        keys[deed.label].add(deed.key)
    for label, its_keys in keys.items():
        if len(its_keys) > 1:
            yield f"{label} had the keys {sorted(its_keys)}"
    if len({deed.key for deed in deeds}) != len(keys):
        yield "two steps had one key"
    recorded = {f"{run_id}/{entry['stepId']}" for entry in entries if entry["type"] == "step"}
    if recorded != {deed.key for deed in deeds}:
        yield "what was recorded is not what was done"


def _faults_of_executions(run_id: str, entries: Sequence[Entry], deeds: Sequence[Deed]) -> Iterator[str]:
    starts = {entry["session"]: entry["offset"] for entry in entries if entry["type"] == "start"}
    recorded = {f"{run_id}/{entry['stepId']}": entry["offset"] for entry in entries if entry["type"] == "step"}
    processes: dict[int, set[int]] = defaultdict(set)
    for deed in deeds:
        processes[deed.session].add(deed.pid)
        if deed.session not in starts:
            yield f"{deed.label} was done by session {deed.session}, which never started"
        elif starts[deed.session] > recorded.get(deed.key, len(entries)):
            yield f"{deed.label} was done again by session {deed.session}, which started after it was recorded"
    for session, pids in processes.items():
        if len(pids) > 1:
            yield f"processes {sorted(pids)} both were session {session}"
    for (session, key), times in Counter((deed.session, deed.key) for deed in deeds).items():
        if times > 1:
            yield f"session {session} did {key} {times} times"


def _faults_of_values(
    run_id: str, entries: Sequence[Entry], deeds: Sequence[Deed], gave: Mapping[str, str]
) -> Iterator[str]:
    made = {(deed.key, deed.session): deed.gave for deed in deeds}
    for entry in entries:
        if entry["type"] == "step" and made.get((f"{run_id}/{entry['stepId']}", entry["session"])) != gave.get(
            entry["stepId"]
        ):
            yield f"step {entry['stepId']} was recorded with a result that session {entry['session']} never had"
    returned = {*gave.values(), None}
    for deed in deeds:
        if deed.got not in returned:
            yield f"{deed.label} in session {deed.session} was given a result that was never recorded"
