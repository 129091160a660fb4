"""Runs in real processes that are killed with SIGKILL at any moment: each run completes, and no recorded step is done
again. Judged from the objects and from what the steps have done, with none of the code under test.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.integration.run_places import Place
from tests.integration.run_witness import Deed, faults, read_deeds, read_entries, read_result
from tests.integration.run_workers import APPROVAL, PAGES, TURNS
from tests.soak import SOAKING

ROOT = Path(__file__).parents[2]
KILLED_RUNS, SHARED_RUNS, HAUNTED_RUNS = (60, 60, 20) if SOAKING else (4, 3, 2)
STEPS = 2 * TURNS + len(PAGES) + 1


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where steps note what they have done, a file per run."""
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def begin(program: str, place: Place, notes: Path, run_id: str, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.integration.run_workers", program, place.uri, str(notes / run_id)]
    return subprocess.Popen(
        [*command, run_id, str(seed)],
        cwd=ROOT,
        env={**os.environ, **place.environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def judge(place: Place, notes: Path, run_id: str) -> tuple[list[dict[str, Any]], list[Deed]]:
    """The entries and the deeds of a run that must have been completed as if nothing had happened."""
    entries, deeds = read_entries(place.get, run_id), read_deeds(notes / run_id)
    results = {entry["stepId"]: read_result(place.get, entry) for entry in entries if entry["type"] == "step"}
    gave = {step: result["gave"] for step, result in results.items()}
    assert faults(run_id, entries, deeds, gave) == []
    assert len(gave) == STEPS
    assert read_result(place.get, entries[-1]) == {
        "approval": APPROVAL,
        "early": "bird",
        "last": gave[f"turn#{2 * TURNS}"],
        "found": {page: gave[f"fetch[{page}]"] for page in PAGES},
    }
    return entries, deeds


def answers(*processes: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    said = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), said
    return [json.loads(out) for out, _ in said]


def test_killed_processes_finish_the_run_and_repeat_nothing_recorded(place: Place, notes: Path) -> None:
    repeated = 0
    for seed in range(KILLED_RUNS):
        run_id = f"run-{seed}"
        (ends,) = answers(begin("dispatch", place, notes, run_id, seed))
        assert ends.keys() <= {"killed", "success"}
        assert ends["killed"] > 3
        entries, deeds = judge(place, notes, run_id)
        assert len([entry for entry in entries if entry["type"] == "start"]) > 3
        repeated += len(deeds) - STEPS
    assert repeated > 0, "no process was killed between doing a step and recording it"
    assert [key for key in place.contents() if "/segments/" in key]


@pytest.mark.soak
def test_two_dispatchers_at_once(place: Place, notes: Path) -> None:
    ends: Counter[str] = Counter()
    for seed in range(SHARED_RUNS):
        run_id = f"run-{seed}"
        sides = [begin("relay", place, notes, run_id, 1_000 * side + seed) for side in (1, 2)]
        for end in answers(*sides):
            ends.update(end)
        judge(place, notes, run_id)
    assert ends["success"] == 2 * SHARED_RUNS
    assert ends["Fenced"] > 0
    assert ends.keys() <= {"killed", "success", "Fenced", "Conflict", "RunFinished"}


def test_a_process_that_wakes_up_too_late_changes_nothing(place: Place, notes: Path) -> None:
    for seed in range(HAUNTED_RUNS):
        run_id = f"run-{seed}"
        assert answers(begin("haunt", place, notes, run_id, seed)) == [{"zombie": "Fenced", "successor": "success"}]
        entries, deeds = judge(place, notes, run_id)
        assert [entry["session"] for entry in entries if entry["type"] == "start"] == [1, 2, 3]
        late = [deed.label for deed in deeds if deed.session == 1][-1]
        assert [deed.session for deed in deeds if deed.label == late] == [1, 2]
