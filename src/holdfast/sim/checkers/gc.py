"""Garbage collection, judged by objects alone: what was deleted, what named it then, and what is recorded.

Reads documents as JSON, with nothing of the code that it judges.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.sim.checkers.pipeline import inputs_of, rolled
from holdfast.sim.history import Landing, Violation, states

RECORDED = "nothing is deleted that was not recorded before"
CURRENT = "whatever the current generation of an hour names is there, at every moment"
KEPT = "inputs of an hour only grow from one current generation to the next"
TOTAL = "in the end every record of an accepted batch counts once, in one hour or another"
CHAINED = "whatever the chain of the head, or an index, names is there, at every moment"
OWNED = "whatever a run that is not deleted refers to is there, at every moment"
LET_GO = "the bytes of an accepted batch are deleted only after their expiry was recorded"
CLOSED = "the bytes of an accepted batch are deleted only once every hour of its records is closed and counts it"
SCANNED = "a closed hour counts every batch that was accepted before the last one that it counts"
FINAL = "what a closed hour counts never changes"

_GENERATION = re.compile(r"manifests/v1/(date=\S+?/hour=\d\d)/(rollup)-(\d{8})\.json")
_WATCHED = ("raw-blobs/v1/", "rollup/v1/", "index/v1/", "manifests/v1/")
_RECORDED = (*_WATCHED, "commits/", "snapshots/", "runs/")

Objects = dict[str, bytes]


def recorded(landings: Iterable[Landing]) -> Iterator[Violation]:
    """Every deletion of what others may read."""
    named: set[str] = set()
    for landing in landings:
        if landing.body is not None:
            if landing.key.endswith(".intent.json"):
                named |= {str(each[0]) for each in json.loads(landing.body)["objects"]}
        elif landing.key.startswith(_RECORDED) and landing.key not in named:
            yield Violation(RECORDED, f"{landing.process} deleted {landing.key}")
            return


def whole(landings: Iterable[Landing]) -> Iterator[Violation]:
    """The current generation of every hour and kind, at every moment."""
    numbers: dict[tuple[str, str], int] = {}
    inputs: dict[tuple[str, str], frozenset[str]] = {}
    for landing, objects in states(landings):
        found = _GENERATION.fullmatch(landing.key)
        place = (found[1], found[2]) if found is not None else None
        if (
            found is not None
            and place is not None
            and landing.body is not None
            and int(found[3]) > numbers.get(place, 0)
        ):
            numbers[place] = int(found[3])
            try:
                now = frozenset(inputs_of(objects, json.loads(landing.body), found[1]))
            except KeyError as missing:
                yield Violation(CURRENT, f"{landing.key} of {landing.process} names {missing}")
                return
            if lost := inputs.get(place, frozenset()) - now:
                yield Violation(KEPT, f"{landing.key} of {landing.process} lacks {sorted(lost)}")
                return
            inputs[place] = now
        elif landing.body is None and landing.key.startswith(_WATCHED):
            yield from _harmed(objects, numbers, landing)


def _harmed(objects: Objects, numbers: Mapping[tuple[str, str], int], landing: Landing) -> Iterator[Violation]:
    """Whether a deletion took anything away from what is current."""
    for (hour, kind), number in numbers.items():
        key = f"manifests/v1/{hour}/{kind}-{number:08d}.json"
        if hour not in landing.key and landing.key.startswith(("manifests/", "rollup/", "index/")):
            continue
        try:
            list(inputs_of(objects, json.loads(objects[key]), hour))
        except KeyError as missing:
            yield Violation(CURRENT, f"{landing.process} deleted {landing.key}; {key} names {missing}")
            return


@dataclass(frozen=True, slots=True)
class Known:
    """An accepted batch, as the scenario knows it."""

    key: str
    """Of its manifest."""
    hours: frozenset[str]
    """In which it has records, as they are in keys."""


def closed(landings: Iterable[Landing], batches: Mapping[str, Known]) -> Iterator[Violation]:
    """Every closing of an hour, every generation after it, and every deletion of bytes. Batches are by manifest id."""
    accepted: dict[str, int] = {}
    blobs: dict[str, list[str]] = defaultdict(list)
    ended: dict[str, tuple[frozenset[str], list[str]]] = {}
    numbers: dict[str, int] = defaultdict(int)
    by_key = {known.key: ident for ident, known in batches.items()}
    for place, (landing, objects) in enumerate(states(landings)):
        if landing.key in by_key and landing.body is not None and landing.key not in accepted:
            accepted[landing.key] = place
            blobs[json.loads(landing.body)["raw_blob_key"]].append(by_key[landing.key])
        found = _GENERATION.fullmatch(landing.key)
        # A delayed create of a number that was superseded and removed changes nothing: the highest number counts.
        if found is not None and landing.body is not None and int(found[3]) > numbers[found[1]]:
            numbers[found[1]] = int(found[3])
            yield from _ended(objects, landing, found[1], ended, accepted, batches)
        if landing.body is None and landing.key in blobs:
            for ident in blobs[landing.key]:
                for hour in batches[ident].hours:
                    if hour not in ended or ident not in ended[hour][0]:
                        yield Violation(CLOSED, f"{landing.process} deleted {landing.key}, with records in {hour}")
                        return


def _ended(
    objects: Objects,
    landing: Landing,
    hour: str,
    ended: dict[str, tuple[frozenset[str], list[str]]],
    accepted: Mapping[str, int],
    batches: Mapping[str, Known],
) -> Iterator[Violation]:
    document = json.loads(landing.body or b"")
    units = [unit["unit_id"] for unit in document["units"]]
    if hour in ended:
        if "counted" not in document or units != ended[hour][1]:
            yield Violation(FINAL, f"{landing.key} of {landing.process} follows the end of its hour")
        return
    if "counted" not in document:
        return
    inputs = frozenset(inputs_of(objects, document, hour))
    ended[hour] = (inputs, units)
    last = max((accepted[batches[ident].key] for ident in inputs), default=-1)
    for ident, known in batches.items():
        if hour in known.hours and ident not in inputs and accepted.get(known.key, last) < last:
            yield Violation(SCANNED, f"{landing.key} of {landing.process} does not count {known.key}")


def late(objects: Mapping[str, bytes]) -> dict[str, frozenset[str]]:
    """Of each closed hour, the batches that it counts."""
    found: dict[str, frozenset[str]] = {}
    for key in sorted(objects):
        named = _GENERATION.fullmatch(key)
        if named is not None and "counted" in (document := json.loads(objects[key])):
            found[named[1]] = frozenset(inputs_of(dict(objects), document, named[1]))
    return found


def let_go(landings: Iterable[Landing]) -> Iterator[Violation]:
    """Deleted blobs of accepted batches."""
    names: dict[str, str] = {}
    for landing, objects in states(landings):
        if landing.body is None:
            key = names.get(landing.key)
            if key is not None and key.replace("accepted/", "expired/", 1) not in objects:
                yield Violation(LET_GO, f"{landing.process} deleted {landing.key}, which {key} names")
                return
        elif landing.key.startswith("accepted/v1/"):
            names[json.loads(landing.body)["raw_blob_key"]] = landing.key


def counted_once(objects: Mapping[str, bytes], expected: Sequence[float]) -> Iterator[Violation]:
    """The rows of all hours together against all records that there are."""
    current: dict[str, str] = {}
    for key in sorted(objects):
        found = _GENERATION.fullmatch(key)
        if found is not None and found[2] == "rollup":
            current[found[1]] = key
    count, total = 0, 0.0
    for key in current.values():
        try:
            own = rolled(objects, json.loads(objects[key]))
        except KeyError as missing:
            yield Violation(CURRENT, f"{key} names {missing}, which is not there in the end")
            return
        count, total = count + own[0], total + own[1]
    if (count, total) != (len(expected), sum(expected)):
        yield Violation(TOTAL, f"{count} values that add up to {total}, of {len(expected)} that do to {sum(expected)}")


def ontology_named(landings: Iterable[Landing]) -> Iterator[Violation]:
    """Manifests, data files and snapshots, whenever one of them goes and whenever an index or the head names others."""
    for landing, objects in states(landings):
        gone = landing.body is None
        if landing.key == "meta/head.json" or (gone and landing.key.startswith("commits/")):
            named = _of_chain(objects)
        elif landing.key.startswith(("meta/indices/", "snapshots/")):
            named = _of_indices(objects)
        else:
            continue
        missing = next((key for key in named if key not in objects), None)
        if missing is not None:
            done = "deleted" if gone else "wrote"
            yield Violation(CHAINED, f"{landing.process} {done} {landing.key}; {missing} is named, and is not there")
            return


def _of_chain(objects: Objects) -> Iterator[str]:
    path = json.loads(objects.get("meta/head.json", b"{}")).get("manifest_path")
    while path is not None:
        yield path
        manifest = json.loads(objects[path])
        yield from (file["path"] for file in manifest["files"])
        path = manifest["parent_manifest_path"]


def _of_indices(objects: Objects) -> Iterator[str]:
    for key, body in list(objects.items()):
        if key.startswith("meta/indices/"):
            yield from (entry["path"] for entry in json.loads(body)["entries"])


def runs_named(landings: Iterable[Landing]) -> Iterator[Violation]:
    """Payloads, whenever one of them goes and whenever a journal refers to others."""
    for landing, objects in states(landings):
        gone = landing.body is None
        journals = [key for key in objects if key.startswith("runs/") and key.endswith("/journal.jsonl")]
        for journal in journals if gone else [landing.key] if landing.key in journals else []:
            lines = [json.loads(line) for line in objects[journal].splitlines()]
            if lines[-1].get("deleted"):
                continue
            named = [line["payload"]["key"] for line in lines if line.get("payload")]
            if missing := [key for key in named if key not in objects]:
                done = "deleted" if gone else "wrote"
                detail = f"{landing.process} {done} {landing.key}; {journal} refers to {missing[0]}"
                yield Violation(OWNED, detail)
                return
