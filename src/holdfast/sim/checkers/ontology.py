"""Commits, snapshots, answers and batches of an ontology, judged by objects alone.

Reads JSON and Parquet with nothing of the code that wrote them: every head that ever was, and what it led to at that
moment; and what a plain reader, who resolves files by the letter of the specification, gets whenever an index or the
head changes.
"""

import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow.parquet as pq

from holdfast.sim.history import Landing, Operation, Violation, answers, left, states


@lru_cache(maxsize=2_000)
def rows_of(body: bytes) -> Sequence[Mapping[str, Any]]:
    """Not to be changed: others get the same. An error of Arrow if it is no such file."""
    return tuple(pq.ParquetFile(io.BytesIO(body)).read(use_threads=False).to_pylist())


HEAD = "meta/head.json"
MONOTONIC = "commit ids count up by one"
UNBROKEN = "the chain is unbroken"
ATOMIC = "a commit is visible whole"
KEPT = "what the chain names stays as it is"
FRESH_DELTA = "a row changes something"

Key = tuple[str, str]
"""Type and key."""


@dataclass(frozen=True)
class Step:
    """One commit, as it became visible."""

    position: int
    commit_id: int
    path: str
    writer: str
    manifest: Mapping[str, Any]
    rows: Mapping[Key, Any]
    """Fields by type and key; None for what was retracted."""


@dataclass
class Course:
    steps: list[Step] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)

    def state(self, commit_id: int) -> dict[Key, Any]:
        """What is current as of a commit."""
        current: dict[Key, Any] = {}
        for step in self.steps:
            if step.commit_id <= commit_id:
                current |= step.rows
        return {key: fields for key, fields in current.items() if fields is not None}


def course(landings: Sequence[Landing]) -> Course:
    """Follow the head, at every moment as a reader of that moment."""
    found = Course()
    for landing, objects in states(landings):
        if landing.key == HEAD and landing.body is not None:
            _follow(found, landing, objects)
    there = left(landings)
    for step in found.steps:
        found.violations += _kept(step, there)
    return found


def changes_only(found: Course, plain: Iterable[str]) -> Iterator[Violation]:
    """Every row of a commit of ours differs from what it replaced: the delta was computed on the state before."""
    current: dict[Key, Any] = {}
    foreign = set(plain)
    for step in found.steps:
        for key, fields in step.rows.items():
            if step.writer not in foreign and current.get(key) == fields:
                yield Violation(FRESH_DELTA, f"commit {step.commit_id} of {step.writer} writes {key} again as it was")
        current |= step.rows


def _follow(found: Course, landing: Landing, objects: Mapping[str, bytes]) -> None:
    head = json.loads(landing.body or b"{}")
    before = found.steps[-1] if found.steps else None
    if head["commit_id"] == 0 and before is None:
        return
    expected = 1 if before is None else before.commit_id + 1
    if head["commit_id"] != expected:
        found.violations.append(Violation(MONOTONIC, f"after {expected - 1} came {head['commit_id']}"))
        return
    try:
        manifest = json.loads(objects[head["manifest_path"]])
        rows = _rows(manifest, objects)
    except (KeyError, ValueError, OSError) as error:
        found.violations.append(Violation(ATOMIC, f"commit {expected} of {landing.process} has no {error}"))
        return
    parent = None if before is None else before.path
    if manifest["parent_manifest_path"] != parent or manifest["commit_id"] != expected:
        found.violations.append(
            Violation(UNBROKEN, f"commit {expected} follows {manifest['parent_manifest_path']}, not {parent}")
        )
    if before is not None and manifest["created_at"] < before.manifest["created_at"] and "format" in manifest:
        found.violations.append(Violation(MONOTONIC, f"the time of commit {expected} lies before that of its parent"))
    found.steps.append(Step(landing.position, expected, head["manifest_path"], manifest["runtime_id"], manifest, rows))


