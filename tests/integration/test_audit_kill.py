"""An audit whose driver is killed with SIGKILL: the next one goes on with it, and keeps one record."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import pipeline
from holdfast.objects.open import open_store
from holdfast.pipeline.jobs import audited
from tests.tidy.tree import ROOT
from tests.unit.pipeline.field import Field

QUICK = pipeline.Options(lease_ttl_ms=300, overlap_ns=0)
POINTS = [
    ("meta/pipeline/staged/", 6, "after"),  # the listings are staged, and some of what they are compared with
    ("meta/pipeline/audits/v1/", 2, "before"),  # the record itself
]


@pytest.mark.soak
@pytest.mark.parametrize(("prefix", "nth", "when"), POINTS)
def test_the_next_driver_goes_on_with_an_audit(tmp_path: Path, prefix: str, nth: int, when: str) -> None:
    uri = f"file:{tmp_path / 'store'}"

    async def prepare() -> None:
        async with open_store(uri) as store:
            await Field(store).season(7, agents=1, batches=3)
            assert {each.status for each in await pipeline.run(store)} == {"success"}

    async def resume() -> None:
        async with open_store(uri) as store:
            ran = await pipeline.run(store, ["audit"], options=QUICK)
            assert [(each.status, each.resumed) for each in ran] == [("success", True), ("success", False)]
            records = [each async for each in audited.latest(store)]
            assert sorted(each.run_id for each in records) == sorted(each.run_id for each in ran)
            assert all(each.good for each in records)

    asyncio.run(prepare())
    command = [
        sys.executable,
        "-m",
        "tests.integration.pipeline_driver",
        uri,
        prefix,
        str(nth),
        when,
        "local",
        "audit",
    ]
    done = subprocess.run(command, cwd=ROOT, env=dict(os.environ), timeout=110, check=False)
    assert done.returncode == -signal.SIGKILL
    asyncio.run(resume())
