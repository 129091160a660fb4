"""Handlers that commit, in real workers killed with SIGKILL again and again.

A handler is called at least once for every event, and may be called again after a kill. What it committed is found
again, so every event has one commit and one follow-up, and a counter that each commit raises says how many there were.
"""

import asyncio
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import holdfast
from holdfast.bus import Event
from holdfast.ontology import Entity, Field
from holdfast.ontology.chain.history import commits
from tests.integration.run_places import Place

HANDLERS = """
import asyncio
from holdfast.bus import Event, on
from holdfast.ontology import Entity, Field

class KillTally(Entity, name="KillTally"):
    id: Field[str] = Field(primary_key=True)
    times: Field[int]

class KillTaken(Event):
    n: int

class KillBilled(Event):
    n: int

@on(KillTaken, id="bill", concurrency=3)
async def bill(ctx, event):
    with open("called", "a") as file:
        file.write(f"{event.n}\\n")
    known = await ctx.get(KillTally, str(event.n))
    ctx.ensure(KillTally(id=str(event.n), times=1 + (known.times if known else 0)))
    ctx.emit(KillBilled(n=event.n))
    await ctx.commit()
    with open("committed", "a") as file:
        file.write(f"{event.n}\\n")
    await asyncio.sleep(0.02)
"""
EVENTS = 16
KILLS = 2
PATIENCE_S = 60
QUICK = {
    "HOLDFAST_BUS__EVENT_LEASE_MS": "1000",
    "HOLDFAST_BUS__EVENT_POLL_MS": "50",
    "HOLDFAST_ONTOLOGY__S3_LEASE_TTL_MS": "1000",
}


class KillTally(Entity, name="KillTally"):
    id: Field[str] = Field(primary_key=True)
    times: Field[int]


class KillTaken(Event):
    n: int


def start(folder: Path, place: Place, *options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "holdfast", "worker", "kill_commit_handlers:bill", "--store", place.uri, "--json"]
    around = {**os.environ, **place.environ, **QUICK}
    return subprocess.Popen([*command, *options], cwd=folder, env=around, stdout=subprocess.DEVNULL)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def killed(folder: Path, place: Place, rng: random.Random) -> None:
    """Two workers, killed soon after one of them has committed something."""
    before = len(lines(folder / "committed"))
    workers = [start(folder, place) for _ in range(2)]
    deadline = time.monotonic() + PATIENCE_S
    while len(lines(folder / "committed")) == before and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(rng.random() * 0.05)
    for worker in workers:
        worker.kill()
        worker.wait()


async def publish(place: Place) -> None:
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        for number in range(EVENTS):
            await hf.bus().publish(KillTaken(n=number))


async def found(place: Place) -> tuple[dict[str, int], Counter[str], list[int], set[str]]:
    """What the rows say, how many commits each event has, what follows, and the state of all events."""
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        async with hf.ontology(KillTally) as onto:
            rows = {row.id: row.times for row in await onto.all(KillTally)}
        made = [manifest.metadata["event_id"] async for manifest in commits(hf.store)]
        billed = await hf.bus().events(limit=None, type_name="kill.billed")
        taken = await hf.bus().events(limit=None, type_name="kill.taken")
        assert await hf.bus().dead_letters() == []
        follow = sorted(int(each.envelope.payload["n"]) for each in billed)
        return rows, Counter(str(each) for each in made), follow, {each.status for each in taken}


@pytest.mark.soak
def test_every_event_has_one_commit_and_one_follow_up(tmp_path: Path, place: Place) -> None:
    (tmp_path / "kill_commit_handlers.py").write_text(HANDLERS, encoding="utf-8")
    asyncio.run(publish(place))
    rng = random.Random(7)
    for _ in range(KILLS):
        killed(tmp_path, place, rng)
    assert start(tmp_path, place, "--until-idle").wait(timeout=2 * PATIENCE_S) == 0
    rows, made, billed, states = asyncio.run(found(place))
    numbers = [str(number) for number in range(EVENTS)]
    assert states == {"acked"}
    assert rows == dict.fromkeys(numbers, 1)
    assert list(made.values()) == [1] * EVENTS
    assert billed == list(range(EVENTS))
    assert set(lines(tmp_path / "called")) == set(numbers)
