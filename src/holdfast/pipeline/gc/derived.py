"""Chunks, units and generations of derived data that later generations have superseded.

Names of derived objects follow from their inputs, and creation is conditional on names: an object may be deleted only
when nothing can come to name it again. A driver may have planned before, and publish after; a task may find a unit
that is there, call it done, and lose it. So nothing is removed on what was read alone.

The rule: *list, fence, remove*. Everything of the hour was listed. Then the next generation is created with the units
of the current one and an epoch of its own (see ``rollup.manifest.Generation``): a **fence**. If another process gets
that number, the hour is left alone. Once the fence stands, plans from before it cannot be published, and plans from
after it give their new units other names. So what was listed before the fence, and is not named by it, is never named
again, and may go at any time, twice.

Readers may hold an older generation: what they use is left for ``grace_ns`` after it was superseded, by the store's
clock, and a reader that comes later still finds it missing and begins anew (``query.sources.retry_superseded``).

A unit or chunk of a kind that has no generation in its hour is never touched: nothing could fence its driver. Listings
of batches are never deleted: plans rest on that.
"""

from collections import defaultdict
from collections.abc import Sequence

from holdfast.base.errors import Corrupt, Incompatible
from holdfast.base.ids import Ambient
from holdfast.objects.store import CREATE, Entry, Lost, Store
from holdfast.pipeline.gc.options import Ask
from holdfast.pipeline.gc.record import Sweep
from holdfast.telemetry.rollup import layout
from holdfast.telemetry.rollup.manifest import Generation, Kind, UnitManifest, current_generations

SUPERSEDED = "a later generation has taken its place"
UNNAMED = "no generation names it"
YOUNG = "superseded a short time ago"
OVERTAKEN = "a driver published in the meantime"
UNFENCED = "its kind has no generation in this hour"
UNREADABLE = "it cannot be read"

Standing = dict[Kind, tuple[Generation, int]]
"""The current generation of each kind, and since when it is current."""


async def days(store: Store) -> list[str]:
    """Days of derived data, as written in keys."""
    found: list[str] = []
    async for page in store.list(layout.MANIFESTS, delimiter=True):
        found += [folder.removeprefix(layout.MANIFESTS).rstrip("/") for folder in page.folders]
    return found


async def named_by(store: Store, key: str) -> list[str]:
    """The keys that a generation refers to, and its own; nothing if it is gone or cannot be read."""
    stored = await store.find(key)
    try:
        generation = None if stored is None else Generation.read(stored)
    except (Corrupt, Incompatible):
        return []
    return [] if generation is None else [key, *_names(generation)]


def _names(generation: Generation) -> list[str]:
    units = generation.units
    return [
        *(layout.unit_key(generation.hour, unit.unit_id) for unit in units),
        *(ref.key for unit in units for ref in unit.chunks),
    ]


async def sweep(store: Store, ambient: Ambient, listed: Sequence[Entry], ask: Ask, out: Sweep) -> None:
    """Remove the listed objects of one hour that no current generation refers to."""
    hour = layout.hour_in(listed[0].key)
    if hour is None:
        return
    try:
        standing = await _standing(store, hour)
        candidates = await _candidates(store, listed, standing)
    except (Corrupt, Incompatible):  # the current generation is not known, so nothing of the hour is removed
        out.keep(UNREADABLE, layout.manifest_folder(hour))
        return
    settled_ns = ask.now_ns - ask.options.grace_ns
    garbage: dict[Kind, list[tuple[Entry, str]]] = defaultdict(list)
    for entry, kind, why in candidates:
        if kind is None or kind not in standing:
            out.keep(UNREADABLE if kind is None else UNFENCED, entry.key)
        elif entry.modified_ns > settled_ns or standing[kind][1] > settled_ns:
            out.keep(YOUNG, entry.key)
        else:
            garbage[kind].append((entry, why))
    for kind, doomed in garbage.items():
        # Superseded generations need no fence: what counts is the highest number. And a fence supersedes one, so the
        # next run would make another for its sake, again and again.
        fenced = any(why != SUPERSEDED for _, why in doomed)
        if ask.apply and fenced and not await fence(store, ambient, standing[kind][0]):
            for entry, _ in doomed:
                out.keep(OVERTAKEN, entry.key)
            continue
        for entry, why in doomed:
            if not await out.remove(entry.key, entry.size, why):
                return


async def _standing(store: Store, hour: int) -> Standing:
    keys = [key async for key in store.keys(layout.manifest_folder(hour))]
    found: Standing = {}
    for kind in Kind:
        key = current_generations(keys, kind).get(hour)
        stored = await store.find(key) if key is not None else None
        if stored is not None:
            found[kind] = (Generation.read(stored), stored.modified_ns)
    return found


async def _candidates(
    store: Store, listed: Sequence[Entry], standing: Standing
) -> list[tuple[Entry, Kind | None, str]]:
    """The objects that no current generation refers to, with their kind (None if unknown). Foreign objects are left
    out."""
    named = {name for generation, _ in standing.values() for name in _names(generation)}
    found: list[tuple[Entry, Kind | None, str]] = []
    for entry in listed:
        key = entry.key
        if (numbered := layout.generation_in(key)) is not None:
            kind = Kind(numbered[0]) if numbered[0] in list(Kind) else None
            if kind in standing and numbered[1] < standing[kind][0].number:
                found.append((entry, kind, SUPERSEDED))
        elif key in named:
            continue
        elif layout.unit_in(key) is not None:
            found.append((entry, await _kind_of_unit(store, key), UNNAMED))
        elif (kind := kind_of_chunk(key)) is not None:
            found.append((entry, kind, UNNAMED))
    return found


async def fence(store: Store, ambient: Ambient, generation: Generation) -> bool:
    """Create the fence after this generation. False if the number is taken: then nothing may be removed."""
    made = generation.fence(ambient.ids.write_id())
    return not isinstance(await store.put(made.key, made.encode(), CREATE), Lost)


def kind_of_chunk(key: str) -> Kind | None:
    """The kind of generation that refers to such a chunk; None for a foreign object."""
    if key.startswith(layout.INDEX):
        return Kind.ROLLUP
    window = layout.window_in(key)
    return None if window is None else Kind.DAILY if window > layout.HOUR_NS else Kind.ROLLUP


async def _kind_of_unit(store: Store, key: str) -> Kind | None:
    stored = await store.find(key)
    if stored is None:
        return None
    try:
        return UnitManifest.read(stored).unit.kind
    except (Corrupt, Incompatible):
        return None
