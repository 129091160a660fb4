"""Commits of an ontology, judged by objects alone: every head that ever stood, and what it led to at that moment.

Reads JSON and Parquet with nothing of the code that wrote them.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.sim.checkers.parquet import rows_of
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Landing

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


def course(landings: Iterable[Landing]) -> Course:
    """Follow the head, at every moment as a reader of that moment."""
    objects: dict[str, bytes] = {}
    found = Course()
    for landing in landings:
        if landing.body is None:
            objects.pop(landing.key, None)
            continue
        objects[landing.key] = landing.body
        if landing.key == HEAD:
            _follow(found, landing, objects)
    for step in found.steps:
        found.violations += _kept(step, objects)
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
