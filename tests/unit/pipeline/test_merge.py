"""Small pieces of closed hours put together: the same rows in fewer objects, whoever does it, and beside whom."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast import pipeline
from holdfast.objects.client import Client
from holdfast.objects.layer import Layer
from holdfast.objects.open import open_store
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.layout import MERGE, due_key
from holdfast.pipeline.merge import Merge
from holdfast.pipeline.options import Env, Options
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.logs import Logs
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Gauge
from holdfast.telemetry.rollup import layout, listing
from holdfast.telemetry.rollup.manifest import Kind
from holdfast.telemetry.rollup.windows import Windows
from tests.unit.pipeline.field import HOUR, START, Field, derived_keys, generations
from tests.unit.pipeline.gc_desk import DAY
from tests.unit.pipeline.merge_desk import AT_ONCE, FIRST, NEVER, SECOND, Place, current, filled, inputs, merge


async def test_units_of_many_buckets_become_the_unit_that_one_bucket_gives() -> None:
    """Byte for byte: chunks, their names, and what is counted."""
    async with open_store("memory:") as many, open_store("memory:") as one:
        await Field(many).season(5, agents=7, batches=4, hours=2)
        await pipeline.run(many, options=NEVER)
        before = {each.hour: each for each in await generations(many, Kind.ROLLUP)}
        assert max(each.buckets for each in before.values()) >= 4
        await merge(many)
        after = {each.hour: each for each in await generations(many, Kind.ROLLUP)}
        assert {each.buckets for each in after.values()} == {1}
        await Field(one).season(5, agents=7, batches=4, hours=2)
        await pipeline.run(one, options=Options())
        assert await derived_rollups(many) == await derived_rollups(one)
        for hour, generation in before.items():
            assert await inputs(many, generation) == await inputs(many, after[hour])


async def derived_rollups(store: Store) -> dict[str, bytes]:
    return {key: body for key, body in (await derived_keys(store)).items() if key.startswith(layout.ROLLUP)}


def questions(store: Client) -> list[Callable[[], Awaitable[Any]]]:
    metrics = Metrics(store, store.ambient, Limits())
    logs = Logs(store, store.ambient, Limits())
    return [
        lambda: metrics.query("load", since=START, until=START + HOUR, step="1h", aggregate="sum", by=[]),
        lambda: logs.search("disk", since=START, until=START + HOUR),
    ]


async def cost(store: Client, question: Callable[[], Awaitable[Any]]) -> dict[str, int]:
    before = dict(store.usage.by_verb)
    await question()
    return {
        verb: count - before.get(verb, 0) for verb, count in store.usage.by_verb.items() if count > before.get(verb, 0)
    }


async def test_what_a_question_about_an_hour_costs_before_and_after() -> None:
    """Twelve rounds of the reconciler; eight agents, whose batches fall into five of eight buckets."""
    async with open_store("memory:") as store:
        await filled(store, rounds=12)
        generation = await current(store)
        assert (len(generation.listings), len(generation.units)) == (12, 5)
        rollup, logs = [await cost(store, each) for each in questions(store)]
        # Checkpoint and what it saw lately; the generation; a chunk of each unit.
        assert rollup["get"] == 2 + 1 + 5
        # The same; an index of words for each unit; the listings; the batches.
        assert logs["get"] == 2 + 1 + 5 + 12 + 8 * 12
        found = await merge(store)
        assert (found["listings"], found["published"], found["superseded"]) == (12, 1, 0)
        merged, searched = [await cost(store, each) for each in questions(store)]
        assert merged == {**rollup, "get": 2 + 1 + 1}
        assert searched == {**logs, "get": 2 + 1 + 5 + 1 + 8 * 12}


async def test_what_merging_an_hour_costs() -> None:
    async with open_store("memory:") as store:
        await filled(store)
        units = (await current(store)).units
        chunks = sum(len(unit.chunks) for unit in units)
        options = replace(AT_ONCE, windows=Windows.of(["10s", "1m", "5m", "1h"]))
        spent = await cost(store, lambda: merge(store, options))
        # What is marked; the generations of the hour, its listings, and these once more by who merges them.
        # The generation, by planner, task and publisher; each unit; whether the merged unit is there, and what it says;
        # three listings; each chunk. A PUT for each merged chunk, the unit, the generation and the listing.
        assert (len(units), chunks) == (5, 5 * 8)
        assert spent == {"list": 4, "get": 3 + len(units) + 2 + 3 + chunks, "put": 8 + 3, "delete": 1}


class Died(Exception):
    pass


class Dies(Layer):
    """The driver is killed at its nth write, before or after it."""

    def __init__(self, inner: Store, nth: int, *, after: bool) -> None:
        super().__init__(inner)
        self._left, self._after = nth, after

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        self._left -= 1
        if not self._left and not self._after:
            raise Died
        outcome = await super().put(key, body, mode)
        if not self._left:
            raise Died
        return outcome


@pytest.mark.soak
async def test_killed_at_any_write_and_done_again_gives_the_same(place: Place) -> None:
    answers = await place.answers()
    whole = place.copy()
    await whole.merged()
    deaths = 0
    for after in (False, True):
        for nth in range(1, 200):
            other = place.copy()
            try:
                await other.merge(Dies(other.store, nth, after=after)).run(Straight("merge"), {})
                break
            except Died:
                deaths += 1
            if nth % 6 == 0:
                assert await other.answers() == answers
            await other.merged()
            assert other.derived() == whole.derived()
            assert (await other.merged())["hours"] == []
    assert deaths > 30


async def test_of_two_drivers_one_publishes_and_nothing_is_different(place: Place) -> None:
    whole = place.copy()
    await whole.merged()
    slow, fast = place.merge(), place.merge()
    plan = await slow._plan({})
    staged = await slow._stage(plan)
    assert (await fast.run(Straight("fast"), {}))["published"] == 1
    assert (await slow._publish(plan, staged["made"]))["done"] == [FIRST]  # it finds what it would have written
    assert place.derived() == whole.derived()
    assert (await slow.run(Straight("slow"), {}))["hours"] == []


async def test_drivers_at_once_make_what_one_makes(place: Place) -> None:
    whole, both = place.copy(), place.copy()
    await whole.merged()
    found = await asyncio.gather(*(both.merge().run(Straight(name), {}) for name in "ab"))
    assert sum(each["published"] for each in found) >= 1
    await both.merged()
    assert both.derived() == whole.derived()


async def test_late_data_beside_a_merge_is_lost_by_nobody(place: Place) -> None:
    """Whoever publishes first, the other's hour stays due, and its marks stay."""
    slow = place.merge()
    plan = await slow._plan({})
    staged = await slow._stage(plan)
    field = Field(place.store)
    late = {900: Gauge("load", 5.0, START + SECOND, {"cpu": "0"})}
    await field.accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    await place.drive("reconcile", "rollup", options=NEVER)
    published = await slow._publish(plan, staged["made"])
    assert published["superseded"] == [FIRST]
    await slow._verify(plan, published)
    assert (await current(place.store)).buckets == 8
    answers = await place.answers()
    await place.merged()
    generation = await current(place.store)
    assert (generation.buckets, len(generation.listings)) == (1, 4)
    assert await place.answers() == answers


