"""Superseded chunks, units and generations: what goes, what a paused driver can no longer do, how readers go on."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from holdfast.base.codec import Document
from holdfast.objects.client import Usage
from holdfast.objects.layer import Layer
from holdfast.objects.store import OVERWRITE, Store
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.gc import derived
from holdfast.pipeline.jobs.derive import Derive
from holdfast.pipeline.jobs.reconcile import Reconcile
from holdfast.pipeline.options import Env, Options
from holdfast.sim.scenarios.pipeline import Small, Straight, accept
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Generation, Kind, read_generation
from tests.unit.pipeline.gc_desk import HOUR, Before, GcDesk, Once

EARLY = Small("agent", 0, 4, 0)
LATE = Small("agent", 10, 14, 0)
LATER = Small("agent", 20, 24, 0)


class Ground(GcDesk):
    """Derives hour 0 from batches of one agent."""

    windows = ("1h",)

    def derive(self, store: Store | None = None, windows: tuple[str, ...] = ("1h",)) -> Derive:
        own = self.store if store is None else store
        options = Options(windows=Windows.of(windows), records_per_unit=8)
        return Derive(Env(own, self.ambient, Inline(), options))

    async def add(self, batch: Small) -> None:
        manifest = batch.manifest(self.watch.wall_ns(), self.ambient.ids.write_id())
        await accept(self.store, batch, manifest, refer=True)
        await Reconcile(self.env()).run(Straight(f"reconcile-{batch.start}"), {})

    async def rollup(self, windows: tuple[str, ...] = ("1h",)) -> None:
        await self.derive(windows=windows).run(Straight(self.ambient.ids.unique()), {})

    async def current(self) -> Generation:
        found = await read_generation(self.store, Kind.ROLLUP, 0)
        assert found is not None
        return found

    async def whole(self) -> tuple[int, int]:
        """The number of the current generation and how many values it has; everything that it names is there."""
        found = await self.current()
        for unit in found.units:
            assert layout.unit_key(0, unit.unit_id) in self.shelf.objects
            assert all(ref.key in self.shelf.objects for ref in unit.chunks)
        metrics = Metrics(self.store, self.ambient, Limits())
        answer = await metrics.query("m", since=0, until=HOUR, step="1h", aggregate="count", by=[])
        return found.number, int(answer.series[0].values[0])

    async def collect(self, run_id: str = "gc") -> dict[str, int]:
        found: dict[str, int] = (await self.run("derived", run_id=run_id))["kinds"]["derived"]["removed"]
        return found


async def derived_twice() -> Ground:
    ground = Ground()
    await ground.add(EARLY)
    await ground.rollup()
    await ground.add(LATE)
    await ground.rollup()
    return ground


async def test_what_was_superseded_goes_after_a_while_and_nothing_else() -> None:
    ground = await derived_twice()
    assert await ground.collect("early") == {}
    ground.later(2 * HOUR)
    before = await ground.whole()
    assert await ground.collect() == {derived.SUPERSEDED: 1, derived.UNNAMED: 3}
    assert before == (2, 10)
    assert await ground.whole() == (3, 10)  # the fence
    assert len(ground.keys(layout.ROLLUP)) == 1
    ground.later(2 * HOUR)
    assert await ground.collect("again") == {derived.SUPERSEDED: 1}
    assert await ground.whole() == (3, 10)
    ground.later(2 * HOUR)
    assert await ground.collect("for good") == {}


async def test_an_hour_whose_generation_cannot_be_read_stays_and_stops_nothing_else() -> None:
    ground = await derived_twice()
    ground.later(2 * HOUR)
    key = (await ground.current()).key
    body = (await ground.store.get(key)).body
    await ground.store.put(key, body[:20], OVERWRITE)
    ground.later(2 * HOUR)
    before = set(ground.shelf.objects)
    kinds = (await ground.run("derived", "orphans"))["kinds"]
    assert (kinds["derived"]["removed"], kinds["derived"]["kept"]) == ({}, {derived.UNREADABLE: 1})
    assert before <= set(ground.shelf.objects)
    await ground.store.put(key, body, OVERWRITE)
    ground.later(2 * HOUR)
    assert await ground.collect("mended") == {derived.SUPERSEDED: 1, derived.UNNAMED: 3}


async def test_late_data_after_a_fence_gets_units_of_another_name() -> None:
    ground = await derived_twice()
    ground.later(2 * HOUR)
    await ground.collect()
    await ground.add(LATER)
    await ground.rollup()
    assert await ground.whole() == (4, 15)
    [unit] = (await ground.current()).units
    assert unit.epoch == 3
    await ground.rollup()  # nothing is due: it has the same name
    assert (await ground.current()).number == 4


def same_names(self: Generation, write_id: str) -> Generation:
    """A fence after which units have the names that they had before."""
    return replace(self, number=self.number + 1, write_id=write_id)


@pytest.mark.parametrize("naive", [False, True])
async def test_names_of_before_a_fence_are_not_planned_again(naive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings of windows are changed back, and all is published, between the fence and the removal."""
    if naive:
        monkeypatch.setattr(Generation, "fence", same_names)
    ground = Ground()
    await ground.add(EARLY)
    await ground.rollup()
    request = {"since_ns": 0, "until_ns": HOUR}
    await ground.derive(windows=("10m", "1h")).run(Straight("other"), request)
    ground.later(2 * HOUR)
    back = ground.derive()

    class Meanwhile(Layer):
        async def delete_many(self, keys: Iterable[str]) -> None:
            await back.run(Straight("back"), request)
            await super().delete_many(keys)

    await ground.run("derived", store=Meanwhile(ground.store))
    [unit] = (await ground.current()).units
    assert all(ref.key in ground.shelf.objects for ref in unit.chunks) is not naive


