"""Units, their manifests and generations: ids follow from inputs, documents come back, anything else is refused."""

import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists

from holdfast.base.errors import Corrupt, Incompatible, Invalid
from holdfast.objects.store import Object, Version
from holdfast.telemetry.rollup import layout, manifest
from holdfast.telemetry.rollup.manifest import (
    ChunkRef,
    Generation,
    Input,
    Kind,
    Table,
    Unit,
    UnitManifest,
    UnitRef,
    bucket_of,
    ranges_of,
)

HOUR = 496_900
INPUTS = (Input("a" * 64, "1" * 64), Input("b" * 64, "2" * 64))
UNIT = Unit(Kind.ROLLUP, HOUR, 4, 3, INPUTS, "rollup.1 1m")
KEY = layout.rollup_key(60 * 10**9, HOUR, "load", UNIT.chunk_id(Table.ROLLUP))
CHUNK = ChunkRef(Table.ROLLUP, KEY, 60, 900, 7, "load", 60 * 10**9, {"cpu": ("", "0"), "id": None})
SERIES = ChunkRef(Table.SERIES, layout.index_key(HOUR, UNIT.chunk_id(Table.SERIES)), 2, 100, 7)
MADE = UnitManifest(UNIT, (CHUNK, SERIES), 120, 3, 1, ("b" * 64,), {("a", "0"): ((0, 119),)})
GENERATION = Generation(Kind.ROLLUP, HOUR, 7, 4, UNIT.version, (UnitRef.of_manifest(MADE),))
DOCUMENT = json.loads(MADE.encode())


def stored(key: str, body: bytes) -> Object:
    return Object(key, body, 0, Version("v"))


def test_every_fact_of_a_unit_is_part_of_its_id() -> None:
    assert replace(UNIT, inputs=INPUTS[::-1] + INPUTS).id == UNIT.id
    others: list[dict[str, Any]] = [
        {"kind": Kind.DAILY},
        {"hour": HOUR + 1},
        {"buckets": 8},
        {"bucket": 2},
        {"inputs": INPUTS[:1]},
        {"inputs": (INPUTS[0], Input("b" * 64, "3" * 64))},
        {"version": "rollup.2 1m"},
        {"epoch": 6},
        {"closed": (HOUR + 1,)},
    ]
    assert len({UNIT.id, *(replace(UNIT, **each).id for each in others)}) == 1 + len(others)
    chunks = [("m", 60), ("n", 60), ("m", 10), ("m", 60, "histograms")]
    ids = {UNIT.chunk_id(Table.ROLLUP, *each) for each in chunks}  # type: ignore[arg-type]
    assert len(ids | {UNIT.chunk_id(Table.SERIES)}) == 5


def test_twice_as_many_buckets_split_each_one_in_two() -> None:
    agents = [f"agent-{number}" for number in range(50)]
    assert all(bucket_of(agent, 8) % 4 == bucket_of(agent, 4) for agent in agents)
    assert {bucket_of(agent, 8) for agent in agents} == set(range(8))


def test_documents_come_back() -> None:
    closed = GENERATION.close("w", {("a", "0"): ((0, 9), (12, 12))})
    for generation in (GENERATION, closed, replace(closed, expired=("1m",))):
        assert Generation.read(stored(generation.key, generation.encode())) == generation
    assert GENERATION.key.endswith("/rollup-00000007.json")
    assert (closed.is_closed, closed.number, closed.epoch) == (True, 8, 8)
    assert replace(closed, expired=("1m",)).without_expired(closed.units[0]).chunks == (SERIES,)
    assert UnitManifest.read(stored(MADE.key, MADE.encode())) == MADE


def test_a_generation_covers_exactly_what_its_units_were_made_from() -> None:
    assert GENERATION.covers(3, INPUTS[::-1])
    assert GENERATION.covers(2, ())
    for bucket, inputs in ((3, INPUTS[:1]), (3, (*INPUTS, Input("c" * 64, "3" * 64))), (3, ()), (2, INPUTS)):
        assert not GENERATION.covers(bucket, inputs)
    assert not GENERATION.covers(3, INPUTS, [HOUR + 1])


def test_the_current_generation_is_the_one_of_the_highest_number() -> None:
    keys = [
        layout.generation_key(HOUR, "rollup", 9),
        layout.generation_key(HOUR, "rollup", 10),
        layout.generation_key(HOUR, "daily", 11),
        layout.generation_key(HOUR + 1, "rollup", 2),
        layout.unit_key(HOUR, UNIT.id),
        "manifests/v1/date=2026-09-10/hour=12/stranger.txt",
        "manifests/v1/nowhere/rollup-00000099.json",
    ]
    assert manifest.current_generations(keys, Kind.ROLLUP) == {HOUR: keys[1], HOUR + 1: keys[3]}
    assert manifest.current_generations(keys, Kind.DAILY) == {HOUR: keys[2]}


def changed(**fields: Any) -> bytes:
    return json.dumps({**DOCUMENT, **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        changed(unit={}),
        changed(unit={**DOCUMENT["unit"], "buckets": 3}),
        changed(unit={**DOCUMENT["unit"], "bucket": 4}),
        changed(unit={**DOCUMENT["unit"], "inputs": [["a" * 64, "1" * 64], ["a" * 64, "9" * 64]]}),
        changed(unit={**DOCUMENT["unit"], "hour": "yesterday"}),
        changed(unit={**DOCUMENT["unit"], "kind": "other"}),
        changed(chunks=[{}]),
        changed(chunks=[{**DOCUMENT["chunks"][0], "rows": -1}]),
        changed(chunks=[{**DOCUMENT["chunks"][0], "window": "soon"}]),
        changed(records="many"),
    ],
)
def test_a_manifest_that_is_not_as_it_was_written_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt, match=MADE.key):
        UnitManifest.read(stored(MADE.key, body))


def test_documents_under_other_keys_are_refused() -> None:
    with pytest.raises(Corrupt, match="is that of unit"):
        UnitManifest.read(stored(layout.unit_key(HOUR + 1, UNIT.id), MADE.encode()))
    with pytest.raises(Corrupt, match="is that of"):
        Generation.read(stored(layout.generation_key(HOUR, "rollup", 8), GENERATION.encode()))
    with pytest.raises(Incompatible):
        Generation.read(stored(GENERATION.key, MADE.encode()))
    with pytest.raises(Invalid, match="each bucket once"):
        replace(GENERATION, units=GENERATION.units * 2)


@given(lists(integers(0, 30)))
def test_ranges_are_those_of_the_numbers_in_order(numbers: list[int]) -> None:
    found = ranges_of(np.array(numbers, np.int64))
    assert [each for first, last in found for each in range(first, last + 1)] == sorted(set(numbers))
    assert all(first > last + 1 for (_, last), (first, _) in pairwise(found))
