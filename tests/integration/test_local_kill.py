"""The local store across real processes: races have one winner, and SIGKILL at any moment loses nothing confirmed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast.objects.local import LocalStore
from tests.integration.local_writers import EDITS, KILLS, NAMES, RACERS, SCENARIOS, body_of
from tests.unit.objects.local.local_kit import contents, staged

PROJECT = Path(__file__).parents[2]


def play(program: str, folder: Path) -> Any:
    command = [sys.executable, "-m", "tests.integration.local_writers", program, str(folder)]
    done = subprocess.run(command, cwd=PROJECT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_races_between_processes_have_one_winner(tmp_path: Path) -> None:
    assert play("race", tmp_path) == {"won": NAMES, "count": RACERS * EDITS}


async def test_killed_writers_lose_nothing_that_was_confirmed(tmp_path: Path) -> None:
    received = play("storm", tmp_path)
    store = LocalStore(tmp_path)
    found = await contents(store)
    for key in set(received["there"]) - set(received["going"]):
        assert found[key] == body_of(key)
    assert found.keys().isdisjoint(received["gone"])
    for key, body in found.items():
        if key.startswith("hot/"):
            number, *others = body.split()
            assert others == [number] * 1_999
            assert int(number) >= received["hot"].get(key.removeprefix("hot/"), 0)
        else:
            assert body == body_of(key)
    assert len(received["there"]) > KILLS
    await store.put("next", b"")
    assert staged(tmp_path) == []


def test_a_call_that_is_killed_happens_or_does_not(tmp_path: Path) -> None:
    points = play("crashes", tmp_path)
    assert points.keys() == SCENARIOS.keys()
    assert min(points.values()) >= 5
