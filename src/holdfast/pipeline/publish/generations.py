"""Make the units of an hour or a day the current ones: create the next generation, if no other driver has.

Two drivers cannot both win a number. The loser has changed nothing: its units may be part of a later generation, and
the next plan of the hour is made on top of the winner's. Publishing the same again finds it there.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.base.aio import map_bounded
from holdfast.base.errors import check
from holdfast.objects.store import CREATE, Lost, Store
from holdfast.pipeline.units import Place
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Generation, UnitManifest, UnitRef, read_generation

AT_ONCE = 4
"""Manifests of units that are held at a time: each names all of its inputs."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What a generation is made of: all units of an hour, by bucket, and the listings that they cover."""

    place: Place
    units: Sequence[str]
    listings: Sequence[str]


@dataclass(frozen=True, slots=True)
class Published:
    generation: Generation | None
    """None if another driver was faster, or if nothing had changed."""
    superseded: bool = False


async def publish(store: Store, draft: Draft) -> Published:
    place = draft.place
    base: Generation | None = None
    if place.base:
        found = await store.find(layout.generation_key(place.hour, place.kind, place.base))
        if found is None:
            return Published(None, superseded=True)  # it is older than a fence
        base = Generation.read(found)
        same = [each.unit_id for each in base.units] == list(draft.units)
        if base.is_closed or (same and set(base.listings).issuperset(draft.listings)):
            return Published(None)
    generation = await compose(store, draft, base)
    if generation is None or isinstance(await store.put(generation.key, generation.encode(), CREATE), Lost):
        return Published(None, superseded=True)
    return Published(generation)


async def compose(store: Store, draft: Draft, base: Generation | None) -> Generation | None:
    """The generation of these units: those that are current already as they are, the others from their manifests. None
    if one of them is gone: then the plan is older than a fence.
    """
    place = draft.place
    known = {each.unit_id: each for each in base.units} if base is not None else {}

    async def one(unit_id: str) -> UnitRef | None:
        if unit_id in known:
            return known[unit_id]
        found = await store.find(layout.unit_key(place.hour, unit_id))
        made = None if found is None else UnitRef.of_manifest(UnitManifest.read(found))
        return made if made is None or base is None else base.without_expired(made)

    units = await map_bounded(draft.units, one, limit=AT_ONCE)
    if None in units:
        return None
    in_order = tuple(sorted((each for each in units if each is not None), key=lambda each: each.bucket))
    numbers = (place.kind, place.hour, place.base + 1, place.buckets, place.version)
    listings = tuple(sorted({*draft.listings, *(() if base is None else base.listings)}))
    return Generation(*numbers, in_order, listings, place.epoch, base.expired if base else ())


async def verify(store: Store, place: Place, number: int) -> None:
    """The hour has a generation at least as new as the one that was published."""
    current = await read_generation(store, place.kind, place.hour)
    check(
        current is not None and current.number >= number,
        f"{layout.manifest_folder(place.hour)}: generation {number} of {place.kind} was published and is gone",
    )
