"""From accepted batches to rows that can be read, in one process."""

from holdfast import pipeline
from holdfast.metrics.manifest import Kind
from holdfast.objects.stack import open_store
from tests.unit.pipeline.field import Field, agrees, generations


async def test_every_row_is_the_one_that_plain_python_computes() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(1)
        ran = await pipeline.run(store)
        assert [each.job for each in ran] == ["reconcile", "rollup", "index", "feed"]
        assert {each.status for each in ran} == {"success"}
        assert await agrees(store, field.batches) > 20
        assert len(await generations(store, Kind.INDEX)) >= 2


async def test_a_second_run_finds_nothing_to_do() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await field.season(2)
        await pipeline.run(store)
        assert await pipeline.run(store) == []