async def test_an_hour_is_closed_when_nothing_of_it_was_derived_for_a_day(place: Place) -> None:
    async def is_due() -> bool:
        return await Merge(Env(place.store, place.ambient, Inline(place.store), Options())).is_due()

    place.later(DAY - HOUR)
    assert not await is_due()
    late = {900: Gauge("load", 5.0, START + SECOND, {"cpu": "0"})}
    await Field(place.store).accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    await place.drive("reconcile", "rollup", options=NEVER)
    place.later(DAY - HOUR)
    assert not await is_due()
    place.later(HOUR)
    assert await is_due()


async def test_a_service_looks_for_closed_hours_once_an_hour() -> None:
    async with open_store("memory:") as store:
        await filled(store)
        stop = asyncio.Event()
        rounds: list[list[str]] = []

        async def after(ran: list[pipeline.Ran]) -> None:
            rounds.append([each.job for each in ran])
            await store.put(due_key(MERGE, FIRST, "0" * 64), b"{}")
            if len(rounds) == 3:
                stop.set()

        await pipeline.serve(
            store,
            ["rollup", "merge"],
            every_s=0.01,
            stop=stop,
            engine=Inline(store),
            options=AT_ONCE,
            on_round=after,
        )
        assert rounds == [["merge"], [], []]
        assert [each.job for each in await pipeline.run(store, ["merge"], options=AT_ONCE)] == ["merge"]


async def test_an_hour_that_was_merged_stays_so_until_there_is_something_to_be_made(place: Place) -> None:
    await place.merged()
    merged = await current(place.store)
    await place.drive("rollup", options=AT_ONCE, since_ns=START, until_ns=START + HOUR)
    assert await current(place.store) == merged
    late = {900: Gauge("load", 5.0, START + SECOND, {"cpu": "0"})}
    await Field(place.store).accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    before = await place.answers()
    await place.drive("reconcile", "rollup", options=NEVER)
    assert (await current(place.store)).buckets == 8
    assert await place.answers() == before
    await place.drive(options=AT_ONCE)
    assert (await current(place.store)).buckets == 1
    assert await place.answers() == before
    [merged_listing] = [key for key in place.keys(layout.BATCHES_BY_HOUR) if "merged-000004-" in key]
    assert len(await listing.read(place.store, [merged_listing])) == 25
