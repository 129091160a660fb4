"""Small pieces of closed hours put together: the same rows in fewer objects, whoever does it, and beside whom."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.ingest.frame import Limits
from holdfast.ingest.records import Counter, Gauge, Log
from holdfast.metrics import layout, listing
from holdfast.metrics.manifest import Generation, Kind, UnitManifest
from holdfast.objects.layer import Layer
from holdfast.objects.memory import Shelf
from holdfast.objects.stack import OpenStore, open_store
from holdfast.objects.store import OVERWRITE, Lost, Mode, Object, Store, Written
from holdfast.pipeline.audited import latest_complete
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc import derived as gc_derived
from holdfast.pipeline.merge import Merge
from holdfast.pipeline.options import Env, Options
from holdfast.pipeline.plan import read_generation
from holdfast.pipeline.tables import everything
from holdfast.platform.logs import Logs
from holdfast.platform.metrics import Metrics
from holdfast.sim.pipeline_kit import Straight
from tests.unit.pipeline.field import HOUR, START, Field, derived_keys, generations
from tests.unit.pipeline.gc_desk import DAY, GcDesk
from tests.unit.pipeline.healthy import copied
from tests.unit.pipeline.test_tables import bag, planned

SECOND = 1_000_000_000
AT_ONCE = Options(records_per_unit=20, merge_after_ns=0)
"""Several buckets, and hours that are closed as soon as they are derived."""
NEVER = Options(records_per_unit=20, merge_after_ns=1 << 62)
FIRST = layout.hour_of(START)


async def current(store: Store, hour: int = FIRST) -> Generation:
    found = await read_generation(store, Kind.ROLLUP, hour)
    assert found is not None
    return found


async def merge(store: OpenStore, options: Options = AT_ONCE) -> Document:
    """One run of the job, whatever is marked."""
    env = Env(store, store.ambient, Inline(store), options)
    return await Merge(env).run(Straight(store.ambient.ids.unique()), {})


async def filled(store: OpenStore, *, rounds: int = 3, agents: int = 8) -> Field:
    """One hour of several agents, reconciled in rounds and derived in the end, in several buckets."""
    field = Field(store)
    for turn in range(rounds):
        for number in range(agents):
            begin = turn * 10
            records: dict[int, Any] = {
                begin + n: Gauge("load", float(n), START + (begin + n) * SECOND, {"cpu": str(n % 2)}) for n in range(4)
            }
            records[begin + 4] = Counter("requests", turn, START + begin * SECOND, {})
            records[begin + 5] = Log("disk is full", START + begin * SECOND)
            await field.accept(f"agent-{number}", "boot", records, at_ns=store.ambient.clock.wall_ns())
        await pipeline.run(store, ["reconcile"], options=NEVER)
    await pipeline.run(store, options=NEVER)
    return field


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


async def inputs(store: Store, generation: Generation) -> list[str]:
    found: list[str] = []
    for unit in generation.units:
        manifest = UnitManifest.read(await store.get(layout.unit_key(generation.hour, unit.unit_id)))
        found += [each.id for each in manifest.unit.inputs]
    return sorted(found)


def questions(store: OpenStore) -> list[Callable[[], Awaitable[Any]]]:
    metrics = Metrics(store, store.ambient, Limits())
    logs = Logs(store, store.ambient, Limits())
    return [
        lambda: metrics.query("load", since=START, until=START + HOUR, step="1h", aggregate="sum", by=[]),
        lambda: logs.search("disk", since=START, until=START + HOUR),
    ]


async def cost(store: OpenStore, question: Callable[[], Awaitable[Any]]) -> dict[str, int]:
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


class Place(GcDesk):
    """An hour in several buckets and listings, long ago, on a shelf that can be copied."""

    def __init__(self, shelf: Shelf | None = None) -> None:
        super().__init__()
        self.shelf = Shelf() if shelf is None else shelf
        self.watch.ns = START + 100 * DAY

    def copy(self) -> "Place":
        return Place(copied(self.shelf))

    async def drive(self, *names: str, options: Options, **request: Any) -> None:
        """As ``holdfast pipeline run``; later, because runs are named by the time."""
        self.later(HOUR)
        ran = await pipeline.run(self.opened(), names, options=options, request=request)
        assert {each.status for each in ran} == {"success"}

    def merge(self, store: Store | None = None) -> Merge:
        own = self.opened() if store is None else store
        return Merge(Env(own, self.ambient, Inline(own), AT_ONCE))

    async def merged(self) -> Document:
        return await self.merge().run(Straight("merge"), {})

    async def answers(self, store: Store | None = None) -> list[Any]:
        metrics = Metrics(self.store if store is None else store, self.ambient, Limits())
        asked: dict[str, Any] = {"since": START, "until": START + HOUR}
        series = [
            await metrics.query("load", **asked, step=step, aggregate=aggregate)
            for step, aggregate in (("10s", "avg"), ("1m", "sum"), ("1h", "last"))
        ]
        series.append(await metrics.query("load", **asked, step="1h", aggregate="quantile", q=0.7))
        series.append(await metrics.query("requests", **asked, step="5m", aggregate="increase"))
        logs = await Logs(self.store if store is None else store, self.ambient, Limits()).search("disk", **asked)
        return [*(each.series for each in series), (await metrics.list(**asked)).rows, logs.rows]

    def derived(self) -> dict[str, bytes]:
        """What an observer of the hour can find; not marks, nor who did it."""
        families = (layout.ROLLUP, layout.INDEX, layout.MANIFESTS, layout.BATCHES_BY_HOUR)
        return {key: each.body for key, each in self.shelf.objects.items() if key.startswith(families)}


@pytest.fixture(scope="module")
def shelf() -> Shelf:
    place = Place()
    asyncio.run(filled(place.opened()))
    return place.shelf


@pytest.fixture
def place(shelf: Shelf) -> Place:
    return Place(copied(shelf))


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
    assert (await slow._publish(plan, staged["made"]))["superseded"] == [FIRST]
    assert place.derived() == whole.derived()
    assert (await slow.run(Straight("slow"), {}))["hours"] == []


async def test_drivers_at_once_make_what_one_makes(place: Place) -> None:
    whole, both = place.copy(), place.copy()
    await whole.merged()
    found = await asyncio.gather(*(both.merge().run(Straight(name), {}) for name in "ab"))
    assert sum(each["published"] for each in found) == 1
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


class Once(Layer):
    """Lets others work before the first read of such a key."""

    def __init__(self, inner: Store, prefix: str, work: Callable[[], Awaitable[Any]]) -> None:
        super().__init__(inner)
        self._prefix, self._work = prefix, [work]

    async def get(self, key: str) -> Object:
        if key.startswith(self._prefix) and self._work:
            await self._work.pop()()
        return await super().get(key)


@pytest.mark.parametrize("prefix", [layout.ROLLUP, layout.MANIFESTS])
async def test_a_reader_whose_chunks_were_merged_and_removed_begins_anew(place: Place, prefix: str) -> None:
    answers = await place.answers()

    async def others() -> None:
        await place.merged()
        place.later(3 * HOUR)
        removed = (await place.run("derived"))["kinds"]["derived"]["removed"]
        assert sum(removed.values()) > 10

    assert await place.answers(Once(place.store, prefix, others)) == answers
    assert await place.answers() == answers


async def test_what_was_merged_goes_as_garbage_and_an_audit_finds_nothing_wrong(place: Place) -> None:
    answers = await place.answers()
    await place.merged()
    late = {900: Gauge("load", 5.0, START + 59 * 60 * SECOND, {"cpu": "7"})}
    await Field(place.store).accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    await place.drive(options=AT_ONCE)
    place.later(3 * HOUR)
    removed = (await place.run("derived"))["kinds"]["derived"]["removed"]
    assert removed[gc_derived.UNNAMED] > 10
    generation = await current(place.store)
    named = {ref.key for unit in generation.units for ref in unit.chunks}
    assert {key for key in place.keys(layout.ROLLUP) if "window=1d" not in key} == named
    place.later(DAY)
    store = place.opened()
    [ran] = await pipeline.run(store, ["audit"], request={"deep": True, "scopes": ["ingest", "metrics"]})
    record = await latest_complete(store, "metrics")
    assert record is not None
    assert (ran.status, dict(record.found)) == ("success", {})
    assert record.checked["units derived again"] > 0
    assert [each for each in (await place.answers())[0] if each.labels["cpu"] != "7"] == answers[0]


@pytest.mark.parametrize("window", ["10s", "1h", "1d"])
async def test_a_task_whose_chunks_were_removed_since_the_query_was_planned_reads_what_took_their_place(
    place: Place, window: str
) -> None:
    """The hour is merged, then divided anew by late data of another series, and every time what was goes as garbage."""
    store = place.opened()
    expected = bag(await everything(store, {"table": "rollup", "window": window}))
    table, parts, wanted = await planned(store, {"table": "rollup", "window": window})

    async def rows() -> list[str]:
        return bag(pa.Table.from_batches([each for part in parts async for each in table.read(store, part, wanted)]))

    assert await rows() == expected
    await place.drive("merge", options=AT_ONCE)
    place.later(3 * HOUR)
    await place.run("derived")
    assert all(ref.key not in place.shelf.objects for part in parts for each in part.chunks for ref in each.refs)
    assert await rows() == expected
    table, parts, wanted = await planned(store, {"table": "rollup", "window": window})
    late = {900: Gauge("other", 5.0, START + 59 * 60 * SECOND, {})}
    await Field(place.store).accept("agent-3", "boot", late, at_ns=place.watch.wall_ns())
    await place.drive("reconcile", "rollup", options=NEVER)
    place.later(3 * HOUR)
    await place.run("derived", run_id="again")
    assert (await current(place.store)).buckets == 8
    assert await rows() == expected


async def test_a_chunk_that_is_current_and_lost_is_damage_for_a_task_too(place: Place) -> None:
    store = place.opened()
    table, parts, wanted = await planned(store, {"table": "rollup"})
    await place.store.delete(parts[0].chunks[0].refs[0].key)
    with pytest.raises(Corrupt, match="a chunk that is current is missing"):
        [each async for each in table.read(store, parts[0], wanted)]
