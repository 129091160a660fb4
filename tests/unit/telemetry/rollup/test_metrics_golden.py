"""Derived data of the current version as it was first written. These files are never made anew. Older versions are
refused."""

from hashlib import sha256
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.base.errors import Incompatible
from holdfast.objects.store import Object, Version
from holdfast.telemetry.rollup import chunk, index
from holdfast.telemetry.rollup.manifest import Generation, Table, UnitManifest
from tests.unit.telemetry.rollup.golden_kit import derived

GOLDEN = Path(__file__).parents[3] / "golden" / "derived"
HASHES = {
    "v1-load-1h.parquet": "ee3ae68b64038456",
    "v1-rollup-generation.json": "6d0c991be69a421c",
    "v1-rollup-unit.json": "79c36ead0c32bd60",
    "v1-series.parquet": "7cd2da2f8a936b48",
    "v1-words.parquet": "90e60058372f9a3b",
    "v2-latency-1h.parquet": "5746d95b2c3f69f2",
    "v2-latency-1m.parquet": "728fdbc1412b15e9",
    "v2-load-1h.parquet": "45bad13d08d39563",
    "v2-load-1m.parquet": "253da001bb42d4b0",
    "v2-requests-1h.parquet": "1a8dc3ec6e373adb",
    "v2-requests-1m.parquet": "9f289c609a509b49",
    "v3-rollup-generation.json": "08e6cd0b0730c7a9",
    "v3-rollup-unit.json": "9f2416eb74b2c04b",
}
INDEXES = ["v1-series.parquet", "v1-words.parquet"]
CHUNKS = [name for name in HASHES if name.startswith("v2-")]
HOUR = "manifests/v1/date=2025-11-24/hour=16/"
KEYS = {
    "v1-rollup-unit.json": "unit-a10702790ae5c9a1607289bdfcce4bf7582f5017c9a90fb2db4e5e235a1da324.json",
    "v1-rollup-generation.json": "rollup-00000003.json",
    "v3-rollup-unit.json": "unit-5e4fd5179bdb5189f13bae580621b08d56f6b6fb7055936ceb15b683e304e757.json",
    "v3-rollup-generation.json": "rollup-00000003.json",
}


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def stored(name: str) -> Object:
    return Object(f"{HOUR}{KEYS[name]}", golden(name), 0, Version("v"))


def today(name: str) -> bytes:
    return derived()[name[3:]]


def test_no_golden_file_is_left_out_or_made_anew() -> None:
    assert {path.name: sha256(path.read_bytes()).hexdigest()[:16] for path in GOLDEN.iterdir()} == HASHES


@pytest.mark.parametrize("name", [*INDEXES, *CHUNKS])
def test_tables_have_the_rows_that_the_same_batches_give_today(name: str) -> None:
    """Not the same bytes: another version of Arrow may pack them in another way."""
    if name in INDEXES:
        table = index.decode(Table(name[3:-8]), golden(name), key=name)
    else:
        table = chunk.table_of(chunk.decode(golden(name), key=name))
    assert repr(table.to_pylist()) == repr(pq.read_table(pa.BufferReader(today(name))).to_pylist())


def test_documents_read_as_they_were_written() -> None:
    unit = UnitManifest.read(stored("v3-rollup-unit.json"))
    assert unit.encode() == golden("v3-rollup-unit.json")
    generation = Generation.read(stored("v3-rollup-generation.json"))
    assert (generation.number, generation.listings) == (3, ("e" * 64,))
    assert [each.unit_id for each in generation.units] == [unit.unit.id]
    assert [each.key for each in generation.units[0].chunks] == [each.key for each in unit.chunks]


def test_older_versions_are_refused_with_the_command_that_derives_them_again() -> None:
    for name, read in (("v1-rollup-unit.json", UnitManifest.read), ("v1-rollup-generation.json", Generation.read)):
        with pytest.raises(Incompatible, match="schema 'holdfast") as caught:
            read(stored(name))
        assert caught.value.remedy == (
            f"restore it from a backup; or delete everything below {HOUR}, then run: "
            "holdfast pipeline run derive --since 2025-11-24T16Z --until 2025-11-24T17Z"
        )
    with pytest.raises(Incompatible, match=r"'holdfast.rollup.v1' is not 'holdfast.rollup.v2'"):
        chunk.decode(golden("v1-load-1h.parquet"), key="k")
