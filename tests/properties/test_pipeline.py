"""Whatever comes in, in whatever order, and however often the pipeline runs in between: the rows are those that plain
Python computes from all batches, and each record counts once."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import pipeline
from holdfast.base.errors import Conflict, Fenced
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.pipeline import Options, units
from holdfast.telemetry.rollup.layout import Windows
from tests.soak import examples
from tests.unit.pipeline.field import START, Field, agrees, derived_keys

SMALL_UNITS = Options(records_per_unit=20, lease_ttl_ms=300)
"""Agents are divided into several buckets, and into more of them as data comes in."""
NEVER = 1 << 62


@examples(4)
@given(
    seed=st.integers(0, 10**6),
    stages=st.integers(1, 3),
    agents=st.integers(1, 5),
    hours=st.sampled_from((1, 2, 26)),
    small=st.booleans(),
    closed=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
async def test_late_overlapping_and_repeated(
    seed: int, stages: int, agents: int, hours: int, small: bool, closed: tuple[bool, ...]
) -> None:
    """Hours that are closed are merged, in some of the stages and not in others."""
    async with open_store("memory:") as store:
        field = Field(store)
        for stage in range(stages):
            await field.season(seed + stage, agents=agents, batches=4, hours=hours, gap=100 * (stage % 2))
            options = replace(SMALL_UNITS if small else Options(), merge_after_ns=0 if closed[stage] else NEVER)
            await pipeline.run(store, options=options, request={"full": True} if stage else None)
        compared = await agrees(store, field.batches)
        assert (compared > 0) == any(len(each.samples) or len(each.histograms) for each in field.batches)


async def test_a_task_that_works_on_a_few_agents_at_a_time_writes_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = []
    for records in (1, 10**6):
        monkeypatch.setattr(units, "RECORDS_AT_ONCE", records)
        async with open_store("memory:") as store:
            field = Field(store)
            await field.season(3)
            ran = await pipeline.run(store)
            assert [(each.job, each.status) for each in ran] == [
                (job, "success") for job in ("reconcile", "derive", "feed")
            ]
            assert await pipeline.run(store) == []
            assert await agrees(store, field.batches) > 20
            published.append(await derived_keys(store))
    assert published[0] == published[1]


async def test_other_windows_give_a_new_generation_of_every_hour_that_is_asked_for() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(11)
        await pipeline.run(store)
        options = Options(windows=Windows.of(["30s", "1h"]))
        await pipeline.run(store, ["derive"], options=options, request={"since_ns": START})
        assert await agrees(store, field.batches, ["30s", "1h"]) > 0


async def drive(store: Client) -> str:
    try:
        await pipeline.run(store, options=SMALL_UNITS, takeover=True)
    except (Fenced, Conflict) as error:
        return error.kind
    return "done"


@pytest.mark.parametrize("seed", range(6))
async def test_drivers_at_once_make_the_rows_of_one(seed: int) -> None:
    async with open_store(f"memory:at-once-{seed}") as one, open_store(f"memory:at-once-{seed}") as two:
        field = Field(one)
        await field.season(seed)
        answer = await asyncio.gather(drive(one), drive(two), drive(one))
        assert set(answer) <= {"done", "fenced", "conflict"}
        await pipeline.run(two, options=SMALL_UNITS)
        await agrees(one, field.batches)