@pytest.mark.parametrize("prefix", [layout.ROLLUP, layout.MANIFESTS])
async def test_a_reader_that_meets_a_removed_object_begins_anew(prefix: str) -> None:
    ground = await derived_twice()

    async def others() -> None:
        await ground.add(LATER)
        await ground.rollup()
        ground.later(2 * HOUR)
        assert await ground.collect()

    metrics = Metrics(Once(ground.store, prefix, others), ground.ambient, Limits())
    answer = await metrics.query("m", since=0, until=HOUR, step="1h", aggregate="count", by=[])
    assert answer.series[0].values == [15.0]
    assert (await metrics.list("*", since=0, until=HOUR)).rows[0]["metric"] == "m"


async def test_a_day_is_not_made_of_an_hour_whose_chunks_are_gone() -> None:
    ground = Ground()
    await ground.add(EARLY)
    windows = ("1h", "1d")

    async def others() -> None:
        await ground.add(LATE)
        await ground.derive().run(Straight("other"), {})  # which knows of no windows above an hour
        ground.later(2 * HOUR)
        await ground.collect()

    slow = ground.derive(Before(ground.store, "/day_work.json", others), windows)
    await slow.run(Straight("slow"), {})
    assert await read_generation(ground.store, Kind.DAILY, 0) is None
    summary: Document = await ground.derive(windows=windows).run(Straight("day"), {})
    assert summary["days"] == 1
    found = await read_generation(ground.store, Kind.DAILY, 0)
    assert found is not None
    assert not found.units[0].unreadable


async def test_what_a_sweep_of_a_day_costs() -> None:
    ground = await derived_twice()
    ground.later(2 * HOUR)
    ground.usage = Usage()
    await ground.collect()
    # Audits: 1 LIST. The run's record: 1 PUT, 1 HEAD. Staged tables of dead runs: 1 LIST. Manifests, rollups and
    # index: 3 LIST for their folders, and 4 for what they hold. Two generations are read: what is named, and what
    # stands, with 1 LIST of the hour; 1 GET for the unit that none names. The fence: 1 PUT. The intent: 1 PUT.
    # Staged tables: 1 LIST that finds none, 7 PUT, 3 GET of parts, and they go.
    # One object is deleted with each of 7 staged ones, and 4 are garbage.
    assert ground.usage.by_verb == {"list": 11, "get": 6, "head": 1, "put": 10, "delete": 11}
