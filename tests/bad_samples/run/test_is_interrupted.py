"""A run that is told to end in the middle of a test; see tests/test_harness.py."""

import os
import signal
import subprocess
import tempfile
from pathlib import Path


def test_is_told_to_end(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    tempfile.mkdtemp()
    subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"], check=True)
    os.kill(os.getpid(), signal.SIGTERM)
