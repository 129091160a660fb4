"""The job ``feed``: the index becomes entities and relations, hour by hour, and nothing is counted twice."""

from typing import Any

import pytest

from holdfast import pipeline
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.ontology import Entity, meta
from holdfast.ontology import Field as Column
from holdfast.pipeline import problems
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.feed import Feed
from holdfast.pipeline.options import Env, Options
from holdfast.platform import census
from holdfast.platform.census import Emits, Host, Series
from holdfast.platform.session import Session
from holdfast.telemetry.records import Gauge
from tests.unit.pipeline.field import HOUR, SECOND, START, Field

ONE_HOUR = Options(stale_hours=1)


async def emit(field: Field, hour: int, **metrics: tuple[str, ...]) -> None:
    """In this hour each host (an underscore stands for a dash) emits these metrics."""
    for agent, names in metrics.items():
        at = START + hour * HOUR + 60 * SECOND
        records: dict[int, Any] = {seq: Gauge(name, 1.0, at) for seq, name in enumerate(names, hour * 100)}
        await field.accept(agent.replace("_", "-"), "boot", records, at_ns=Ambient.system().clock.wall_ns())


async def state(store: Client) -> set[tuple[str, str]]:
    async with session(store) as onto:
        return {(one.left_key, one.right_key) for one in await onto.all(Emits)}


def session(store: Client) -> Session:
    return Session(store, store.ambient, census.TYPES)


async def commits(store: Client) -> int:
    async with session(store) as onto:
        return (await onto.info()).commit_id


async def fed(store: Client, options: Options = ONE_HOUR) -> list[int]:
    ran = await pipeline.run(store, options=options)
    assert {each.status for each in ran} <= {"success"}
    return [commit for each in ran if each.job == "feed" for commit in each.summary["commits"]]


async def test_every_hour_is_a_commit_and_who_stopped_is_one_query() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await emit(field, 0, web_1=("load", "disk"), web_2=("load", "disk"))
        await emit(field, 1, web_1=("load", "disk"), web_2=("load",))
        await emit(field, 3, web_1=("load", "disk"))
        assert await fed(store) == [1, 2, 3]
        assert await pipeline.run(store, ["feed"], options=ONE_HOUR) == []  # nothing new is no commit
        async with session(store) as onto:
            written = await onto.query(Emits).where(Emits.right_key == "disk").history_since(1).all()
            assert [(one.left_key, meta(one).retracted) for one in written] == [("web-2", True)]
            assert [await onto.query(Series).as_of(commit).count() for commit in (1, 2, 3)] == [4, 3, 2]
            assert [one.name for one in await onto.all(Host)] == ["web-1"]


async def test_what_was_seen_in_the_window_is_not_gone() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await emit(field, 0, web_1=("load", "disk"))
        await emit(field, 1, web_1=("load",))
        await emit(field, 2, web_1=("load",))
        await fed(store, Options(stale_hours=3))
        assert await state(store) == {("web-1", "load"), ("web-1", "disk")}
        await emit(field, 3, web_1=("load",))
        await fed(store, Options(stale_hours=3))
        assert await state(store) == {("web-1", "load")}


async def test_late_data_counts_while_its_hour_is_in_the_window() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await emit(field, 0, web_1=("load",))
        await emit(field, 1, web_1=("load",))
        await fed(store)
        await emit(field, 1, web_2=("load",))
        assert await fed(store) == [3]
        assert await state(store) == {("web-1", "load"), ("web-2", "load")}
        await emit(field, 0, web_3=("load",))
        now = store.ambient.clock.wall_ns()  # of an hour that has not ended
        await field.accept("web-9", "boot", {0: Gauge("load", 1.0, now), 1: Gauge("load", 1.0, now + 100 * HOUR)})
        assert await fed(store) == []
        assert await state(store) == {("web-1", "load"), ("web-2", "load")}


class Died(BaseException):
    """The driver is no more."""


async def test_a_driver_that_dies_after_its_commit_makes_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await emit(field, 0, web_1=("load",))
        await emit(field, 1, web_1=("load", "disk"))
        await pipeline.run(store, ["reconcile", "derive"], options=ONE_HOUR)
        count = Feed._count

        async def dies(self: Feed, planned: dict[str, Any]) -> dict[str, Any]:
            await count(self, planned)
            raise Died

        monkeypatch.setattr(Feed, "_count", dies)
        with pytest.raises(Died):
            await pipeline.run(store, ["feed"], options=ONE_HOUR)
        assert await commits(store) == 1
        monkeypatch.setattr(Feed, "_count", count)
        (ran,) = await pipeline.run(store, ["feed"], options=ONE_HOUR, takeover=True)
        assert ran.resumed
        assert ran.summary["commits"] == [2]
        assert await commits(store) == 2
        assert await state(store) == {("web-1", "load"), ("web-1", "disk")}


async def test_two_drivers_count_an_hour_once() -> None:
    async with open_store("memory:") as store:
        field = Field(store)
        await emit(field, 0, web_1=("load",))
        await pipeline.run(store, ["reconcile", "derive"], options=ONE_HOUR)
        env = Env(store, store.ambient, Inline(), ONE_HOUR)
        paused, other = Feed(env), Feed(env)
        (planned,) = (await paused._plan())["hours"]
        await emit(field, 1, web_1=("disk",))
        await pipeline.run(store, ["reconcile", "derive"], options=ONE_HOUR)
        for each in (await other._plan())["hours"]:
            await other._count(each)
        assert await paused._count(planned) == {"commit": None, "rows": 0}
        assert await state(store) == {("web-1", "disk")}


class OwnHost(Entity, name="Host"):
    name: Column[str] = Column(primary_key=True)


class Taken(Entity, name="FleetHost"):
    name: Column[str] = Column(primary_key=True)
    rack: Column[int]


async def test_types_of_users_are_left_alone_and_one_of_the_same_name_is_a_problem_on_record() -> None:
    async with open_store("memory:") as store:
        await emit(Field(store), 0, web_1=("load",))
        async with Session(store, store.ambient, [OwnHost, Taken]) as onto:
            onto.ensure([OwnHost(name="mine"), Taken(name="mine", rack=1)])
            await onto.commit()
            ran = (await pipeline.run(store, options=ONE_HOUR))[-1]
            assert (ran.job, ran.summary["broken_hours"]) == ("feed", 1)
            assert "FleetHost" in (await problems.every(store))[0].problem.message
            assert [each.name for each in await onto.all(OwnHost)] == ["mine"]
            assert [each.name for each in await onto.all(Taken)] == ["mine"]
