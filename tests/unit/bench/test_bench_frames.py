"""The frames benchmark: all formats hold the same samples, and it runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.frames import hosts
from bench.frames.formats import OTHERS, OURS, Format
from bench.frames.hosts import records
from holdfast.ingest.frame import pack
from tests.tidy.tree import leaks

ROOT = Path(__file__).parents[3]
BATCH = pack("host", "boot", records(5), seq_start=0)


@pytest.mark.parametrize("form", OTHERS, ids=lambda form: form.name)
def test_each_format_gives_the_samples_back(form: Format) -> None:
    table = form.prepare(BATCH)
    assert form.decode(form.encode(table)).equals(table)
    assert table.column("value").to_pylist() == BATCH.samples.value.tolist()
    assert table.column("seq").to_pylist() == BATCH.samples.seq.tolist()


def test_hosts_are_the_same_every_time_and_mostly_move() -> None:
    assert records(3) == records(3)
    assert records(3) != records(3, seed=8)
    assert OURS.encode(BATCH) == OURS.encode(pack("host", "boot", records(5), seq_start=0))
    times, traces = hosts.traces(20)
    still = [trace.name for trace in traces if len(set(trace.values.tolist())) == 1]
    assert (len(times), len(traces)) == (20, 91)
    assert len(still) < 10


def test_ten_thousand_samples_take_few_bytes() -> None:
    """Not a measure of time: bytes are the same on every machine, but for the version of zstd."""
    batch = pack("host", "boot", records(110), seq_start=0)
    assert len(OURS.encode(batch)) / len(batch) <= 2.0


def test_the_benchmark_runs_and_keeps_its_results(tmp_path: Path) -> None:
    out = tmp_path / "frames.json"
    command = [sys.executable, "-m", "bench.frames", "--quick", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "91: arrow ipc" in done.stdout
    results = json.loads(out.read_text())["results"]
    assert results["91 samples"]["frame"]["bytes_per_sample"] < results["91 samples"]["arrow ipc"]["bytes_per_sample"]
    assert not leaks(out.read_text())
