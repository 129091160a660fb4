"""Every test here passes, and still the run must fail: see tests/test_harness.py."""

import subprocess
import tempfile

tempfile.mkdtemp(prefix="forgotten-", dir=None)  # before any test could be blamed for it


def test_leaves_an_orphan() -> None:
    """Its parent has ended: it is nobody's child."""
    subprocess.run(["sh", "-c", "sleep 600 >/dev/null 2>&1 &"], check=True)
