"""Derived data, judged by objects alone: generations of an hour, what they name, and what it counts.

Reads documents as JSON and chunks as Parquet, with nothing of the code that wrote them.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow.parquet as pq

from holdfast.sim.history import Landing, Violation

ONCE = "what is derived is created once and never changed"
GROWING = "generations of an hour follow each other, and their inputs only grow"
WHOLE = "whatever a generation names is there before it"
COUNTED = "in the end every record of an accepted batch counts once in its hour"

_GENERATION = re.compile(r"manifests/v1/(date=\S+?/hour=\d\d)/rollup-(\d{8})\.json")
_DERIVED = ("rollup/v1/", "manifests/v1/", "batches-by-hour/v1/")

Objects = Mapping[str, bytes]


def generations(landings: Iterable[Landing]) -> Iterator[Violation]:
    """Every generation at the moment at which it became visible."""
    objects: dict[str, bytes] = {}
    latest: dict[str, tuple[int, frozenset[str]]] = {}
    for landing in landings:
        if landing.body is None:
            objects.pop(landing.key, None)
            continue
        before = objects.get(landing.key)
        if before is not None and before != landing.body and landing.key.startswith(_DERIVED):
            yield Violation(ONCE, f"{landing.process} changed {landing.key}")
            return
        objects[landing.key] = landing.body
        found = _GENERATION.fullmatch(landing.key)
        if found is None or before is not None:
            continue
        try:
            inputs = frozenset(inputs_of(objects, json.loads(landing.body), found[1]))
        except KeyError as missing:
            yield Violation(WHOLE, f"{landing.key} of {landing.process} names {missing}, which is not there")
            return
        number, earlier = latest.get(found[1], (0, frozenset()))
        if int(found[2]) != number + 1 or not earlier <= inputs:
            lost = sorted(earlier - inputs)
            yield Violation(GROWING, f"{landing.key} of {landing.process} follows {number} and lacks {lost}")
            return
        latest[found[1]] = (number + 1, inputs)


def counted(objects: Objects, expected: Mapping[str, Mapping[tuple[str, int], float]]) -> Iterator[Violation]:
    """The rows that the last generation of each hour names, against the records that there are, by hour."""
    current: dict[str, str] = {}
    for key in sorted(objects):
        found = _GENERATION.fullmatch(key)
        if found is not None:
            current[found[1]] = key
    for hour, records in expected.items():
        try:
            count, total = rolled(objects, json.loads(objects[current[hour]])) if hour in current else (0, 0.0)
        except KeyError as missing:
            yield Violation(WHOLE, f"{current[hour]} names {missing}, which is not there in the end")
            return
        if (count, total) != (len(records), sum(records.values())):
            yield Violation(
                COUNTED, f"{hour}: {count} values that add up to {total}, of {len(records)}: {sorted(records)}"
            )


def listed_ids(objects: Objects) -> set[str]:
    """The manifests of all batches that any hour lists."""
    found: set[str] = set()
    for key, body in objects.items():
        if key.startswith("batches-by-hour/v1/"):
            found.update(pq.read_table(io.BytesIO(body), columns=["manifest_id"]).column("manifest_id").to_pylist())
    return found


def inputs_of(objects: Objects, generation: dict[str, Any], hour: str) -> Iterator[str]:
    for unit in generation["units"]:
        manifest = json.loads(objects[f"manifests/v1/{hour}/unit-{unit['unit_id']}.json"])
        for chunk in unit["chunks"]:
            objects[chunk["key"]]
        for ident, _ in manifest["unit"]["inputs"]:
            yield ident


def rolled(objects: Objects, generation: dict[str, Any]) -> tuple[int, float]:
    count, total = 0, 0.0
    for unit in generation["units"]:
        for chunk in (each for each in unit["chunks"] if each["table"] == "rollup"):
            table = pq.read_table(io.BytesIO(objects[chunk["key"]]), columns=["count", "sum"])
            count += sum(table.column("count").to_pylist())
            total += sum(table.column("sum").to_pylist())
    return count, total
