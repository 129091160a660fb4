"""Judges of events that steps emit, against the journals that hold them. They read what landed, and share no code.

Every event has a token in its payload: run, step, position, and a mark of the try that emitted it.
"""

import json
from collections import defaultdict
from collections.abc import Iterator

from holdfast.sim.checkers.effects import journals
from holdfast.sim.checkers.violation import Violation
from holdfast.sim.history import Landing

PUBLISHED = "an event of a recorded step is published"
ONCE = "it is published once"
RECORDED = "no event of a step that was not recorded"
AFTER = "an event follows its step's entry"


def events_follow_steps(landings: list[Landing], type_name: str, *, complete: bool) -> Iterator[Violation]:
    recorded, published = _recorded(landings), _published(landings, type_name)
    places: dict[str, set[str]] = defaultdict(set)
    for token, keys in published.items():
        places[token.rpartition("/")[0]] |= keys.keys()
        if token not in recorded:
            yield Violation(RECORDED, f"{token} was published, and is in no journal")
        elif min(keys.values()) < recorded[token]:
            yield Violation(AFTER, f"{token} was published at {min(keys.values())}, recorded at {recorded[token]}")
    for place, names in places.items():
        if len(names) > 1:
            yield Violation(ONCE, f"{place}: {sorted(names)}")
    if complete:
        for token in recorded.keys() - published.keys():
            yield Violation(PUBLISHED, f"{token} was recorded, and nobody published it")


def _recorded(landings: list[Landing]) -> dict[str, int]:
    """Every token that ever stood in a journal, with where it first did."""
    found: dict[str, int] = {}
    for its_course in journals(landings).values():
        for position, entries in its_course:
            for document in (document for entry in entries for document in entry.get("outbox", ())):
                found.setdefault(document["payload"]["token"], position)
    return found


def _published(landings: list[Landing], type_name: str) -> dict[str, dict[str, int]]:
    """By token, the keys of its events, each with where it landed."""
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for landing in landings:
        if landing.key.startswith("events/") and landing.body is not None:
            event = json.loads(landing.body)
            if event["type"] == type_name:
                found[event["payload"]["token"]].setdefault(landing.key, landing.position)
    return found
