"""Two commands side by side: both are heard, and either can fail."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.tidy.tree import ROOT

BESIDE = ROOT / "tools" / "beside"


@pytest.mark.parametrize(
    ("first", "second", "code", "words"),
    [
        ("true", "true", 0, ""),
        ("false", "true", 1, "error: false failed; what it said is above\n"),
        ("true", "exit 4", 4, ""),
        ("false", "exit 4", 1, "error: false failed; what it said is above\n"),
    ],
)
def test_either_can_fail(first: str, second: str, code: int, words: str) -> None:
    result = subprocess.run([BESIDE, first, second], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (code, "", words)


def test_they_run_at_the_same_time_and_both_are_heard(tmp_path: Path) -> None:
    """Each waits for the other through a pipe, so neither could come first."""
    os.mkfifo(tmp_path / "pipe")
    result = subprocess.run(
        [BESIDE, "sh -c 'echo one; echo two >&2; echo three >pipe'", "cat pipe"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert sorted(result.stdout.split()) == ["one", "three", "two"]


def test_what_ends_it_ends_both(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ready")
    with subprocess.Popen(
        [BESIDE, "sh -c 'echo $$ >ready; exec sleep 600'", "cat ready; exec sleep 600"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a terminal would have it: Ctrl-C is for all of them
    ) as process:
        assert process.stdout is not None
        first = int(process.stdout.readline())
        os.killpg(process.pid, signal.SIGINT)
        assert process.stdout.read() == ""  # nobody is left who could say something
        assert process.wait() == 130
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_wrong_use() -> None:
    result = subprocess.run([BESIDE, "true"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (2, "usage: tools/beside FIRST SECOND\n")
