"""What queries cost, place at the server; and that all of them give the same rows whatever upkeep has done."""

import random
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.base.config import CacheSection, OntologySection, Settings
from holdfast.base.ids import Ambient
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.maintain.compact import Compactor
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.refs import TypeId
from tests.fakes.fault_plans import DelayResponse, Plan, Rule
from tests.fakes.fault_proxy import FaultProxy
from tests.integration.proxy_kit import settings
from tests.integration.run_places import Place, memory, place_for
from tests.integration.servers import S3Server

SLOW = Plan.of(Rule(fault=DelayResponse(40), verb="get"))
COMMITS = 12


class Thing(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Link(Relation[Thing, Thing]):
    weight: Field[int]


THING, LINK = TypeId("entity", "Thing"), TypeId("relation", "Link")


def without_compaction(settings: Settings) -> Settings:
    return settings.model_copy(update={"ontology": OntologySection(compaction="off")})


@pytest.fixture
def bucket(ministack: S3Server) -> str:
    name = f"requests-{Ambient.system().ids.unique()}"
    ministack.create_bucket(name)
    return name


async def test_requests_at_the_server(ministack: S3Server, bucket: str) -> None:
    async with FaultProxy(ministack.endpoint) as proxy:
        address, chosen = f"s3://{bucket}?endpoint={proxy.endpoint}", without_compaction(settings(ministack))
        async with holdfast.open(address, settings=chosen) as hf, hf.ontology(Thing, Link) as onto:
            for number in range(COMMITS):
                onto.ensure([Thing(id=f"{number:02d}-{row}", value=number) for row in range(3)])
                await onto.commit()
        async with holdfast.open(address, settings=chosen) as hf, hf.ontology(Thing, Link) as onto:
            query = onto.query(Thing)
            proxy.counts.clear()
            assert (await query.where(Thing.id == "07-1").one()).value == 7
            assert proxy.counts.by_answer() == {"get 200": 4}, "head, manifest, index, the one file"
            proxy.counts.clear()
            proxy.use(SLOW)
            assert await query.count() == 36
            assert proxy.counts.served() == 1 + 11, "head, and the files that were not here yet"
            assert proxy.counts.most_at_once >= 8, "at the same time"
            proxy.use(Plan())
            for ask in (query.all, query.count, query.as_of(3).all, query.with_history().all, query.explain):
                proxy.counts.clear()
                await ask()
                assert proxy.counts.by_answer() == {"get 304": 1}, "is there anything new?"


async def test_a_point_lookup_at_the_server_where_every_commit_touches_keys_at_random(
    ministack: S3Server, bucket: str
) -> None:
    """Key ranges of all files hold the key; sketches of their keys say in which of them it is."""
    async with FaultProxy(ministack.endpoint) as proxy:
        address = f"s3://{bucket}?endpoint={proxy.endpoint}"
        chosen = without_compaction(settings(ministack))
        rng = random.Random(5)  # the same keys in every run
        async with holdfast.open(address, settings=chosen) as hf, hf.ontology(Thing, Link) as onto:
            onto.ensure([Thing(id=f"{number:05d}", value=0) for number in range(5_000)])
            await onto.commit()
            for commit_id in range(1, 30):
                some = {0, 4_999, *rng.sample(range(1, 4_999), 20)} - {3_100} | ({3_100} if commit_id == 17 else set())
                onto.ensure([Thing(id=f"{number:05d}", value=commit_id) for number in some])
                if commit_id % 3 == 0:
                    onto.ensure([Link(left_key=f"{n:05d}", right_key="00000", weight=n) for n in (0, commit_id, 4_999)])
                await onto.commit()
        for compacted in (False, True):
            async with holdfast.open(address, settings=chosen) as hf:
                if compacted:
                    for type_id in (THING, LINK):
                        await Compactor(hf.store, hf.ambient).compact(type_id)
                async with hf.ontology(Thing, Link) as onto:
                    proxy.counts.clear()
                    assert (await onto.query(Thing).where(Thing.id == "03100").one()).value == 17
                    # head, manifest, index, and of 30 files the first load and the one commit; then a snapshot of both
                    assert proxy.counts.by_answer() == {"get 200": 4 if compacted else 5}
                async with hf.ontology(Thing, Link) as onto:
                    proxy.counts.clear()
                    (found,) = await onto.query(Link).where(Link.left_key == "00012").all()
                    assert found.weight == 12
                    assert proxy.counts.by_answer() == {"get 200": 4}


@pytest.fixture
def place() -> Place:
    return memory()


@pytest.fixture(params=["file", "s3"])
def real(request: pytest.FixtureRequest) -> Place:
    return place_for(request)


async def test_get_and_all_are_queries(real: Place, tmp_path: Path) -> None:
    """A new session reads the head, a manifest, the index and the files that can hold the key; after that, the head.

    With a disk cache that has the files and the manifest, the head and the index.
    """
    plain = without_compaction(real.settings)
    cached = plain.model_copy(update={"cache": CacheSection(dir=tmp_path / "cache")})
    things = [Thing(id=f"{number:02d}-{row}", value=number) for number in range(60) for row in range(3)]

    async def costs(settings: Settings, ask: Callable[[Ontology], Awaitable[Any]], expected: Any) -> list[int]:
        """Requests of a first and of a second call."""
        found = []
        async with holdfast.open(real.uri, settings=settings) as hf, hf.ontology(Thing, Link) as onto:
            for _ in range(2):
                before = hf.store.usage.requests()
                assert await ask(onto) == expected
                found.append(hf.store.usage.requests() - before)
        return found

    async with holdfast.open(real.uri, settings=plain) as hf, hf.ontology(Thing, Link) as onto:
        for number in range(60):
            onto.ensure(things[3 * number : 3 * number + 3])
            await onto.commit()

    assert await costs(plain, lambda onto: onto.get(Thing, "07-1"), things[22]) == [4, 1]
    assert await costs(plain, lambda onto: onto.get(Thing, "07-9"), None) == [3, 1]
    assert await costs(plain, lambda onto: onto.get(Link, "07-1", "07-2"), None) == [3, 1]
    assert await costs(plain, lambda onto: onto.all(Thing), things) == [63, 1]
    assert await costs(cached, lambda onto: onto.all(Thing), things) == [63, 1]
    for _ in range(2):
        assert await costs(cached, lambda onto: onto.all(Thing), things) == [2, 1]
        assert await costs(cached, lambda onto: onto.get(Thing, "07-1"), things[22]) == [2, 1]


async def one_by_one(place: Place, commits: int, *, fresh: bool, ask_at: Collection[int]) -> int:
    """Commits of one thing each, by one session or by a new one for each, and cold questions in the midst of them and
    at the end: the most requests that one of these took.
    """
    most = 0
    async with holdfast.open(place.uri, settings=place.settings) as hf:
        onto = hf.ontology(Thing, Link)
        for number in range(commits):
            onto.ensure(Thing(id=f"{number:05d}", value=number))
            await onto.commit()
            if fresh:
                await onto.close()
                onto = hf.ontology(Thing, Link)
            if number + 1 in ask_at:
                most = max(most, await of_a_cold_question(place, number + 1))
        await onto.close()
    return max(most, await of_a_cold_question(place, commits))


async def of_a_cold_question(place: Place, things: int) -> int:
    """Requests of a new session that reads all things."""
    async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Thing, Link) as onto:
        before = hf.store.usage.requests()
        assert [thing.id for thing in await onto.query(Thing).all()] == [f"{number:05d}" for number in range(things)]
        return hf.store.usage.requests() - before


FRESH = pytest.mark.parametrize("fresh", [False, True], ids=["one writer", "a new writer for each commit"])


@FRESH
async def test_a_cold_question_takes_few_requests_without_a_manual_compaction(real: Place, fresh: bool) -> None:
    """Of more commits test_tiers shows it."""
    assert await one_by_one(real, 70 if fresh else 150, fresh=fresh, ask_at=range(1, 150, 7)) <= 30


@pytest.mark.soak
@FRESH
async def test_a_cold_question_takes_few_requests_at_any_time_of_2000_commits(place: Place, fresh: bool) -> None:
    assert await one_by_one(place, 2_000, fresh=fresh, ask_at={*range(1, 101), *range(101, 2_000, 29)}) <= 30
