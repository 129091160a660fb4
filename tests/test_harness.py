"""The harness can fail: async tests run, leftovers are found, warnings are errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.temporary import PATIENCE
from tests.tidy.tree import ROOT, SAMPLES


def pytest_over(*words: str | Path, litter: Path) -> "subprocess.CompletedProcess[str]":
    """Run pytest over bad samples, in a folder that it may litter."""
    (litter / "tmp").mkdir()
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-rA", "-p", "no:randomly", *words]
    own = {"PYTHONPATH": str(ROOT), "COLUMNS": "400", "TMPDIR": str(litter / "tmp"), PATIENCE: "0"}
    return subprocess.run(
        command, cwd=litter, env={**os.environ, **own}, capture_output=True, text=True, check=False, timeout=120
    )


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Verdict by test name."""
    result = pytest_over(SAMPLES / "pytest", litter=tmp_path_factory.mktemp("litter"))
    assert result.returncode == 1, result.stdout + result.stderr
    return {name: line for line in result.stdout.splitlines() if (name := verdict_of(line))}


def verdict_of(line: str) -> str | None:
    match = re.match(r"(?:FAILED|ERROR) \S*::(\w+)", line)
    return match[1] if match else None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("test_async_body_runs", "AssertionError|assert not"),
        ("test_async_property_runs", "assert|AssertionError"),
        ("test_leaves_a_process", "left behind: process"),
        ("test_leaves_a_thread", "left behind: thread forgotten"),
        ("test_leaves_a_portal", "left behind: thread holdfast-portal"),
        ("test_leaves_a_file", r"left behind: file forgotten\.txt"),
        ("test_leaves_a_temporary_file", r"left behind: forgotten\.tmp in the temporary folder"),
        ("test_warns", "UserWarning"),
    ],
)
def test_a_bad_test_fails_for_its_reason(outcomes: dict[str, str], name: str, reason: str) -> None:
    assert re.search(reason, outcomes[name])


def test_every_sample_was_judged(outcomes: dict[str, str]) -> None:
    text = (SAMPLES / "pytest" / "test_must_fail.py").read_text(encoding="utf-8")
    assert set(outcomes) == set(re.findall(r"def (test_\w+)", text))
