"""Garbage collection on real stores: beside live collectors in processes of their own, and killed in the middle."""

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys

import pytest

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.store import ADDRESSED, CREATE
from holdfast.pipeline.gc.sweep import intents
from holdfast.pipeline.jobs import audited
from holdfast.pipeline.jobs.audited import Audited
from holdfast.telemetry.accept import layout
from holdfast.telemetry.accept.conflicts import Resolution, Resolutions, conflicts
from holdfast.telemetry.accept.manifest import ConflictManifest
from tests.integration.gc_driver import IMPATIENT
from tests.integration.run_places import Place
from tests.tidy.tree import ROOT
from tests.unit.pipeline.gc_desk import frame

BATCHES = 25
TRIES = 100


def started(place: Place, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.gc_driver", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **place.environ}, stdout=subprocess.PIPE, text=True)


async def audit(store: Client) -> None:
    """An audit as it stands on record: through a moment of the store's, before anything is judged by it."""
    ident = store.ambient.ids.unique()
    began = audited.began_key(ident)
    await store.put(began, b"{}", CREATE)
    through = (await store.head(began)).modified_ns
    record = Audited(f"{through:020d}-{ident}", "run", ("ingest",), audited.SCAN, 1, through, through, through)
    await store.put(record.key, record.encode("w"), CREATE)


async def collect(store: Client) -> dict[str, int]:
    await audit(store)
    [ran] = await pipeline.run(
        store, ["gc"], options=IMPATIENT, request={"kinds": ["orphans"], "apply": True}, wait_ms=60_000
    )
    assert ran.status == "success"
    found: dict[str, int] = ran.summary["kinds"]["orphans"]["removed"]
    return found


async def resolve(store: Client) -> int:
    found = [each async for each in conflicts(store) if isinstance(each, ConflictManifest)]
    for each in found:
        await Resolutions(store, store.ambient).decide(
            each.identity,
            each.submitted_frame_sha256,
            Resolution.EXISTING_IS_AUTHORITATIVE,
            by="operator",
            why="a test",
        )
    return len(found)


@pytest.mark.soak
@pytest.mark.timeout(300)  # processes of their own, on a busy machine
async def test_live_collectors_lose_nothing_to_a_collector_of_garbage_without_patience(place: Place) -> None:
    live = [started(place, "collect", place.uri, f"c{number}", str(number % 2), str(BATCHES)) for number in range(3)]
    removed = 0
    async with place.open() as store:
        while any(process.poll() is None for process in live):
            await resolve(store)
            removed += sum((await collect(store)).values())
        answer = [line for process in live for line in process.communicate()[0].splitlines()]
        assert [process.returncode for process in live] == [0, 0, 0]
        # Times of an S3 server have whole seconds: what came in the second of an audit is for the next one.
        resolved = 0
        for _ in range(TRIES):
            removed += sum((await collect(store)).values())
            resolved = await resolve(store)
            if resolved == BATCHES and len([key async for key in store.keys(layout.BLOBS)]) == BATCHES:
                break
            await asyncio.sleep(0.2)
        assert resolved == BATCHES  # two variants of each
    assert removed >= BATCHES  # bytes that lost come again, and go again
    found = place.contents()
    accepted = {key: json.loads(body) for key, body in found.items() if key.startswith(layout.ACCEPTED)}
    assert len(accepted) == BATCHES
    for manifest in accepted.values():
        assert hashlib.sha256(found[manifest["raw_blob_key"]]).hexdigest() == manifest["frame_sha256"]
    assert {line.split()[0]: line.split()[1] for line in answer}.items() <= {
        key: manifest["frame_sha256"] for key, manifest in accepted.items()
    }.items()
    assert len([key for key in found if key.startswith(layout.BLOBS)]) == BATCHES


@pytest.mark.parametrize("place", ["file"], indirect=True)
@pytest.mark.parametrize(
    ("prefix", "nth", "when"),
    [
        ("meta/pipeline/gc/v1/", 2, "after"),  # intended, and not deleted
        pytest.param("meta/pipeline/gc/v1/", 1, "after", marks=pytest.mark.soak),  # the run is on record
        pytest.param("meta/pipeline/gc/v1/", 2, "before", marks=pytest.mark.soak),  # nothing is intended yet
    ],
)
def test_the_next_driver_continues_where_a_killed_one_stopped(place: Place, prefix: str, nth: int, when: str) -> None:
    async def prepare() -> None:
        async with place.open() as store:
            for number in range(3):
                for variant in (0, 1):
                    submission = frame(number, variant)
                    await store.put(submission.blob_key, submission.body, ADDRESSED)
            await collect(store)
            await collect(store)
            assert await resolve(store) == 3
            await audit(store)

    async def check() -> None:
        async with place.open() as store:
            ran = await pipeline.run(store, ["gc"], options=IMPATIENT, request={"kinds": ["orphans"], "apply": True})
            assert {each.status for each in ran} == {"success"}
            assert [each.resumed for each in ran] == [True, False]
            assert len([key async for key in store.keys(layout.BLOBS)]) == 3
            answer = [intent async for intent in intents(store, ran[0].run_id)]
            intended = {key for intent in answer for key, *_ in intent.objects}
            assert len(intended) == 9, "the record of each conflict, its reference by blob, and its bytes"

    asyncio.run(prepare())
    process = started(place, "sweep", place.uri, prefix, str(nth), when)
    process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL
    asyncio.run(check())
