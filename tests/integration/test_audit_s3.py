"""An audit over S3: what is judged is what is old by the server's own clock, which keeps seconds."""

import asyncio

import pytest

from holdfast import pipeline
from holdfast.pipeline.jobs import audited
from tests.integration.run_places import Place
from tests.unit.pipeline.audit_desk import wrong
from tests.unit.pipeline.field import Field

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)

NOW = pipeline.Options(overlap_ns=0)


def test_a_store_over_s3_is_judged_by_its_own_clock(place: Place) -> None:
    async def work() -> None:
        async with place.open() as store:
            field = Field(store)
            await field.season(3, agents=2, batches=3)
            assert {each.status for each in await pipeline.run(store)} == {"success"}
            await store.delete(field.manifests[0].raw_blob_key)
            modified_ns = (await store.head(field.manifests[-1].key)).modified_ns
            while True:
                (ran,) = await pipeline.run(store, ["audit"], options=NOW)
                record = await audited.read(store, ran.summary["audit_id"])
                if record.through_unix_ns > modified_ns:
                    break
                await asyncio.sleep(0.2)
            assert wrong(record) == {("missing_blob", field.manifests[0].key)}
            assert record.checked["accepted"] == len(field.manifests)

    asyncio.run(work())