def _rows(manifest: Mapping[str, Any], objects: Mapping[str, bytes]) -> dict[Key, Any]:
    rows: dict[Key, Any] = {}
    for file in manifest["files"]:
        body = objects[file["path"]]
        if hashlib.sha256(body).hexdigest() != file["content_sha256"]:
            raise ValueError(f"the bytes of {file['path']}")
        table = rows_of(body)
        if len(table) != file["row_count"] or any(row["commit_id"] != manifest["commit_id"] for row in table):
            raise ValueError(f"the rows of {file['path']}")
        for row in table:
            fields = None if row.get("_retracted") else json.loads(row["fields_json"])
            rows[file["type_name"], row["entity_key"]] = fields
    return rows


def _kept(step: Step, objects: Mapping[str, bytes]) -> Iterator[Violation]:
    named = [step.path, *(file["path"] for file in step.manifest["files"])]
    for path in named:
        if path not in objects:
            yield Violation(KEPT, f"{path} of commit {step.commit_id} is gone")


NO_LOST_UPDATE = "no update is lost"
TRUE_NO_OP = "nothing to do means that it was so"
SAME_ROWS = "whatever the index says, a reader gets the rows of its commit"
RECENT = "a read that begins after a commit sees it"
ANSWERED = "a commit has the number that its writer was answered"

MARK, COUNTER, FLAG = "Mark", "Counter", "Flag"


def tokens(found: Course) -> Iterator[Hashable]:
    """What the commits on the chain carry, once per commit that carries it."""
    for step in found.steps:
        for (kind, key), fields in step.rows.items():
            if kind == MARK and not key.startswith("plain/"):
                yield key
            elif kind == COUNTER and fields is not None:
                yield fields["by"]


def no_lost_update(found: Course) -> Iterator[Violation]:
    """Every new value of the counter is the one before plus one."""
    value = 0
    for step in found.steps:
        fields = step.rows.get((COUNTER, "n"))
        if fields is not None:
            if fields["is"] != value + 1:
                yield Violation(NO_LOST_UPDATE, f"commit {step.commit_id} counts {fields['is']} after {value}")
            value = fields["is"]


def told_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    steps = {step.commit_id: step for step in found.steps}
    for operation, answer in answers(operations):
        if operation.call in ("commit", "count") and not _carries(steps.get(answer), operation.argument):
            yield Violation(ANSWERED, f"[{operation}] is not in commit {answer}")
        if operation.call == "flag":
            yield from _flag(operation, answer, steps, found)


def read_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    for operation, (commit_id, rows) in answers(operations, "read"):
        truth = {key: fields for (kind, key), fields in found.state(commit_id).items() if kind == operation.key}
        if rows != truth:
            yield Violation(SAME_ROWS, f"[{operation}] at commit {commit_id}, where there is {truth}")
        visible = max((step.commit_id for step in found.steps if step.position < operation.called), default=0)
        if commit_id < visible:
            yield Violation(RECENT, f"[{operation}] saw commit {commit_id}, and {visible} was there before")


def _carries(step: Step | None, token: object) -> bool:
    if step is None:
        return False
    counter = step.rows.get((COUNTER, "n"))
    return (MARK, token) in step.rows or (counter is not None and counter["by"] == token)


def _flag(operation: Operation, answer: int | None, steps: dict[int, Step], found: Course) -> Iterator[Violation]:
    value = {"is": operation.argument[1]}
    if answer is not None:
        if answer not in steps or steps[answer].rows.get((FLAG, "f")) != value:
            yield Violation(ANSWERED, f"[{operation}] is not in commit {answer}")
        return
    began = max((step.commit_id for step in found.steps if step.position < operation.called), default=0)
    ended = max((step.commit_id for step in found.steps if step.position < operation.returned), default=0)
    if not any(found.state(number).get((FLAG, "f")) == value for number in range(began, ended + 1)):
        yield Violation(TRUE_NO_OP, f"[{operation}], and the flag was never so between commits {began} and {ended}")


PLAIN_ROWS = "a plain reader gets every row of history once"

Rows = dict[tuple[int, str], Any]
"""Fields by commit and key; None for what was retracted."""


