"""Importing is free of effects: no thread, no socket, no file made, and no backend loaded that is not used."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

# Runs in a new interpreter: an audit hook sees every socket, every process and every file opened for writing.
WATCH = """
import sys, json, os
seen = []
EVENTS = ("subprocess.Popen", "os.fork", "os.mkdir")
def hook(event, args):
    if event.startswith("socket.") or event in EVENTS:
        seen.append(event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        seen.append("open " + str(args[0]))
sys.addaudithook(hook)
{code}
# Threads as the operating system counts them: those of compiled libraries too.
threads = len(os.listdir("/proc/self/task"))
heavy = [name for name in {heavy!r} if name in sys.modules]
print(json.dumps(dict(seen=seen, threads=threads, heavy=heavy)))
"""
HEAVY = [
    "obstore",
    "duckdb",
    "pyarrow",
    "pyspark",
    "rich",
    "fastapi",
    "holdfast.objects.local",
    "holdfast.objects.cloud",
]


def watched(code: str, cwd: Path) -> dict:
    result = subprocess.run(
        [sys.executable, "-B", "-c", WATCH.format(code=code, heavy=HEAVY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=cwd,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    "code",
    [
        "import holdfast",
        "import holdfast.objects",
        "from holdfast import connect, open, Holdfast, objects",
        "from holdfast.objects import StoreSpec; StoreSpec.parse('s3://bucket/prefix?endpoint=http://127.0.0.1:9')",
        "from holdfast.base import aio, clock, codec, config, errors, ids, portal, telemetry; portal.Portal()",
        "import holdfast.cli.main",
        "import holdfast.ontology",
    ],
)
def test_import_has_no_effects(code: str, tmp_path: Path) -> None:
    assert watched(code, tmp_path) == {"seen": [], "threads": 1, "heavy": []}


def test_import_of_the_package_alone_loads_almost_nothing(tmp_path: Path) -> None:
    code = "import holdfast; assert not [n for n in sys.modules if n.startswith(('pydantic', 'asyncio', 'holdfast.'))]"
    assert watched(code, tmp_path)["heavy"] == []


def test_a_collector_starts_without_pandas(tmp_path: Path) -> None:
    """Arrow imports pandas, if it is installed, for the first value that it converts: half a second and 40 MB."""
    code = "import holdfast.server.run; assert 'pandas' not in sys.modules"
    assert {"fastapi", "pyarrow"} <= set(watched(code, tmp_path)["heavy"])


def test_opening_a_backend_contacts_nothing(tmp_path: Path) -> None:
    code = """
from holdfast.objects import StoreSpec
from holdfast.objects.open import backend
backend(StoreSpec.parse("memory:"))
backend(StoreSpec.parse("file:never-used"))
backend(StoreSpec.parse("s3://bucket?endpoint=http://127.0.0.1:9&region=us-east-1&anonymous=true&allow_http=true"))
"""
    found = watched(code, tmp_path)
    assert found["seen"] == []
    assert list(tmp_path.iterdir()) == []


def test_the_audit_hook_reports_effects(tmp_path: Path) -> None:
    code = (
        "import socket, threading, time; socket.socket().close(); open('f', 'w').close(); "
        "threading.Thread(target=time.sleep, args=(1,)).start(); import rich"
    )
    found = watched(code, tmp_path)
    assert found == {"seen": ["socket.__new__", "open f"], "threads": 2, "heavy": ["rich"]}
