"""Folders of sessions: their own, gone at the end, and removed by others when their process died."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast.sql.scratch import Scratch, sweep

HELD = "import sys, pathlib; from holdfast.sql.scratch import Scratch; s = Scratch(pathlib.Path(sys.argv[1]));"
HELD += "(s.path / '1.parquet').touch(); print(s.path, flush=True); sys.stdin.read()"


def test_a_folder_of_its_own_that_goes(tmp_path: Path) -> None:
    one, other = Scratch(tmp_path), Scratch(tmp_path)
    assert one.path != other.path
    (one.path / "file").touch()
    one.close()
    one.close()
    assert list(tmp_path.iterdir()) == [other.path]
    other.close()
    assert list(tmp_path.iterdir()) == []


def test_only_what_dead_processes_left_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        left = Path((process.stdout.readline() if process.stdout else "").strip())
        assert sweep(tmp_path) == []
        assert (left / "1.parquet").exists()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    (tmp_path / "other").mkdir()
    (tmp_path / "holdfast-sql-link").symlink_to(tmp_path / "other")
    next_one = Scratch(tmp_path)
    assert next_one.sweep() == [left]
    assert not left.exists()
    assert (tmp_path / "other").exists()
    next_one.close()
