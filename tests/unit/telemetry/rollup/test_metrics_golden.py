"""Derived data of every version that was ever written, as it was written. These files are never made anew."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Incompatible
from holdfast.objects.store import Object, Version
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.manifest import Generation, Table, Unit, UnitManifest
from holdfast.telemetry.rollup.points import HISTOGRAM
from tests.unit.telemetry.rollup.golden_kit import derived

GOLDEN = Path(__file__).parents[3] / "golden" / "derived"
HASHES = {
    "v1-index-generation.json": "67d6dc9bdbade810",
    "v1-index-unit.json": "7a06e48d26354099",
    "v1-latency-1h.parquet": "2ca75fdf54854651",
    "v1-latency-1m.parquet": "219398d90b64bcaa",
    "v1-load-1h.parquet": "ee3ae68b64038456",
    "v1-load-1m.parquet": "6cc0ecef4282dfa1",
    "v1-requests-1h.parquet": "7d4789e05777f1e5",
    "v1-requests-1m.parquet": "faa7b18b1348322e",
    "v1-rollup-generation.json": "6d0c991be69a421c",
    "v1-rollup-unit.json": "79c36ead0c32bd60",
    "v1-series.parquet": "7cd2da2f8a936b48",
    "v1-words.parquet": "90e60058372f9a3b",
}
TABLES = [name for name in HASHES if name.endswith(".parquet")]
DOCUMENTS = ["v1-rollup-unit.json", "v1-rollup-generation.json"]


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def test_no_golden_file_is_left_out_or_made_anew() -> None:
    assert {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in GOLDEN.iterdir()} == HASHES


@pytest.mark.parametrize("name", TABLES)
def test_tables_read_as_they_always_did(name: str) -> None:
    """The rows that the same batches give today; not the bytes, which another version of Arrow may pack otherwise.
    Rollups of version 1 do not tell boots apart, nor how many observations the first histogram had."""
    today = pq.read_table(pa.BufferReader(derived()[name.removeprefix("v1-")])).to_pylist()
    body = golden(name)
    if name in ("v1-series.parquet", "v1-words.parquet"):
        table = index.decode(Table(name[3:-8]), body, key=name)
    else:
        table = chunk.table_of(chunk.decode(body, key=name))
        today = [{**row, "boot": "", "first": None if row["kind"] == HISTOGRAM else row["first"]} for row in today]
    assert repr(table.to_pylist()) == repr(today)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_documents_read_as_they_always_did(name: str) -> None:
    body = golden(name)
    if name.endswith("unit.json"):
        made = derived()[name.removeprefix("v1-")]
        first = UnitManifest.read(Object(_key(name), body, 0, Version("v")))
        key = Unit.of(json.loads(made)["unit"]).key
        today = UnitManifest.read(Object(key, made, 0, Version("v")))
        assert replace(first.unit, version="") == replace(today.unit, version="")
        assert first.records <= today.records  # which counts those of logs too
    else:
        generation = Generation.read(Object(_key(name), body, 0, Version("v")))
        assert (generation.number, generation.listings, len(generation.units)) == (3, ("e" * 64,), 1)


@pytest.mark.parametrize("name", ["v1-index-unit.json", "v1-index-generation.json"])
def test_indexes_that_older_versions_derived_apart_are_refused_by_version(name: str) -> None:
    read = UnitManifest.read if name.endswith("unit.json") else Generation.read
    with pytest.raises(Incompatible, match="an index of an older version"):
        read(Object(_key(name), golden(name), 0, Version("v")))


UNITS = {
    "rollup": "a10702790ae5c9a1607289bdfcce4bf7582f5017c9a90fb2db4e5e235a1da324",
    "index": "e5a6c8143bdae0b5526c22dcd38ad5df0d31164af6452ced6a40c5d1863687f1",
}


def _key(name: str) -> str:
    kind = name.split("-")[1]
    tail = f"unit-{UNITS[kind]}" if name.endswith("unit.json") else f"{kind}-00000003"
    return f"manifests/v1/date=2025-11-24/hour=16/{tail}.json"