def plain_reads(landings: Iterable[Landing], found: Course, name: str) -> Iterator[Violation]:
    """The history of one entity type, at every moment at which it could have changed."""
    index_key = f"meta/indices/entities/{name}.json"
    for landing, objects in states(landings):
        if landing.key not in (HEAD, index_key) or HEAD not in objects:
            continue
        head = json.loads(objects[HEAD])
        expected = history(found, name, head["commit_id"])
        try:
            seen = read(objects, index_key, head, name)
        except (KeyError, ValueError, OSError) as error:
            yield Violation(PLAIN_ROWS, f"after {landing.key} of {landing.process} there is no {error}")
            return
        if seen != sorted(expected.items(), key=lambda item: item[0]):
            yield Violation(
                PLAIN_ROWS, f"after {landing.key} of {landing.process} it sees {seen}, where there is {expected}"
            )
            return


def history(found: Course, name: str, commit_id: int) -> Rows:
    return {
        (step.commit_id, key): fields
        for step in found.steps
        if step.commit_id <= commit_id
        for (kind, key), fields in step.rows.items()
        if kind == name
    }


def read(objects: Mapping[str, bytes], index_key: str, head: Mapping[str, Any], name: str) -> list[Any]:
    """All rows up to the head, as the specification's reader finds them; those that it finds twice, twice."""
    rows: list[Any] = []
    for path in sorted(_files(objects, index_key, head, name)):
        for row in rows_of(objects[path]):
            if row["commit_id"] <= head["commit_id"]:
                fields = None if row.get("_retracted") else json.loads(row["fields_json"])
                rows.append(((row["commit_id"], row["entity_key"]), fields))
    return sorted(rows, key=lambda item: item[0])


def _files(objects: Mapping[str, bytes], index_key: str, head: Mapping[str, Any], name: str) -> set[str]:
    index = json.loads(objects.get(index_key, b'{"max_indexed_commit": 0, "entries": []}'))
    at = head["commit_id"]
    touched = _touched(json.loads(objects[head["manifest_path"]]), name) if at else None
    own = [entry for entry in index["entries"] if entry["min_commit_id"] == entry["max_commit_id"] == at]
    stale = touched is not None and (not own or own[0]["path"] != touched)
    selected = {
        entry["path"]
        for entry in index["entries"]
        if entry["min_commit_id"] <= at and not (stale and entry["min_commit_id"] == at)
    }
    covered = min(index["max_indexed_commit"], at - 1 if stale else at)
    path = head["manifest_path"]
    while path is not None:
        manifest = json.loads(objects[path])
        if manifest["commit_id"] <= covered:
            break
        file = _touched(manifest, name)
        selected |= {file} if file is not None else set()
        path = manifest.get("parent_manifest_path")
    return selected


def _touched(manifest: Mapping[str, Any], name: str) -> str | None:
    return next((file["path"] for file in manifest["files"] if file["type_name"] == name), None)


ONCE = "a batch is committed once"
IN_ORDER = "batches are committed in their order"
BATCH_ANSWERED = "answers about a batch are true"

Batch = tuple[str, int]


def batches(found: Course) -> dict[Batch, list[int]]:
    """The commits that say whose batch they are."""
    commits: dict[Batch, list[int]] = defaultdict(list)
    for step in found.steps:
        sink = (step.manifest.get("metadata") or {}).get("sink")
        if sink is not None:
            commits[sink["query"], sink["batch"]].append(step.commit_id)
    return commits


def committed_once(found: Course) -> Iterator[Violation]:
    last: dict[str, int] = {}
    for (query, batch), commits in sorted(batches(found).items(), key=lambda item: item[1]):
        if len(commits) > 1:
            yield Violation(ONCE, f"batch {batch} of {query} is in commits {', '.join(map(str, commits))}")
        if batch <= last.get(query, -1):
            yield Violation(IN_ORDER, f"batch {batch} of {query} came after batch {last[query]}")
        last[query] = batch


def batches_told_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    """A driver that was answered with a commit finds its batch there, or a later one of the same query."""
    commits = {commit: batch for batch, listed in batches(found).items() for commit in listed}
    for operation, number in answers(operations, "load"):
        query, batch = operation.argument
        answer = commits.get(number)
        if number is None:
            continue
        if answer is None or answer[0] != query or answer[1] < batch:
            yield Violation(BATCH_ANSWERED, f"batch {batch} of {query} was answered with commit {number}")
