"""The benchmarks' own parts: pairs are interleaved, figures are medians, and the object benchmark runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import lib
from bench.lib import Contender, Sample, compare, facts, table
from bench.objects.workload import VERBS, Workload
from tests.tidy.tree import leaks

ROOT = Path(__file__).parents[3]


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
    assert found.ratio == 1.5  # of 0.5, 1.5 and 2
    assert found.spread == (0.5, 2.0)
    assert (found.rate, found.other_rate) == (3.0, 3.0)
    assert found.cpu_us == pytest.approx(100_000)
    assert found.requests_per_operation == 2.0


def test_both_sides_get_the_same_plan_and_every_write_new_bytes() -> None:
    for verb in VERBS:
        for concurrency in (1, 16):
            workload = Workload(verb, concurrency, 320)
            assert workload.plan(3) == workload.plan(3)
            assert len(workload.plan(0)) == concurrency
    written = [
        (step.key, step.body)
        for verb in ("create", "replace")
        for number in range(3)
        for steps in Workload(verb, 16, 320).plan(number)
        for step in steps
    ]
    assert len(set(written)) == len(written)


def test_table_is_aligned() -> None:
    lines = table(("name", "n"), [("a", "1"), ("longer", "200")]).splitlines()
    assert lines == ["name      n", "------  ---", "a         1", "longer  200"]


def test_facts_name_no_machine() -> None:
    assert set(facts("obstore")) == {"python", "system", "obstore"}


def test_the_object_benchmark_runs_and_keeps_its_results(tmp_path: Path) -> None:
    out = tmp_path / "objects.json"
    done = subprocess.run(
        [sys.executable, "-m", "bench.objects", "--quick", "--store", "memory", "--out", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "memory: PUT create, 16 at once" in done.stdout
    results = json.loads(out.read_text())["results"]["memory"]
    assert len(results) == 8
    assert {figures["requests_per_operation"] for figures in results.values()} == {1.0}
    assert not leaks(out.read_text())
