"""From accepted batches to rows that can be read, in one process."""

import pytest

from holdfast import pipeline
from holdfast.objects.open import open_store
from holdfast.pipeline import units
from holdfast.pipeline.units import Planned
from holdfast.telemetry.rollup.listing import Listed
from holdfast.telemetry.rollup.manifest import Kind, Unit
from tests.unit.pipeline.field import Field, agrees, derived_keys, generations


async def test_every_row_is_the_one_that_plain_python_computes() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(1)
        ran = await pipeline.run(store)
        assert [each.job for each in ran] == ["reconcile", "derive", "feed"]
        assert {each.status for each in ran} == {"success"}
        assert await agrees(store, field.batches) > 20
        assert len(await generations(store, Kind.ROLLUP)) >= 2


async def test_a_task_works_on_a_few_agents_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    published = []
    for records in (1, 10**6):
        monkeypatch.setattr(units, "RECORDS_AT_ONCE", records)
        async with open_store("memory:") as store:
            field = Field(store)
            await field.season(3)
            ran = await pipeline.run(store)
            assert {each.status for each in ran} == {"success"}
            assert await agrees(store, field.batches) > 20
            published.append(await derived_keys(store))
    assert published[0] == published[1]


def test_shares_are_of_whole_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(units, "RECORDS_AT_ONCE", 100)
    agents = ["a"] * 3 + ["b"] * 2 + ["c"] + ["d"]
    rows = [row(agent, number, 30) for number, agent in enumerate(agents)]
    planned = Planned(Unit(Kind.ROLLUP, 0, 1, 0, tuple(each.input for each in rows), "v"), rows[::-1])
    shares = list(planned.shares())
    assert [len(share) for share in shares] == [3, 3, 1]
    assert {each.blob_key for share in shares for each in share} == {each.blob_key for each in rows}


def row(agent: str, number: int, records: int) -> Listed:
    return Listed(f"{number:064x}", agent, "boot", number, number, "0" * 64, f"blob-{number}", 1, 0, records, 0, 1)


async def test_a_second_run_finds_nothing_to_do() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(2)
        await pipeline.run(store)
        assert await pipeline.run(store) == []
