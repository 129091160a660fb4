"""Collectors racing on real stores; afterwards the objects are read without our code."""

import asyncio
import hashlib
import json
from collections import Counter

import pytest

from holdfast.objects.place import Place as Address
from holdfast.sim.ingest_kit import submission
from holdfast.telemetry.accept.accept import Accepted, Answer, IdentityConflict
from holdfast.telemetry.accept.authority import Acceptance, open_authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from tests.integration.collectors import referred
from tests.integration.run_places import Place

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)

COLLECTORS = 4
BATCHES = 12


async def collect(place: Place, number: int, variants: int) -> list[Answer]:
    """One collector with a client of its own, sent every batch, in a variant of its own."""
    async with place.open() as store:
        authority = await open_authority(store, store.ambient, Address.of(store.spec), Acceptance.S3_MANIFEST)
        collector = Collector(store, store.ambient, authority, CollectorOptions(f"c{number}"))
        sent = (submission(batch, number % variants) for batch in range(BATCHES))
        return list(await asyncio.gather(*map(collector.accept, sent)))


@pytest.mark.parametrize("variants", [1, 2])
async def test_of_racing_collectors_one_accepts_each_batch(place: Place, variants: int) -> None:
    answers = await asyncio.gather(*(collect(place, number, variants) for number in range(COLLECTORS)))
    found = place.contents()
    families = Counter(key.split("/")[0] for key in found)
    assert families["accepted"] == len(referred(found)) == BATCHES
    assert families["quarantine"] == (BATCHES if variants == 2 else 0)
    for key in (key for key in found if key.startswith("accepted/")):
        manifest = json.loads(found[key])
        assert hashlib.sha256(found[manifest["raw_blob_key"]]).hexdigest() == manifest["frame_sha256"]
    new = [answer for each in answers for answer in each if isinstance(answer, Accepted) and not answer.duplicate]
    assert len({answer.manifest.identity for answer in new}) == len(new) == BATCHES
    refused = [answer for each in answers for answer in each if isinstance(answer, IdentityConflict)]
    assert len(refused) == (BATCHES * COLLECTORS // 2 if variants == 2 else 0)
    assert all(answer.quarantine is not None for answer in refused)
