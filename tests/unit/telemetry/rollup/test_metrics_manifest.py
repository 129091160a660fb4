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
    Current,
    Generation,
    Input,
    Kind,
    Table,
    Unit,
    UnitManifest,
    bucket_of,
    ranges_of,
)
from holdfast.telemetry.rollup.matchers import Matcher, label_values, may_match
from holdfast.telemetry.rollup.points import SeriesKey

HOUR = 496_900
INPUTS = (Input("a" * 64, "1" * 64), Input("b" * 64, "2" * 64))
UNIT = Unit(Kind.ROLLUP, HOUR, 4, 3, INPUTS, "rollup.1 1m")
KEY = layout.rollup_key(60 * 10**9, HOUR, "load", UNIT.chunk_id(Table.ROLLUP))
CHUNK = ChunkRef(Table.ROLLUP, KEY, 60, 900, 2, "load", 60 * 10**9)
SERIES = ChunkRef(Table.SERIES, layout.index_key(HOUR, UNIT.chunk_id(Table.SERIES)), 2, 100, 2)
MADE = UnitManifest(UNIT, (CHUNK, SERIES), 120, 3, 1, ("b" * 64,), {("a", "0"): ((0, 119),)})
GENERATION = Generation(Kind.ROLLUP, HOUR, 7, 4, UNIT.version, (Current.of_manifest(MADE),))


def stored(key: str, body: bytes) -> Object:
    return Object(key, body, 0, Version("v"))


def test_a_unit_is_named_by_all_that_it_is() -> None:
    assert replace(UNIT, inputs=INPUTS[::-1]).id == UNIT.id
    assert replace(UNIT, inputs=INPUTS + INPUTS).id == UNIT.id
    others = [
        replace(UNIT, kind=Kind.DAILY),
        replace(UNIT, hour=HOUR + 1),
        replace(UNIT, buckets=8),
        replace(UNIT, bucket=2),
        replace(UNIT, inputs=INPUTS[:1]),
        replace(UNIT, inputs=(INPUTS[0], Input("b" * 64, "3" * 64))),
        replace(UNIT, version="rollup.2 1m"),
    ]
    assert len({UNIT.id, *(other.id for other in others)}) == 8
    ids = {
        UNIT.chunk_id(Table.ROLLUP, "m", 60),
        UNIT.chunk_id(Table.ROLLUP, "n", 60),
        UNIT.chunk_id(Table.ROLLUP, "m", 10),
    }
    assert len(ids | {UNIT.chunk_id(Table.ROLLUP, "m", 60, "histograms"), UNIT.chunk_id(Table.SERIES)}) == 5


def test_twice_as_many_buckets_split_each_one_in_two() -> None:
    for number in range(50):
        agent = f"agent-{number}"
        assert bucket_of(agent, 8) % 4 == bucket_of(agent, 4)
        assert bucket_of(agent, 1) == 0
    assert len({bucket_of(f"agent-{number}", 8) for number in range(50)}) == 8


def test_documents_come_back() -> None:
    assert UnitManifest.read(stored(MADE.key, MADE.encode())) == MADE
    generation = GENERATION
    assert Generation.read(stored(generation.key, generation.encode())) == generation
    assert generation.key.endswith("/rollup-00000007.json")
    closed = generation.close("w", {("a", "0"): ((0, 9), (12, 12))})
    assert Generation.read(stored(closed.key, closed.encode())) == closed
    assert (closed.is_closed, closed.number, closed.epoch, closed.windows) == (True, 8, 8, (60 * 10**9,))
    assert replace(closed, expired=("1m",)).windows == ()


def test_an_hour_that_an_older_version_sealed_is_refused_by_name() -> None:
    generation = GENERATION
    document = json.loads(generation.encode())
    document["schema"] = "holdfast.derived_generation.v1"
    assert Generation.read(stored(generation.key, json.dumps(document).encode())) == generation
    document["units"][0]["sealed"] = True
    with pytest.raises(Incompatible, match="sealed by an older version"):
        Generation.read(stored(generation.key, json.dumps(document).encode()))


def test_a_generation_covers_exactly_what_its_units_were_made_from() -> None:
    assert [GENERATION.covers(3, inputs) for inputs in (INPUTS, INPUTS[::-1])] == [True, True]
    for bucket, inputs in ((3, INPUTS[:1]), (3, (*INPUTS, Input("c" * 64, "3" * 64))), (3, ()), (2, INPUTS)):
        assert not GENERATION.covers(bucket, inputs)
    assert GENERATION.covers(2, ())


