"""Real workers that are stopped and go on, or get a signal to end while a handler hangs."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.bus import Event
from tests.integration.run_places import folder

HANDLERS = """
import asyncio, os, pathlib, time
from holdfast.bus import Event, on

class SignalOrder(Event):
    n: int

@on(SignalOrder, id="note", concurrency=2)
async def note(ctx, event):
    pathlib.Path(f"begun-{event.n}-{os.getpid()}").touch()
    while pathlib.Path("hold").exists() and pathlib.Path("hold").read_text() == str(os.getpid()):
        await asyncio.sleep(0.01)

@on(SignalOrder, id="hang", concurrency=8)
def hang(ctx, event):
    pathlib.Path(f"hung-{event.n}").touch()
    time.sleep(3600)

@on(SignalOrder, id="refuse")
async def refuse(ctx, event):
    pathlib.Path("refused").touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""
PATIENCE_S = 60
QUICK = {"HOLDFAST_BUS__EVENT_LEASE_MS": "500", "HOLDFAST_BUS__EVENT_POLL_MS": "50"}


class SignalOrder(Event):
    n: int


class Yard:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.place = folder(root / "store")
        (root / "signal_handlers.py").write_text(HANDLERS, encoding="utf-8")

    def start(self, handler: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "holdfast", "worker", f"signal_handlers:{handler}", "--json"]
        around = {**os.environ, **self.place.environ, **QUICK}
        words = [*command, "--store", self.place.uri, *options]
        return subprocess.Popen(words, cwd=self.root, env=around, stdout=subprocess.PIPE)

    def publish(self, count: int) -> None:
        async def work() -> None:
            async with holdfast.open(self.place.uri, settings=self.place.settings) as hf:
                for number in range(count):
                    await hf.bus().publish(SignalOrder(n=number))

        asyncio.run(work())

    def wait_for(self, pattern: str, count: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(list(self.root.glob(pattern))) < count:
            assert time.monotonic() < deadline, pattern
            time.sleep(0.01)

    def claims(self) -> list[dict[str, Any]]:
        async def work() -> list[dict[str, Any]]:
            async with holdfast.open(self.place.uri, settings=self.place.settings) as hf:
                listed = await hf.bus().events()
                found = [(await hf.bus().inspect(each.envelope.id)).claims for each in listed]
                return [claim for claims in found for claim in claims]

        return asyncio.run(work())


def ended(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_a_worker_that_was_stopped_past_its_lease_changes_nothing(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.publish(2)
    with yard.start("note") as stopped:
        (tmp_path / "hold").write_text(str(stopped.pid))
        yard.wait_for("begun-*", 2)
        stopped.send_signal(signal.SIGSTOP)
        other = ended(yard.start("note", "--until-idle"))
        settled = yard.claims()
        stopped.send_signal(signal.SIGCONT)
        (tmp_path / "hold").unlink()
        stopped.terminate()
        answer = ended(stopped)
    assert (other["handled"], answer["handled"], answer["lost"]) == (2, 0, 2)
    assert yard.claims() == settled
    assert {(claim["session_id"], claim["attempts"], claim["generation"]) for claim in settled} == {
        (other["session"], 0, 2)
    }


def test_handlers_that_hang_in_threads_keep_neither_the_worker_nor_their_events(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.publish(8)
    with yard.start("hang", "--grace", "0") as worker:
        yard.wait_for("hung-*", 8)  # more than there are threads for the store: it is not stopped by them
        worker.terminate()
        answer = ended(worker)
    assert answer["handed_back"] == 8
    assert {(claim["last_error"], claim["attempts"]) for claim in yard.claims()} == {("handed back", 0)}


def test_a_third_signal_ends_a_worker_whose_handler_refuses(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    yard.publish(1)
    with yard.start("refuse", "--grace", "60") as worker:
        yard.wait_for("refused")
        deadline = time.monotonic() + PATIENCE_S
        while worker.poll() is None and time.monotonic() < deadline:
            worker.terminate()  # two at once are one, so it is sent until the worker ends
            time.sleep(0.2)
        worker.kill()
    assert worker.returncode == -signal.SIGTERM
