"""Sessions that share a name, a lock that keeps vanishing, a writer that is killed: nothing is lost or doubled."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import holdfast
from holdfast.ontology import Entity, Field
from holdfast.ontology.format import layout
from tests.integration.run_places import Place

ROOT = Path(__file__).parents[2]

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


async def test_a_killed_writer_leaves_all_acknowledged_writes_and_one_more_at_most(place: Place) -> None:
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
