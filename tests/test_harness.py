"""The harness itself can fail: async tests run, leftovers are found, warnings are errors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT, SAMPLES


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Verdict by test name, from a pytest of its own over the bad sample, in a folder that it may litter."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-rA", "-p", "no:randomly", SAMPLES / "pytest"],
        cwd=tmp_path_factory.mktemp("litter"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "400"},  # a verdict on one line
        capture_output=True,
        text=True,
        check=False,
    )
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
        ("test_warns", "UserWarning"),
    ],
)
def test_a_bad_test_fails_for_its_reason(outcomes: dict[str, str], name: str, reason: str) -> None:
    assert re.search(reason, outcomes[name])


def test_every_sample_was_judged(outcomes: dict[str, str]) -> None:
    text = (SAMPLES / "pytest" / "test_must_fail.py").read_text(encoding="utf-8")
    assert set(outcomes) == set(re.findall(r"def (test_\w+)", text))


async def test_async_tests_get_fixtures(tmp_path: Path) -> None:
    assert tmp_path.is_dir()


def test_settings_from_outside_do_not_reach_a_test() -> None:
    assert not [name for name in os.environ if name.startswith("AWS_") or name == "HOLDFAST_STORE"]
