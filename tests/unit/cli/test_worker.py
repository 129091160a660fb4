"""``holdfast worker`` as a process: the live view on a terminal, metrics and health."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from holdfast.cli.main import run

HANDLERS = """
from holdfast.bus import Event, on

class ViewPaid(Event):
    order: str

@on(ViewPaid, id="ship")
async def ship(ctx, event):
    if event.order == "bad":
        raise ValueError("no")
"""
PATIENCE_S = 60


@pytest.fixture
def store(tmp_path: Path) -> str:
    (tmp_path / "worker_view_handlers.py").write_text(HANDLERS, encoding="utf-8")
    uri = f"file:{tmp_path / 'store'}"
    for order in ("o1", "o2", "bad"):
        assert run(["events", "publish", "view.paid", json.dumps({"order": order}), "--store", uri, "--json"]) == 0
    return uri


def command(uri: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "worker", "worker_view_handlers:ship", "--store", uri, *options]


def screen(terminal: int, process: "subprocess.Popen[bytes]", wanted: str) -> str:
    """What the terminal was sent until it says ``wanted``, or the process ends."""
    seen = ""
    deadline = time.monotonic() + PATIENCE_S
    while not re.search(wanted, seen) and time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                seen += os.read(terminal, 65_536).decode(errors="replace")
            except OSError:  # the other end is closed
                return seen
        elif process.poll() is not None:
            return seen
    return seen


def test_a_terminal_shows_what_goes_on(tmp_path: Path, store: str) -> None:
    ours, theirs = pty.openpty()
    around = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen(command(store), cwd=tmp_path, env=around, stdout=theirs, stderr=theirs, stdin=theirs)
    os.close(theirs)
    try:
        line = screen(ours, process, r"handled 2 .*failed [1-9]")
        assert re.search(r"handled 2  in flight \d+  failed [1-9]\d*  dead 0  waiting \d", line), line
        process.send_signal(signal.SIGTERM)
        rest = screen(ours, process, r"handled\W+2")
        assert "Traceback" not in line + rest
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.parametrize("verbose", [False, True])
def test_a_try_that_fails_is_printed(tmp_path: Path, store: str, verbose: bool) -> None:
    around = {**os.environ, "HOLDFAST_BUS__EVENT_MAX_ATTEMPTS": "2", "HOLDFAST_BUS__EVENT_BACKOFF_BASE_MS": "1"}
    words = [*command(store, "--until-idle"), *(["--verbose"] if verbose else [])]
    done = subprocess.run(words, cwd=tmp_path, env=around, capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    if verbose:
        assert done.stderr.count("Traceback") == 2
        assert "worker_view_handlers.py" in done.stderr
        assert any("ValueError: no (try 2 of 2)" in line for line in lines)
    else:
        assert lines[0] == f"working on namespace default of {store}, handlers: ship"
        assert [re.sub(r"event \S+", "event E", line) for line in lines[1:]] == [
            f"event E failed in ship: ValueError: no (try {number} of 2)" for number in (1, 2)
        ]
    assert re.search(r"waiting +0", done.stdout)


@pytest.fixture
def address(tmp_path: Path, store: str) -> Iterator[str]:
    process = subprocess.Popen(
        command(store, "--metrics", "127.0.0.1:0"), cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stderr is not None
    try:
        said = process.stderr.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None, said
        yield found[0]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_metrics_and_health(address: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    text = ""
    while 'handled_total{namespace="default"} 2.0' not in text and time.monotonic() < deadline:
        with urlopen(f"{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    assert 'holdfast_worker_handled_total{namespace="default"} 2.0' in text
    assert re.search(r'holdfast_store_requests_total\{verb="put"\} \d+', text)
    with urlopen(f"{address}/health", timeout=10) as answer:
        reported = json.loads(answer.read())
    assert reported["healthy"] is True
    assert reported["namespace"] == "default"
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"{address}/", timeout=10)
    with pytest.raises(HTTPError, match="501"):
        urlopen(f"{address}/metrics", data=b"x", timeout=10)


@pytest.mark.parametrize("where", ["9100", "host:", ":9100", "127.0.0.1:x", "127.0.0.1:99999"])
def test_an_address_that_is_none(
    where: str, tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["worker", "worker_view_handlers:ship", "--store", store, "--metrics", where]) == 2
    assert "HOST:PORT" in (said := capsys.readouterr().err) or "cannot be served" in said
