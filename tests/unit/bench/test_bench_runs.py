"""The benchmark of runs: its floor makes the requests that we make, contenders take turns, and it runs."""

import json
import sys
from pathlib import Path

import pytest

from bench.runs import __main__ as program
from bench.runs import dbos_side
from bench.runs.floor import plans, record
from bench.runs.growth import slope
from bench.runs.rounds import Measure, Taken, in_turns
from bench.runs.work import Workload
from holdfast.objects import open as open_store
from tests.tidy.tree import leaks

STEPS = 70


async def test_the_floor_makes_the_requests_that_a_run_makes_for_its_journal() -> None:
    floor = await record(STEPS)
    async with open_store("memory:") as store:
        await Workload().run(store, "r", STEPS)
        put = store.usage.at("put", "runs")
    assert [step.verb for step in floor.run].count("replace") == STEPS + 1
    assert len(floor.run) == put.requests
    assert abs(sum(len(step.body) for step in floor.run) - put.sent_bytes) < STEPS * STEPS, "but for ids and times"


async def test_the_floor_of_resuming_reads_what_was_left() -> None:
    floor = await record(STEPS)
    left = {step.key for step in floor.left}
    read = [step.key for step in floor.resume if step.verb == "get"]
    assert set(read) == left
    assert len(left) == 1 + 2, "a journal and two segments"
    one_by_one = plans(floor.resume, 5, at_once=False)
    assert [len(plan) for plan in one_by_one] == [1]
    assert all(step.key.startswith("runs/5/") for plan in one_by_one for steps in plan for step in steps)
    first, segments, rest = plans(floor.resume, 5, at_once=True)
    assert [len(first), len(segments), len(rest)] == [1, 2, 1]


async def test_who_begins_changes_and_the_first_round_is_not_measured() -> None:
    order: list[str] = []

    def contender(name: str, seconds: list[float]) -> Measure:
        async def measure(number: int) -> Taken:
            order.append(name)
            return Taken(seconds[number], requests=number)

        return measure

    found = await in_turns(
        {"a": contender("a", [9, 1, 2, 4]), "b": contender("b", [9, 2, 6, 2]), "c": contender("c", [9, 1, 1, 1])},
        rounds=3,
    )
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert (found["a"].seconds, found["a"].spread, found["a"].requests) == (2, (1, 4), 2)
    assert (found["a"].ratio, found["b"].ratio) == (1, 2)


def test_slope() -> None:
    assert slope([(1, 3), (10, 30), (100, 300)]) == pytest.approx(1)
    assert slope([(1, 3), (10, 300), (100, 30_000)]) == pytest.approx(2)


def test_it_runs_and_keeps_its_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "runs.json"
    monkeypatch.setattr(dbos_side, "INSTALLED", False)
    monkeypatch.setattr(sys, "argv", ["bench.runs", "--quick", "--store", "memory", "--out", str(out)])
    program.main()
    said = capsys.readouterr().out
    assert "DBOS is not installed" in said
    assert "memory: 60 steps" in said
    document = json.loads(out.read_text())
    assert document["growth"]["slope"] <= document["growth"]["slope_aim"]
    assert document["results"]["memory"]["run"]["60"].keys() == {"ours", "floor"}
    assert document["results"]["memory"]["run"]["60"]["floor"]["requests"] == 63
    assert not leaks(out.read_text())
