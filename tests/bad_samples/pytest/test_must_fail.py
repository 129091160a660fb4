"""Every test here must fail or be refused, under the project's own conftest; see tests/test_harness.py."""

import asyncio
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from holdfast.base.portal import Portal

kept: list[object] = []


async def test_async_body_runs(tmp_path: Path) -> None:
    await asyncio.sleep(0)
    assert not tmp_path.exists()


@given(st.integers())
async def test_async_property_runs(number: int) -> None:
    await asyncio.sleep(0)
    assert number < 100


def test_leaves_a_process() -> None:
    # It ends with the interpreter that started it, when its standard input closes.
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))


def test_leaves_a_thread() -> None:
    event = threading.Event()
    threading.Thread(target=event.wait, args=[20], name="forgotten").start()
    threading.Timer(0.5, event.set).start()


def test_leaves_a_portal() -> None:
    Portal().__enter__()


def test_leaves_a_file() -> None:
    Path("forgotten.txt").touch()


def test_leaves_a_temporary_file() -> None:
    Path(tempfile.gettempdir(), "forgotten.tmp").touch()


def test_warns() -> None:
    warnings.warn("a warning is an error", stacklevel=1)
