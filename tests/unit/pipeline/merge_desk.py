"""An hour in several buckets and listings, and the job that merges it."""

from typing import Any

from holdfast import pipeline
from holdfast.base.codec import Document
from holdfast.objects.client import Client
from holdfast.objects.memory import Shelf
from holdfast.objects.store import Store
from holdfast.pipeline.engine import Inline
from holdfast.pipeline.merge import Merge
from holdfast.pipeline.options import Env, Options
from holdfast.pipeline.plan import read_generation
from holdfast.sim.scenarios.pipeline import Straight
from holdfast.telemetry.frame import Limits
from holdfast.telemetry.query.logs import Logs
from holdfast.telemetry.query.metrics import Metrics
from holdfast.telemetry.records import Counter, Gauge, Log
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Generation, Kind, UnitManifest
from tests.unit.pipeline.field import HOUR, START, Field
from tests.unit.pipeline.gc_desk import DAY, GcDesk
from tests.unit.pipeline.healthy import copied

SECOND = 1_000_000_000
AT_ONCE = Options(records_per_unit=20, merge_after_ns=0)
"""Several buckets, and hours that are closed as soon as they are derived."""
NEVER = Options(records_per_unit=20, merge_after_ns=1 << 62)
FIRST = layout.hour_of(START)


async def current(store: Store, hour: int = FIRST) -> Generation:
    found = await read_generation(store, Kind.ROLLUP, hour)
    assert found is not None
    return found


async def merge(store: Client, options: Options = AT_ONCE) -> Document:
    """One run of the job, whatever is marked."""
    env = Env(store, store.ambient, Inline(store), options)
    return await Merge(env).run(Straight(store.ambient.ids.unique()), {})


async def filled(store: Client, *, rounds: int = 3, agents: int = 8) -> Field:
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


async def inputs(store: Store, generation: Generation) -> list[str]:
    found: list[str] = []
    for unit in generation.units:
        manifest = UnitManifest.read(await store.get(layout.unit_key(generation.hour, unit.unit_id)))
        found += [each.id for each in manifest.unit.inputs]
    return sorted(found)


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
