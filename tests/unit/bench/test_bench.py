"""The benchmarks run, and compare like with like."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import lib
from bench.lib import Contender, Sample, compare
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


async def test_pairs_alternate_and_the_first_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
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
