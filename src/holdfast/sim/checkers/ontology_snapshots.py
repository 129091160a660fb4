"""Snapshots of an ontology, judged by objects alone: what a plain reader gets whenever an index or the head changes.

Resolves files by the letter of the specification, and reads Parquet with nothing of the code that wrote it.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.sim.checkers.ontology import HEAD, Course
from holdfast.sim.checkers.parquet import rows_of
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Landing

PLAIN_ROWS = "a plain reader gets every row of history once"

Rows = dict[tuple[int, str], Any]
"""Fields by commit and key; None for what was retracted."""


def plain_reads(landings: Iterable[Landing], found: Course, name: str) -> Iterator[Violation]:
    """The history of one entity type, at every moment at which it could have changed."""
    objects: dict[str, bytes] = {}
    index_key = f"meta/indices/entities/{name}.json"
    for landing in landings:
        if landing.body is None:
            objects.pop(landing.key, None)
        else:
            objects[landing.key] = landing.body
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
