"""The local store across processes: races have one winner, and a call killed at any point happens or does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.local_writers import EDITS, NAMES, RACERS, SCENARIOS

PROJECT = Path(__file__).parents[2]


def play(program: str, folder: Path) -> Any:
    command = [sys.executable, "-m", "tests.integration.local_writers", program, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_races_between_processes_have_one_winner(tmp_path: Path) -> None:
    assert play("race", tmp_path) == {"won": NAMES, "count": RACERS * EDITS}


def test_a_call_that_is_killed_happens_or_does_not(tmp_path: Path) -> None:
    points = play("crashes", tmp_path)
    assert points.keys() == SCENARIOS.keys()
    assert min(points.values()) >= 5
