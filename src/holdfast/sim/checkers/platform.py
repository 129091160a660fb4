"""Events that commits and steps carry, compared with the manifests and journals that hold them.

Reads what landed, and shares no code with it. Every event of the scenarios has a token in its payload that is used for
one emission; an event of a step has run, step, position, and a mark of the try that emitted it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from holdfast.sim.checkers.runs import journals
from holdfast.sim.history import Landing, Violation, written

PUBLISHED = "an event of a commit is published"
ONCE = "it is published once"
COMMITTED = "no event without its commit"
AFTER = "an event follows its commit"
ONE_COMMIT = "a handler commits once for every event"

HEAD = "meta/head.json"


def chain_of(landings: list[Landing]) -> dict[str, tuple[int, dict[str, Any]]]:
    """The manifests on the chain of the last head, by path, each with where its head landed."""
    bodies = {landing.key: body for landing, body in written(landings, "commits/")}
    heads: dict[str, int] = {}
    path = None
    for landing, body in written(landings, HEAD):
        path = json.loads(body)["manifest_path"]
        heads.setdefault(path, landing.position)
    chain: dict[str, tuple[int, dict[str, Any]]] = {}
    while path is not None:
        manifest = json.loads(bodies[path])
        chain[path] = heads[path], manifest
        path = manifest["parent_manifest_path"]
    return chain


def events_follow_commits(landings: list[Landing], type_name: str, *, complete: bool) -> Iterator[Violation]:
    """Events of this type and outboxes on the chain: one to one, each event after its commit."""
    committed: dict[str, int] = {}
    for position, manifest in chain_of(landings).values():
        for document in manifest.get("outbox", ()):
            committed[document["payload"]["token"]] = position
    published = _published(landings, type_name)
    for token, keys in published.items():
        if token not in committed:
            yield Violation(COMMITTED, f"{token} was published, and is in no commit")
        elif min(keys.values()) < committed[token]:
            yield Violation(AFTER, f"{token} was published at {min(keys.values())}, committed at {committed[token]}")
        if len(keys) > 1:
            yield Violation(ONCE, f"{token}: {sorted(keys)}")
    if complete:
        for token in committed.keys() - published.keys():
            yield Violation(PUBLISHED, f"{token} was committed, and never published")


def one_commit_each(landings: list[Landing]) -> Iterator[Violation]:
    """Of every event and handler, and every commit of that handler, one is on the chain."""
    made = Counter(
        (manifest["metadata"]["event_id"], manifest["metadata"]["handler_id"], manifest["metadata"].get("part"))
        for _, manifest in chain_of(landings).values()
        if "event_id" in manifest["metadata"]
    )
    for which, count in made.items():
        if count > 1:
            yield Violation(ONE_COMMIT, f"{which} was committed {count} times")


def told_of_their_commits(landings: list[Landing], *, complete: bool) -> Iterator[Violation]:
    """Every event whose claim was acked has its commit."""
    made = {manifest["metadata"].get("event_id") for _, manifest in chain_of(landings).values()}
    acked = {
        landing.key.split("/")[2]
        for landing, body in written(landings, "claims/")
        if json.loads(body)["ack_at"] is not None
    }
    if complete:
        for event_id in acked - made:
            yield Violation(ONE_COMMIT, f"{event_id} was acked, and nothing was committed for it")


STEP_PUBLISHED = "an event of a recorded step is published"
STEP_ONCE = "it is published once"
RECORDED = "no event of a step that was not recorded"
AFTER_STEP = "an event follows its step's entry"


def events_follow_steps(landings: list[Landing], type_name: str, *, complete: bool) -> Iterator[Violation]:
    recorded, published = _recorded(landings), _published(landings, type_name)
    places: dict[str, set[str]] = defaultdict(set)
    for token, keys in published.items():
        places[token.rpartition("/")[0]] |= keys.keys()
        if token not in recorded:
            yield Violation(RECORDED, f"{token} was published, and is in no journal")
        elif min(keys.values()) < recorded[token]:
            yield Violation(AFTER_STEP, f"{token} was published at {min(keys.values())}, recorded at {recorded[token]}")
    for place, names in places.items():
        if len(names) > 1:
            yield Violation(STEP_ONCE, f"{place}: {sorted(names)}")
    if complete:
        for token in recorded.keys() - published.keys():
            yield Violation(STEP_PUBLISHED, f"{token} was recorded, and never published")


def _recorded(landings: list[Landing]) -> dict[str, int]:
    """Every token that was ever in a journal, with where it first did."""
    found: dict[str, int] = {}
    for its_course in journals(landings).values():
        for position, entries in its_course:
            for document in (document for entry in entries for document in entry.get("outbox", ())):
                found.setdefault(document["payload"]["token"], position)
    return found


def _published(landings: list[Landing], type_name: str) -> dict[str, dict[str, int]]:
    """By token, the keys of its events, each with where it landed."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for landing, body in written(landings, "events/"):
        event = json.loads(body)
        if event["type"] == type_name:
            found[event["payload"]["token"]].setdefault(landing.key, landing.position)
    return found
