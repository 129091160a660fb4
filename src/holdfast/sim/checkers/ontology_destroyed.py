"""Drops, purges and erasures of an ontology, judged by objects alone and by the answers to readers.

Reads JSON and Parquet with nothing of the code that wrote them.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from holdfast.sim.checkers.ontology import RECENT, SAME_ROWS, Course, rows_of
from holdfast.sim.history import Landing, Operation, Violation, answers, left, states

GONE = "what was destroyed is gone from all that a reader is led to"
SILENT = "garbage with destroyed payload is named"
STAYS = "nothing else is destroyed"
FOLLOWED = "changes add up to what is current"
ENSURED = "after a commit, what was ensured is so"

RECORDS = "meta/redactions/"
ERASED = {"_erased": True}

State = dict[str, Any]
"""Fields by key."""


@dataclass(frozen=True)
class Ordered:
    """A commit that orders payload to be destroyed."""

    position: int
    commit_id: int
    record: str
    type_name: str
    key: str | None
    """None for all of the type."""


class StoredRow(NamedTuple):
    commit_id: int
    key: str
    fields: Any


def orders(found: Course) -> list[Ordered]:
    made: list[Ordered] = []
    for step in found.steps:
        redacts = step.manifest.get("redacts")
        if redacts is not None:
            record = f"{RECORDS}{step.path.split('/')[1]}.json"
            key = redacts["key"][0] if redacts["key"] is not None else None
            made.append(Ordered(step.position, step.commit_id, record, redacts["type_name"], key))
    return made


def state(found: Course, name: str, at: int) -> State:
    """What is current of a type as of a commit, in the life that it has then."""
    current: State = {}
    for step in found.steps:
        if step.commit_id > at:
            break
        if step.manifest["metadata"].get("drop", {}).get("type") == f"entity/{name}":
            current = {}
        current |= {key: fields for (kind, key), fields in step.rows.items() if kind == name}
    return {key: fields for key, fields in current.items() if fields is not None}


def after(current: State, name: str, at: int, done: Iterable[Ordered]) -> State:
    """What is left of it when these orders are carried out."""
    left = dict(current)
    for each in done:
        if each.type_name == name and each.commit_id > at:
            left = {} if each.key is None else {key: left[key] for key in left if key != each.key}
    return left


def read_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    """Readers at a head, as of a commit, get its rows, without those that any commit up to that head destroyed.

    The head is one that there was between their begin and their end: so every answer is of one moment.
    """
    ordered = orders(found)
    for operation, (head, at, rows) in answers(operations, "read"):
        done = [each for each in ordered if each.commit_id <= head]
        expected = after(state(found, operation.key, at), operation.key, at, done)
        if rows != expected:
            yield Violation(SAME_ROWS, f"[{operation}], where there is {expected}")
        yield from _of_its_time(operation, found, head)


def followed_truly(operations: Iterable[Operation], found: Course) -> Iterator[Violation]:
    """All changes that a follower has received adds up to what is current at the commit that it came to."""
    for operation, (head, rows) in answers(operations, "follow"):
        if rows != state(found, operation.key, head):
            yield Violation(FOLLOWED, f"[{operation}], where there is {state(found, operation.key, head)}")
        yield from _of_its_time(operation, found, head)


def _of_its_time(operation: Operation, found: Course, head: int) -> Iterator[Violation]:
    first = max((step.commit_id for step in found.steps if step.position < operation.called), default=0)
    last = max((step.commit_id for step in found.steps if step.position < operation.returned), default=0)
    if not first <= head <= last:
        yield Violation(RECENT, f"[{operation}] saw commit {head}, and there were {first} to {last}")


def ensured(operations: Iterable[Operation], found: Course, name: str, row: tuple[str, Any]) -> Iterator[Violation]:
    """A row that every commit ensures is there after each of them, whatever life the type has."""
    key, fields = row
    for operation, at in answers(operations, "commit"):
        if state(found, name, at).get(key) != fields:
            yield Violation(ENSURED, f"[{operation}], and {key} is {state(found, name, at).get(key)}")


# --- objects ---


class Shelf:
    """What there is, and the rows of its files."""

    def __init__(self, landings: Iterable[Landing] = ()) -> None:
        self.objects = left(landings)
        self._rows: dict[bytes, list[StoredRow]] = {}

    def rows(self, key: str) -> list[StoredRow]:
        body = self.objects[key]
        if body not in self._rows:
            self._rows[body] = [
                StoredRow(row["commit_id"], row["entity_key"], json.loads(row["fields_json"])) for row in rows_of(body)
            ]
        return self._rows[body]

    def guilty(self, key: str, each: Ordered, *, last: int) -> bool:
        """Whether a file has what was ordered to be destroyed, up to a commit."""
        if f"/{each.type_name}.parquet" not in key and f"/{each.type_name}-" not in key:
            return False
        return any(
            row.commit_id <= last and each.key in (None, row.key) and row.fields != ERASED for row in self.rows(key)
        )


def is_gone(landings: Iterable[Landing], found: Course) -> Iterator[Violation]:
    """From the record on, whenever an index changes: neither the chain nor an index leads to destroyed payload."""
    shelf, ordered = Shelf(), orders(found)
    done: list[Ordered] = []
    for landing, objects in states(landings):
        shelf.objects = objects
        recorded = [each for each in ordered if each.record == landing.key and each not in done]
        done += recorded
        if not (recorded or (done and landing.key.startswith("meta/indices/"))):
            continue
        for each in done:
            for key in _led_to(shelf.objects, found, landing.position, each.type_name):
                if shelf.guilty(key, each, last=each.commit_id - 1):
                    yield Violation(
                        GONE,
                        f"after {landing.key} of {landing.process}, {key} has what commit {each.commit_id} destroyed",
                    )
                    return


def _led_to(objects: Mapping[str, bytes], found: Course, position: int, name: str) -> set[str]:
    keys = {
        file["path"]
        for step in found.steps
        if step.position <= position
        for file in step.manifest["files"]
        if file["type_name"] == name
    }
    index = json.loads(objects.get(f"meta/indices/entities/{name}.json", b'{"entries": []}'))
    return {key for key in (*keys, *(entry["path"] for entry in index["entries"])) if key in objects}


def nothing_silent(landings: Iterable[Landing], found: Course, named: Collection[str]) -> Iterator[Violation]:
    """At the end: whatever has destroyed payload, of orders that were carried out, is named as garbage."""
    shelf = Shelf(landings)
    chain = {file["path"] for step in found.steps for file in step.manifest["files"]}
    for each in orders(found):
        if each.record not in shelf.objects:
            continue
        for key in [key for key in shelf.objects if key.endswith(".parquet") and key not in named]:
            lost = key.startswith("commits/") and key not in chain
            if shelf.guilty(key, each, last=each.commit_id if lost else each.commit_id - 1):
                yield Violation(SILENT, f"{key} has what commit {each.commit_id} destroyed, and no check reports it")


def rest_stays(landings: Iterable[Landing], found: Course) -> Iterator[Violation]:
    """At the end: every row that no commit ordered to be destroyed is in its file as it was."""
    shelf, ordered = Shelf(landings), orders(found)
    for step in found.steps:
        for file in step.manifest["files"]:
            doomed = [
                each for each in ordered if each.type_name == file["type_name"] and each.commit_id > step.commit_id
            ]
            if file["path"] not in shelf.objects or any(each.key is None for each in doomed):
                continue
            there = {row.key: row.fields for row in shelf.rows(file["path"])}
            for (kind, key), fields in step.rows.items():
                spared = kind == file["type_name"] and key not in {each.key for each in doomed}
                if spared and fields is not None and there.get(key) != fields:
                    yield Violation(STAYS, f"{file['path']}: {key} is {there.get(key)}, and was {fields}")
