"""Drivers that are killed with SIGKILL, wherever: the next one goes on with the run, and the rows are the same."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.platform import census
from holdfast.platform.census import Emits
from holdfast.platform.session import Session
from holdfast.telemetry.rollup.manifest import Kind
from tests.integration.run_places import Place
from tests.tidy.tree import ROOT
from tests.unit.pipeline.field import Field, agrees, generations
from tests.unit.pipeline.test_feed import emit

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


def killed(place: Place, prefix: str, nth: int, when: str, master: str = "local", *jobs: str) -> None:
    """Run a driver that kills itself at this point."""
    words = [place.uri, prefix, str(nth), when, master, *jobs]
    command = [sys.executable, "-m", "tests.integration.pipeline_driver", *words]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **place.environ}, timeout=110 if master == "local" else 300, check=False
    )
    assert done.returncode == -signal.SIGKILL


async def resumed(place: Place, *jobs: str, lives: int) -> None:
    """The next driver ends what the killed ones began."""
    async with place.open() as store:
        ran = await pipeline.run(store, jobs, options=QUICK)
        assert {each.status for each in ran} == {"success"}
        assert [each.job for each in ran if each.resumed]
        found = await pipeline.history(store)
        assert {summary.status for summary, _ in found} == {"success"}
        assert max(summary.session for summary, _ in found) == lives
        assert await pipeline.run(store, jobs, options=QUICK) == []


@pytest.mark.parametrize(("prefix", "nth", "when"), POINTS)
def test_the_next_driver_goes_on_where_a_killed_one_stood(place: Place, prefix: str, nth: int, when: str) -> None:
    async def prepare() -> Field:
        async with place.open() as store:
            field = Field(store)
            await field.season(7, agents=2, batches=5)
            return field

    async def check(field: Field) -> None:
        async with place.open() as store:
            assert await agrees(store, field.batches) > 20
            assert all(each.number == 1 for each in await generations(store, Kind.ROLLUP))

    field = asyncio.run(prepare())
    killed(place, prefix, nth, when)
    asyncio.run(resumed(place, lives=2))
    asyncio.run(check(field))


@SOAK
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_one_driver_after_the_other_is_killed_over_s3(place: Place) -> None:
    async def prepare() -> Field:
        async with place.open() as store:
            field = Field(store)
            await field.season(8, agents=2, batches=5)
            return field

    async def check(field: Field) -> None:
        async with place.open() as store:
            assert await agrees(store, field.batches) > 20

    field = asyncio.run(prepare())
    killed(place, "meta/pipeline/reconcile.json", 1, "before")
    killed(place, "manifests/v1/", 2, "after")
    killed(place, "manifests/v1/", 1, "before")
    asyncio.run(resumed(place, lives=3))
    asyncio.run(check(field))


async def counted(store: Client) -> list[set[tuple[str, str]]]:
    """Who emitted what, as of every commit of the feed."""
    async with Session(store, store.ambient, census.TYPES) as onto:
        head = (await onto.info()).commit_id
        found = [await onto.query(Emits).as_of(commit).all() for commit in range(1, head + 1)]
    return [{(each.left_key, each.right_key) for each in commit} for commit in found]


async def emitting(store: Client) -> None:
    field = Field(store)
    await emit(field, 0, web_1=("load", "disk"), web_2=("load", "disk"))
    await emit(field, 1, web_1=("load", "disk"), web_2=("load",))
    await emit(field, 5, web_1=("load", "disk"))


@pytest.mark.parametrize(
    ("prefix", "nth", "when"),
    [
        pytest.param("meta/head.json", 1, "after", marks=SOAK),
        pytest.param("meta/head.json", 1, "before", marks=SOAK),
        pytest.param("commits/", 2, "after", marks=SOAK),
    ],
)
def test_every_hour_is_fed_to_the_ontology_once_whoever_is_killed(
    place: Place, prefix: str, nth: int, when: str
) -> None:
    async def without() -> list[set[tuple[str, str]]]:
        async with open_store("memory:") as store:
            await emitting(store)
            await pipeline.run(store, options=QUICK)
            return await counted(store)

    async def prepare() -> None:
        async with place.open() as store:
            await emitting(store)

    async def check() -> list[set[tuple[str, str]]]:
        async with place.open() as store:
            return await counted(store)

    asyncio.run(prepare())
    killed(place, prefix, nth, when)
    asyncio.run(resumed(place, lives=2))
    expected = asyncio.run(without())
    assert len(expected) == 3
    assert asyncio.run(check()) == expected
