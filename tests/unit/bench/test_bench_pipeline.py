"""The pipeline benchmark: its frames and its ideal Parquet hold the same samples, and all sides count the same."""

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from bench.pipeline import place
from bench.pipeline.__main__ import rolled, run, slope
from bench.pipeline.fleet import FRAME_SCRAPES, HOUR, HOUR_NS, SCRAPES, SERIES, Fleet
from bench.pipeline.memory import watched
from bench.pipeline.peers import duckdb_seconds
from holdfast.ingest.frame import decode
from holdfast.objects.open import open_store
from holdfast.pipeline.engine import Inline

HOSTS = 2


def test_frames_are_valid_and_each_number_is_there_once() -> None:
    frames = list(Fleet(HOSTS).frames())
    assert len(frames) == HOSTS * SCRAPES // FRAME_SCRAPES
    batches = [decode(frame) for _, frame in frames]
    assert [batch.identity for batch in batches] == [identity for identity, _ in frames]
    numbers = {(batch.identity.agent_id, int(seq)) for batch in batches for seq in batch.samples.seq}
    assert len(numbers) == sum(map(len, batches)) == Fleet(HOSTS).samples == HOSTS * SERIES * SCRAPES
    assert all((batch.samples.time_ns // HOUR_NS == HOUR).all() for batch in batches)


def test_sizes_are_at_least_what_was_asked_for() -> None:
    assert Fleet.of(1_000_000).samples >= 1_000_000
    assert len(list(Fleet.of_batches(500).frames())) == 720


async def test_all_sides_count_the_same(tmp_path: Path) -> None:
    fleet, ideal, out = Fleet(HOSTS), tmp_path / "ideal.parquet", tmp_path / "rows.parquet"
    fleet.write_ideal(ideal)
    assert duckdb_seconds(ideal, out) > 0
    store_folder = tmp_path / "store"
    assert await place.fill(store_folder, fleet) == 6
    async with open_store(f"file:{store_folder}") as store:
        engine = Inline(store)
        _, found = await run(engine, store_folder, "reconcile", full=True)
        assert found.summary["batches"] == 6
        for _ in range(2):  # rollups are forgotten and made again
            assert await rolled(engine, store_folder, fleet) > 0
    chunks = [pq.read_table(path) for path in store_folder.glob("rollup/v1/window=1m/**/*.zst")]
    assert sum(part.num_rows for part in chunks) == HOSTS * SERIES * 60
    theirs = duckdb.sql(
        f"SELECT count(*), sum(column2) FROM (SELECT * FROM '{out}') t(s, m, column2, a, b, c)"
    ).fetchone()
    assert theirs == (HOSTS * SERIES * 60, fleet.samples)
    ours = sum(sum(part.column("count").to_pylist()) for part in chunks)
    assert ours == fleet.samples
    least, greatest = duckdb.sql(f"SELECT min(value), max(value) FROM '{ideal}'").fetchone() or (0, 0)
    assert min(min(part.column("min").to_pylist()) for part in chunks) == least
    assert max(max(part.column("max").to_pylist()) for part in chunks) == greatest


async def test_a_count_that_is_wrong_is_an_error(tmp_path: Path) -> None:
    await place.fill(tmp_path, Fleet(1))
    async with open_store(f"file:{tmp_path}") as store:
        engine = Inline(store)
        await run(engine, tmp_path, "reconcile", full=True)
        with pytest.raises(RuntimeError, match="65520 samples were sent, 32760 counted"):
            await rolled(engine, tmp_path, Fleet(2))


def test_the_slope_of_a_power_is_its_exponent() -> None:
    assert slope([1, 10, 100], [3.0, 30.0, 300.0]) == 1.0
    assert slope([10, 1000], [1.0, 10.0]) == 0.5


def test_memory_is_seen() -> None:
    with watched() as peak:
        ballast = bytearray(1 << 20)
    assert peak.mib()["driver"] > 10
    assert len(ballast) == 1 << 20
