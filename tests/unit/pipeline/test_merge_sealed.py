"""Late data over hours whose batches have expired: one row for each window all the same, and one unit in the end."""

from collections import Counter as Tally
from typing import Any

import pytest

from holdfast.pipeline.engine import Inline
from holdfast.pipeline.merge import Merge
from holdfast.pipeline.options import Env, Options
from holdfast.pipeline.plan import read_generation
from holdfast.pipeline.tables import everything
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.records import Counter, Gauge, Histogram
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Generation, Kind, UnitManifest
from holdfast.telemetry.rollup.windows import Windows
from tests.unit.pipeline.field import START
from tests.unit.pipeline.gc_desk import HOUR
from tests.unit.pipeline.test_gc_retention import SECOND, WINDOWS, Ground

AGENTS = ("a", "b", "e")
"""In both of two buckets."""


def mixed(start: int, *, every: int) -> dict[int, Any]:
    """Gauges, a counter and histograms whose samples interleave with those of others."""
    found: dict[int, Any] = {}
    for n in range(6):
        at = START + (n * every + start) * SECOND
        found[start + 3 * n] = Gauge("load", float(start + n), at, {"cpu": str(n % 2)})
        found[start + 3 * n + 1] = Counter("requests", start + 10 * n, at, {})
        found[start + 3 * n + 2] = Histogram("latency", (0.1, 1.0), (n, 1, 0), 2.5, at)
    return found


class Sealing(Ground):
    async def merge(self) -> dict[str, Any]:
        options = Options(windows=Windows.of(WINDOWS), records_per_unit=50, merge_after_ns=0)
        found: dict[str, Any] = await Merge(Env(self.store, self.ambient, Inline(self.store), options)).run(
            Straight(self.ambient.ids.unique()), {}
        )
        self.later(HOUR)
        return found

    async def current(self) -> Generation:
        found = await read_generation(self.store, Kind.ROLLUP, layout.hour_of(START))
        assert found is not None
        return found

    async def answers(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for step in ("10s", "1m", "1h"):
            for aggregate in ("sum", "count", "min", "max", "last"):
                found[f"{aggregate} {step}"] = await self.asked("load", aggregate, step)
            found[f"increase {step}"] = await self.asked("requests", "increase", step)
            found[f"histograms {step}"] = await self.asked("latency", "count", step)
        return found

    async def rows(self, window: str) -> list[dict[str, Any]]:
        """Of the table that Spark reads; a series has a window once."""
        found = (await everything(self.opened(), {"table": "rollup", "window": window})).to_pylist()
        names = [(row["metric"], row["agent"], str(row["labels"]), row["kind"], row["window_start"]) for row in found]
        assert max(Tally(names).values(), default=1) == 1
        return sorted(found, key=lambda row: (row["metric"], row["agent"], str(row["labels"]), row["window_start"]))

    async def tables(self) -> list[Any]:
        return [await self.rows(window) for window in WINDOWS]

    async def late(self, start: int) -> None:
        for number, agent in enumerate(AGENTS):
            await self.accept(agent, mixed(start + 1000 * number, every=7 + number))


async def layered() -> Sealing:
    """Two sealed units in each bucket."""
    ground = Sealing()
    for turn in range(2):
        await ground.late(100 * turn)
        await ground.derive()
        await ground.expire(f"expire-{turn}")
    return ground


async def test_layers_of_sealed_units_become_one_and_say_the_same() -> None:
    ground = await layered()
    before, tables = await ground.answers(), await ground.tables()
    generation = await ground.current()
    assert (generation.buckets, [unit.sealed for unit in generation.units]) == (2, [True] * 4)
    found = await ground.merge()
    assert (found["published"], found["units"], found["listings"]) == (1, 1, 2)
    merged = await ground.current()
    [unit] = merged.units
    assert (merged.buckets, unit.sealed, unit.inputs, unit.over) == (1, True, 6, ())
    manifest = UnitManifest.read(await ground.store.get(layout.unit_key(merged.hour, unit.unit_id)))
    assert set(manifest.unit.parts) == {each.unit_id for each in generation.units}
    assert len({(ref.metric, ref.window_ns) for ref in unit.chunks}) == len(unit.chunks) == 9
    assert await ground.answers() == before
    assert await ground.tables() == tables
    assert (await ground.merge())["hours"] == []


@pytest.mark.parametrize("merged", [False, True])
async def test_late_data_over_sealed_units_has_one_row_for_a_window(merged: bool) -> None:
    """As it comes, when it is derived, and when it is sealed and merged."""
    ground = await layered()
    if merged:
        await ground.merge()
    await ground.late(200)
    fresh, tables = await ground.answers(), await ground.tables()
    await ground.derive()
    generation = await ground.current()
    assert {unit.sealed for unit in generation.units} == {True, False}
    assert await ground.answers() == fresh
    assert await ground.tables() == tables
    assert (await ground.merge())["published"] == 0  # what is open stays open, and what it lies on as it is
    assert (await ground.current()).units == generation.units
    await ground.expire("third")
    await ground.merge()
    assert [unit.sealed for unit in (await ground.current()).units] == [True]
    counts = await ground.asked("load", "count")
    assert sum(counts.values()) == 3 * 6 * len(AGENTS)
