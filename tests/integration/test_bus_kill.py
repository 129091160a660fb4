"""Real workers on a real store, killed with SIGKILL again and again: every event is handled, none is buried."""

import asyncio
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import holdfast
from holdfast.bus import Event
from tests.integration.run_places import Place

HANDLERS = """
import asyncio
from holdfast.bus import Event, on

class KillOrder(Event):
    n: int

@on(KillOrder, id="note", concurrency=3)
async def note(ctx, event):
    await asyncio.sleep(0.03)
    with open("handled", "a") as file:
        file.write(f"{event.n}\\n")
"""
EVENTS = 40
QUICK = {"HOLDFAST_BUS__EVENT_LEASE_MS": "300", "HOLDFAST_BUS__EVENT_POLL_MS": "50"}


class KillOrder(Event):
    n: int


def start(folder: Path, place: Place, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "holdfast", "worker", "bus_kill_handlers:note", "--store", place.uri, "--json"]
    around = {**os.environ, **place.environ, **QUICK}
    return subprocess.Popen([*command, *options], cwd=folder, env=around, stdout=subprocess.DEVNULL)


async def publish(place: Place, *numbers: int) -> None:
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        for number in numbers:
            await hf.bus().publish(KillOrder(n=number))


async def verdicts(place: Place) -> list[tuple[str, int]]:
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        listed = await hf.bus().events(limit=None)
        claims = [(await hf.bus().inspect(each.envelope.id)).claims[0] for each in listed]
        assert await hf.bus().dead_letters() == []
        return [(each.status, claim["attempts"]) for each, claim in zip(listed, claims, strict=True)]


def test_every_event_is_handled_by_workers_that_are_killed(tmp_path: Path, place: Place) -> None:
    (tmp_path / "bus_kill_handlers.py").write_text(HANDLERS, encoding="utf-8")
    asyncio.run(publish(place, *range(EVENTS)))
    rng = random.Random(5)
    handled = tmp_path / "handled"
    for _ in range(3):
        workers = [start(tmp_path, place) for _ in range(2)]
        before = handled.stat().st_size if handled.exists() else 0
        deadline = time.monotonic() + 20
        while (not handled.exists() or handled.stat().st_size == before) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(rng.random() * 0.1)
        for worker in workers:
            worker.kill()
            worker.wait()
        if len(handled.read_text().split()) >= EVENTS:
            break
    last = start(tmp_path, place, "--until-idle")
    assert last.wait(timeout=60) == 0
    assert set(handled.read_text().split()) == {str(number) for number in range(EVENTS)}
    assert asyncio.run(verdicts(place)) == [("acked", 0)] * EVENTS
