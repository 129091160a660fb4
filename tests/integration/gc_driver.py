"""Processes for tests of garbage collection.

    python -m tests.integration.gc_driver collect URI NAME VARIANT COUNT     a collector that leaves some half done
    python -m tests.integration.gc_driver sweep URI PREFIX NTH before|after  a collector of garbage that kills itself

A collector prints each accepted batch, one per line.
"""

import asyncio
import sys

from holdfast import pipeline
from holdfast.base.config import load
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.open import backend, open_store
from holdfast.objects.store import ADDRESSED
from holdfast.objects.uri import StoreSpec
from holdfast.pipeline.gc.options import GcOptions
from holdfast.telemetry.accept.accept import Accepted
from holdfast.telemetry.accept.authority import Acceptance, open_authority
from holdfast.telemetry.accept.collector import Collector, CollectorOptions
from tests.integration.pipeline_driver import Mortal
from tests.unit.pipeline.gc_desk import frame

IMPATIENT = pipeline.Options(lease_ttl_ms=300, gc=GcOptions(horizon_ns=0, grace_ns=0))


async def collect(uri: str, name: str, variant: str, count: str) -> None:
    async with open_store(StoreSpec.parse(uri, load())) as store:
        authority = await open_authority(store, store.ambient, store.place, Acceptance.S3_MANIFEST)
        collector = Collector(store, store.ambient, authority, CollectorOptions(name))
        for number in range(int(count)):
            submission = frame(number, int(variant))
            if number % 5 == int(variant):  # it dies between bytes and manifest
                await store.put(submission.blob_key, submission.body, ADDRESSED)
                continue
            answer = await collector.accept(submission)
            if isinstance(answer, Accepted):
                sys.stdout.write(f"{answer.manifest.key} {answer.manifest.frame_sha256}\n")


async def sweep(uri: str, prefix: str, nth: str, when: str) -> None:
    spec = StoreSpec.parse(uri, load())
    ambient = Ambient.system()
    async with Client(
        Mortal(backend(spec), prefix, int(nth), when), ambient=ambient, retry=spec.retry, spec=spec
    ) as store:
        await pipeline.run(store, ["gc"], options=IMPATIENT, request={"kinds": ["orphans"], "apply": True})


if __name__ == "__main__":
    asyncio.run({"collect": collect, "sweep": sweep}[sys.argv[1]](*sys.argv[2:]))
