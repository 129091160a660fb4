"""Make an hour's units the current ones: create the next generation, if nobody has.

Two drivers cannot both win a number. The loser has changed nothing: its units may be part of a later generation, and
whoever plans the hour again does so on top of what won. Publishing the same again finds it there.
"""

from dataclasses import dataclass

from holdfast.base.aio import map_bounded
from holdfast.base.errors import check
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.pipeline.plan import HourPlan, read_generation
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Current, Generation, UnitManifest

AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Published:
    plan: HourPlan
    generation: Generation | None
    """None if another driver was faster, or if nothing had changed."""
    superseded: bool = False


async def compose(store: Store, plan: HourPlan) -> Generation | None:
    """The generation that a plan leads to: the units that are current already as they stand, and sealed ones, and the
    others from their manifests. None if any of it is gone: then the plan is older than a fence.
    """
    base: Generation | None = None
    if plan.base:
        found = await store.find(layout.generation_key(plan.hour, plan.kind, plan.base))
        if found is None:
            return None
        base = Generation.read(found)
    known = {each.unit_id: each for each in base.units} if base is not None else {}

    async def one(unit_id: str) -> Current | None:
        if unit_id in known:
            return known[unit_id]
        found = await store.find(layout.unit_key(plan.hour, unit_id))
        made = None if found is None else Current.of_manifest(UnitManifest.read(found))
        return made if made is None or base is None else base.kept(made)

    made = await map_bounded(plan.units, one, limit=AT_ONCE)
    units = [each for each in made if each is not None]
    if len(units) < len(made):
        return None
    units += [each for each in known.values() if each.sealed]
    in_order = tuple(sorted(units, key=lambda each: (each.bucket, not each.sealed)))
    numbers = (plan.kind, plan.hour, plan.base + 1, plan.buckets, plan.version)
    return Generation(*numbers, in_order, tuple(plan.listings), plan.epoch, base.expired if base else ())


async def publish(store: Store, plan: HourPlan) -> Published:
    if not plan.changed:
        return Published(plan, None)
    generation = await compose(store, plan)
    if generation is None or isinstance(await store.put(generation.key, generation.encode(), CREATE), Lost):
        return Published(plan, None, superseded=True)
    return Published(plan, generation)


async def verify(store: Store, plan: HourPlan) -> None:
    """The hour has a generation at least as new as the one that was published, and it is whole."""
    current = await read_generation(store, plan.kind, plan.hour)
    number = plan.base + 1 if plan.changed else plan.base
    check(
        current is not None and current.number >= number,
        f"{layout.manifest_folder(plan.hour)}: generation {number} of {plan.kind} was published and is gone",
    )
