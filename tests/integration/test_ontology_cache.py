"""The disk cache under a session: what never changes is read once by all sessions of a machine."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import holdfast
from holdfast.base.config import CacheSection
from holdfast.objects.client import Usage
from holdfast.ontology import Entity, Field
from holdfast.ontology.format import layout
from tests.integration.run_places import Place


class Customer(Entity):
    id: Field[str] = Field(primary_key=True)
    name: Field[str]


def opened(place: Place, cache: Path | None) -> AbstractAsyncContextManager[holdfast.Holdfast]:
    settings = place.settings.model_copy(update={"cache": CacheSection(dir=cache)})
    return holdfast.open(place.uri, settings=settings)


def reads(usage: Usage, *families: str) -> int:
    return sum(usage.at("get", family).requests for family in families)


async def test_a_second_session_reads_nothing_twice(place: Place, tmp_path: Path) -> None:
    async with opened(place, None) as hf, hf.ontology(Customer) as onto:
        for number in range(5):
            onto.ensure(Customer(id=f"c{number}", name="Ada"))
            await onto.commit()
    asked: list[int] = []
    for _ in range(2):
        async with opened(place, tmp_path / "cache") as hf:
            async with hf.ontology(Customer) as onto:
                assert len(await onto.all(Customer)) == 5
                onto.ensure(Customer(id="c0", name="Ada"))
                assert await onto.commit() is None
                assert await onto.commit(if_head=5) is None
            asked.append(reads(hf.store.usage, "commits"))
            assert hf.store.cache is not None
    assert asked[0] >= 6, "five data files and a manifest"
    assert asked[1] == 0


async def test_heads_and_indexes_are_never_taken_from_the_cache(place: Place, tmp_path: Path) -> None:
    async with opened(place, tmp_path / "cache") as hf, hf.ontology(Customer) as onto:
        assert await onto.all(Customer) == []
        async with opened(place, None) as other, other.ontology(Customer) as another:
            another.ensure(Customer(id="c1", name="Ada"))
            await another.commit()
        assert await onto.all(Customer) == [Customer(id="c1", name="Ada")]
    assert not layout.immutable(layout.HEAD)
    assert not layout.immutable(layout.index_key("entity", "Customer"))


async def test_without_a_folder_there_is_no_cache(place: Place) -> None:
    async with opened(place, None) as hf:
        assert hf.store.cache is None
