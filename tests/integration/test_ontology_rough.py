"""Sessions that share a name, a lock that keeps vanishing, a writer that is killed: nothing is lost or doubled."""

import asyncio
import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast.ontology import Entity, Field
from holdfast.ontology.format import layout
from tests.integration.run_places import Place
from tests.unit.ontology.plain import PlainReader

ROOT = Path(__file__).parents[2]
EACH = 6

WRITER = """
import asyncio, sys, holdfast
from tests.integration.test_ontology_rough import Entry

async def main():
    async with holdfast.open(sys.argv[1]) as hf, hf.ontology(Entry, runtime_id="killed") as onto:
        for number in range(100_000):
            onto.ensure(Entry(id=f"k{number}", value=number))
            commit = await onto.commit()
            print(commit.commit_id, number, flush=True)

asyncio.run(main())
"""


class Entry(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


@pytest.mark.soak
async def test_one_name_for_several_sessions_and_a_lock_that_keeps_vanishing(place: Place) -> None:
    done = asyncio.Event()

    async def write(name: str) -> list[int]:
        opened = holdfast.open(place.uri, settings=place.settings)
        async with opened as hf, hf.ontology(Entry, runtime_id="the same") as onto:
            made = []
            for value in range(EACH):
                onto.ensure(Entry(id=f"{name}-{value}", value=value))
                commit = await onto.commit()
                assert commit is not None
                made.append(commit.commit_id)
            return made

    async def meddle() -> None:
        rng = random.Random(3)
        async with holdfast.open(place.uri, settings=place.settings) as hf:
            while not done.is_set():
                await hf.store.delete(layout.LOCK)
                await asyncio.sleep(rng.uniform(0, 0.05))

    meddling = asyncio.ensure_future(meddle())
    try:
        made = await asyncio.gather(*(write(f"w{number}") for number in range(3)))
    finally:
        done.set()
        await meddling
    numbers = sorted(number for each in made for number in each)
    assert numbers == list(range(1, 3 * EACH + 1)), "each commit is one writer's, and none is missing"
    async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Entry) as onto:
        assert len(await onto.all(Entry)) == 3 * EACH
        reader = PlainReader(hf.store)
        chain = await reader.chain((await reader.head())["manifest_path"])
        assert [manifest["commit_id"] for manifest in chain] == list(range(3 * EACH, 0, -1))


async def test_a_killed_writer_leaves_all_that_it_was_told_and_one_more_at_most(place: Place) -> None:
    environ = {"HOLDFAST_ONTOLOGY__S3_LEASE_TTL_MS": "900", "PATH": "", "PYTHONPATH": str(ROOT), **place.environ}
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, place.uri],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    answer = [tuple(map(int, process.stdout.readline().split())) for _ in range(12)]
    process.send_signal(signal.SIGKILL)
    rest, complaints = process.communicate()
    assert process.returncode == -signal.SIGKILL, complaints
    answer += [tuple(map(int, line.split())) for line in rest.splitlines() if line.count(" ") == 1]
    async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Entry) as onto:
        entries = {entry.value for entry in await onto.all(Entry)}
        assert entries in ({value for _, value in answer}, {*range(len(answer) + 1)})
        onto.ensure(Entry(id="after", value=-1))
        commit = await onto.commit()  # the dead one's lock ends by itself
        assert commit is not None
        assert commit.commit_id == len(entries) + 1
        head = json.loads((await hf.store.get(layout.HEAD)).body)
        assert head["commit_id"] == commit.commit_id