def test_a_unit_or_generation_that_cannot_be_is_refused() -> None:
    current = Current.of_manifest(MADE)
    for wrong, says in (
        (lambda: replace(UNIT, buckets=3), "power of two"),
        (lambda: replace(UNIT, bucket=4), "power of two"),
        (lambda: replace(UNIT, inputs=(INPUTS[0], Input("a" * 64, "9" * 64))), "two hashes"),
        (lambda: replace(GENERATION, units=(current, current)), "each bucket once"),
        (lambda: replace(GENERATION, units=(replace(current, bucket=4),)), "each bucket once"),
    ):
        with pytest.raises(Invalid, match=says):
            wrong()


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
    assert manifest.current(keys, Kind.ROLLUP) == {HOUR: keys[1], HOUR + 1: keys[3]}
    assert manifest.current(keys, Kind.DAILY) == {HOUR: keys[2]}
    assert manifest.current([], Kind.DAILY) == {}


def changed(**fields: Any) -> bytes:
    return json.dumps({**MADE.document(), **fields}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        changed(unit_id="f" * 64),
        changed(unit={}),
        changed(unit={**UNIT.document(), "inputs": [["b" * 64, "2" * 64], ["a" * 64, "1" * 64]]}),
        changed(unit={**UNIT.document(), "hour": "yesterday"}),
        changed(unit={**UNIT.document(), "kind": "other"}),
        changed(chunks=[{}]),
        changed(chunks=[{**CHUNK.document(), "rows": -1}]),
        changed(chunks=[{**CHUNK.document(), "window": "soon"}]),
        changed(records="many"),
        changed(unreadable=[7]),
    ],
)
def test_a_manifest_that_is_not_as_it_was_written_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt, match=MADE.key):
        UnitManifest.read(stored(MADE.key, body))


def test_documents_under_other_keys_and_of_other_schemas_are_refused() -> None:
    elsewhere = layout.unit_key(HOUR + 1, UNIT.id)
    with pytest.raises(Corrupt, match="is that of unit"):
        UnitManifest.read(stored(elsewhere, MADE.encode()))
    with pytest.raises(Incompatible, match="derived_unit"):
        UnitManifest.read(stored(MADE.key, changed(schema="holdfast.derived_unit.v9")))
    generation = Generation(Kind.ROLLUP, HOUR, 7, 4, UNIT.version, ())
    with pytest.raises(Corrupt, match="is that of"):
        Generation.read(stored(layout.generation_key(HOUR, "rollup", 8), generation.encode()))
    with pytest.raises(Incompatible):
        Generation.read(stored(generation.key, MADE.encode()))


def test_values_of_labels_say_what_cannot_match() -> None:
    series = [SeriesKey("m", f"web-{n}", (("cpu", str(n % 3)), ("id", f"{n}")), "gauge") for n in range(20)]
    series.append(SeriesKey("m", "db-1", (("disk", "sda"),), "gauge"))
    values = label_values(series)
    assert values is not None
    assert dict(values) == {"agent": None, "cpu": ("", "0", "1", "2"), "disk": ("", "sda"), "id": None}
    answers = {
        "cpu=1": True, "cpu=7": False, "cpu=": True, "cpu!=1": True, "cpu=~[3-9]": False, "cpu!~.*": False,
        "disk=sda": True, "id=x": True, "agent=x": True, "absent=": True, "absent=1": False, "absent!=1": True,
    }  # fmt: skip
    for text, expected in answers.items():
        assert may_match(values, [Matcher.parse(text)]) == expected, text
    assert not may_match(values, [Matcher.parse("cpu=1"), Matcher.parse("cpu=7")])
    wide = [SeriesKey("m", "a", tuple((f"l{n:02d}", "") for n in range(30)), "gauge")]
    assert label_values(wide) is None
    assert may_match(None, [Matcher.parse("cpu=7")])
    [(_, long)] = [
        each for each in label_values([SeriesKey("m", "a", (("x", "y" * 65),), "gauge")]) or () if each[0] == "x"
    ]
    assert long is None
    ref = replace(CHUNK, labels=values)
    assert ChunkRef.of(json.loads(json.dumps(ref.document()))) == ref


@given(lists(integers(0, 30)))
def test_ranges_are_those_of_the_numbers_in_order(numbers: list[int]) -> None:
    found = ranges_of(np.array(numbers, np.int64))
    assert [each for first, last in found for each in range(first, last + 1)] == sorted(set(numbers))
    assert all(first > last + 1 for (_, last), (first, _) in pairwise(found))
