"""An ontology on real stores, with several sessions at once."""

import asyncio
from contextlib import AbstractAsyncContextManager

import pytest

import holdfast
from holdfast.ontology import Entity, Field
from tests.integration.run_places import Place
from tests.unit.ontology.plain import PlainReader

pytestmark = pytest.mark.parametrize("place", ["s3"], indirect=True)


class Counter(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


async def test_sessions_that_share_a_store_lose_nothing(place: Place) -> None:
    def opened() -> AbstractAsyncContextManager[holdfast.Holdfast]:
        return holdfast.open(place.uri, settings=place.settings)

    async def work(name: str) -> None:
        async with opened() as hf, hf.ontology(Counter) as onto:
            for value in range(3):
                onto.ensure(Counter(id=name, value=value))
                assert await onto.commit(metadata={"by": name}) is not None

    await asyncio.gather(*(work(f"w{number}") for number in range(3)))
    async with opened() as hf, hf.ontology(Counter) as onto:
        assert await onto.all(Counter) == [Counter(id=f"w{number}", value=2) for number in range(3)]
        reader = PlainReader(hf.store)
        head = await reader.head()
        chain = await reader.chain(head["manifest_path"])
        assert [manifest["commit_id"] for manifest in chain] == list(range(9, 0, -1))
        assert set(await reader.latest("entity", "Counter")) == {"w0", "w1", "w2"}
        info = await onto.info()
        assert (info.index_lag, info.last_index_warning) == (0, None)
