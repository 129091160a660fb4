"""The benchmarks run, and compare like with like."""

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

import holdfast
from bench import lib
from bench.lib import Contender, Sample, compare
from bench.objects.server import s3_server
from bench.ontology_write.contenders import Customer
from bench.ontology_write.places import Bucket
from bench.pipeline import place
from bench.pipeline.__main__ import rolled, run
from bench.pipeline.fleet import SCRAPES, SERIES, Fleet
from bench.pipeline.peers import duckdb_seconds
from holdfast.pipeline.engine import Inline
from tests.tidy.tree import ROOT, leaks


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("bus", "file"),
        ("frames", None),
        ("ingest", "file"),
        ("objects", "memory"),
        ("ontology_read", "file"),
        ("ontology_write", "file"),
        ("runs", "memory"),
    ],
)
def test_a_benchmark_runs_and_writes_its_results(tmp_path: Path, name: str, store: str | None) -> None:
    out = tmp_path / "results.json"
    command = [sys.executable, "-m", f"bench.{name}", "--quick", "--out", str(out)]
    command += ["--store", store] if store else []
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = out.read_text(encoding="utf-8")
    assert json.loads(text)
    assert not leaks(text)


async def test_pairs_take_turns_and_the_first_pair_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[tuple[str, int]] = []
    seconds = {"ours": [9, 2, 2, 1], "other": [9, 1, 3, 2]}

    async def fake_sample(contender: Contender, number: int) -> Sample:
        await contender.run(number)
        name = order[-1][0]
        return Sample(operations=6, seconds=seconds[name][number], cpu_seconds=0.6, requests=12)

    def contender(name: str) -> Contender:
        async def run(number: int) -> int:
            order.append((name, number))
            return 6

        return Contender(run)

    monkeypatch.setattr(lib, "sample", fake_sample)
    found = await compare(contender("ours"), contender("other"), pairs=3)
    assert [name for name, _ in order] == ["other", "ours", "ours", "other", "other", "ours", "ours", "other"]
    assert [number for _, number in order] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (found.ratio, found.spread) == (1.5, (0.5, 2.0))
    assert found.requests_per_operation == 2.0


async def test_the_s3_server_counts_the_requests_that_our_store_counts(tmp_path: Path) -> None:
    with s3_server(tmp_path, "bench.ontology_write.counted", buckets=("one",)) as address:
        bucket = Bucket(address, "one", tmp_path)
        before = bucket.cost()
        async with holdfast.open(bucket.uri, settings=bucket.settings) as hf:
            async with hf.ontology(Customer) as onto:
                onto.ensure(Customer(id="c1", name="Ada", tier="gold", seats=1))
                await onto.commit()
            counted = hf.store.usage.requests()
        assert bucket.cost().since(before).requests == counted > 0


async def test_both_sides_of_the_pipeline_count_the_same_samples(tmp_path: Path) -> None:
    fleet, ideal, out, folder = Fleet(2), tmp_path / "ideal.parquet", tmp_path / "rows.parquet", tmp_path / "store"
    fleet.write_ideal(ideal)
    assert duckdb_seconds(ideal, out) > 0
    await place.fill(folder, fleet)
    await run(Inline(), folder, "reconcile", full=True)
    await rolled(Inline(), folder, fleet)
    chunks = [pq.read_table(path) for path in folder.glob("rollup/v1/window=1m/**/*.zst")]
    assert sum(sum(part.column("count").to_pylist()) for part in chunks) == fleet.samples == 2 * SERIES * SCRAPES
    query = f"SELECT sum(column2) FROM (SELECT * FROM '{out}') t(s, m, column2, a, b, c)"
    assert duckdb.sql(query).fetchone() == (fleet.samples,)
