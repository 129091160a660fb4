"""Drivers that are killed with SIGKILL, wherever: the next one goes on with the run, and the rows are the same."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from holdfast import pipeline
from holdfast.telemetry.rollup.manifest import Kind
from tests.integration.run_places import Place
from tests.tidy.tree import ROOT
from tests.unit.pipeline.field import Field, agrees, generations

QUICK = pipeline.Options(lease_ttl_ms=300, merge_after_ns=0)

SOAK = pytest.mark.soak
POINTS = [
    pytest.param("runs/", 2, "after", marks=SOAK),  # the plan is recorded
    pytest.param("batches-by-hour/", 1, "after", marks=SOAK),
    pytest.param("meta/pipeline/due/rollup/", 1, "before", marks=SOAK),
    pytest.param("meta/pipeline/due/daily/", 1, "before", marks=SOAK),  # published, and the day is not due
    pytest.param("meta/pipeline/reconcile.json", 1, "before", marks=SOAK),
    pytest.param("rollup/", 3, "after", marks=SOAK),
    ("manifests/v1/", 3, "before"),  # of the first generation
    pytest.param("manifests/v1/", 3, "after", marks=SOAK),
    pytest.param("index/", 1, "after", marks=SOAK),
]


def killed(place: Place, prefix: str, nth: int, when: str, master: str = "local") -> None:
    """Run a driver that kills itself at this point."""
    words = [place.uri, prefix, str(nth), when, master]
    command = [sys.executable, "-m", "tests.integration.pipeline_driver", *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **place.environ}, timeout=110 if master == "local" else 300, check=False
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("prefix", "nth", "when"), POINTS)
def test_the_next_driver_continues_where_a_killed_one_stopped(place: Place, prefix: str, nth: int, when: str) -> None:
    async def prepare() -> Field:
        async with place.open() as store:
            field = Field(store)
            await field.season(7, agents=2, batches=5)
            return field

    async def resumed(field: Field) -> None:
        async with place.open() as store:
            ran = await pipeline.run(store, options=QUICK)
            assert {each.status for each in ran} == {"success"}
            assert [each.job for each in ran if each.resumed]
            found = await pipeline.history(store)
            assert {summary.status for summary, _ in found} == {"success"}
            assert max(summary.session for summary, _ in found) == 2
            assert await pipeline.run(store, options=QUICK) == []
            assert await agrees(store, field.batches) > 20
            assert all(each.number == 1 for each in await generations(store, Kind.ROLLUP))

    field = asyncio.run(prepare())
    killed(place, prefix, nth, when)
    asyncio.run(resumed(field))
